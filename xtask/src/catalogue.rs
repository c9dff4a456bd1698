//! `docs/testing.md`: the tests of each fault, read from the tests themselves, then tables of other modules. A
//! test names its faults by its own name (`fault_19_…`) or by a line `// Catalogue: 19, 27.` above it.

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/testing.md";
const BLESS: &str = "cargo xtask catalogue --bless";
const MARK: &str = "// Catalogue:";
/// Lines between a mark and its function, at most.
const MARK_REACH_LINES: usize = 8;
const FOLDERS: [&str; 5] = ["crates", "sim", "cluster-tests", "fuzz", "spec"];

/// Each fault and the required behaviour. The number of a fault is its position, from 1.
const FAULTS: [(&str, &str); 66] = [
    ("a process is killed at any point", "nothing acknowledged is lost"),
    ("a leader is stopped for longer than its lease", "no stale read when it continues"),
    ("all nodes are killed", "everything acknowledged is there"),
    ("a process runs out of memory", "it is back within the bound on recovery"),
    (
        "a panic in apply, garbage collection or a merge",
        "the process ends; the panic is never swallowed",
    ),
    ("repeated crashes during recovery", "harmless"),
    ("two processes on one directory", "the second is refused"),
    ("another cluster's or store's identity", "refused"),
    ("a power cut", "what was synced is there"),
    ("a torn record at the end", "truncated and reported"),
    ("a bad checksum in the middle of the log", "reported, never truncated as if it were the end"),
    (
        "the last acknowledged record is damaged",
        "cut and reported as uncertain; once confirmed, no vote until it is repaired",
    ),
    ("a bit flips in a value", "never served"),
    ("a misdirected write", "found by address and epoch"),
    ("a misdirected or stale read", "found, read again"),
    ("a lost write", "found by the chain of checksums"),
    ("a sync fails", "the store stops; the sync is never retried"),
    ("a read fails", "an error, repaired from another replica; never an absent key"),
    (
        "the device is full",
        "puts are refused; reads, deletes, garbage collection and transfers continue",
    ),
    ("the device stalls", "leaders move, then the store stops"),
    ("the device is ten times slower", "leadership leaves"),
    ("a directory was not synced", "survived"),
    ("a segment is missing", "reported, no gap"),
    ("the hard state is damaged", "no double vote"),
    ("the index or its manifest is lost", "rebuilt"),
    ("one of several devices fails", "only its replicas are rebuilt"),
    ("old records in a recycled segment", "never read again"),
    ("a whole disk is replaced", "a new identity is needed"),
    ("a symmetric partition", "the minority writes nothing"),
    ("a partition in one direction", "an election within bounds"),
    ("a flapping link", "progress after it is stable"),
    ("loss, duplication, reordering, delay", "linearizable"),
    ("damaged bytes on the wire", "refused"),
    ("a half-open connection", "closed by keepalive"),
    ("bandwidth collapses", "heartbeats go first"),
    ("the link breaks during a snapshot", "resumed or discarded"),
    ("the placement group cannot be reached", "reads and writes continue"),
    ("the wall clock jumps", "no effect on safety"),
    ("monotonic clocks drift apart", "the lease's margin holds"),
    ("a pause between the check of a lease and the answer", "checked again"),
    ("ticks are missed", "the lease uses a real clock"),
    ("membership changes at the same time", "one after the other"),
    ("a membership change before an entry of the term commits", "refused"),
    ("a replacement while the leader fails", "no stuck quorum"),
    ("an isolated learner is promoted", "it can vote"),
    ("leadership is transferred to a follower that lags", "it times out, the old leader continues"),
    ("a removed peer comes back", "it finds its tombstone"),
    ("placement's state is lost or rolled back", "numbers are never allocated twice"),
    ("operators that contradict each other", "the epoch refuses one"),
    ("a drain that would break a quorum", "refused"),
    ("a crash at any step of garbage collection", "nothing is lost, nothing deleted comes back"),
    ("a write that races a relocation", "the newest wins"),
    ("a long iterator during garbage collection", "what it needs is pinned"),
    (
        "a segment that garbage collection emptied, with entries that a follower needs",
        "kept, or a snapshot is sent",
    ),
    ("a region moves away and comes back", "old locators are invalid"),
    ("a crash while a snapshot is applied", "resumed or discarded"),
    ("a newer snapshot while one is applied", "no missing file"),
    ("a damaged piece of a snapshot", "refused as a whole"),
    ("a snapshot races a truncation", "no gap"),
    ("oversized, empty or garbage messages", "a typed error"),
    ("a retry after a timeout", "an unknown outcome is reported as unknown"),
    ("a slow reader, or a flood of streams", "memory stays bounded"),
    ("ten times the load", "refused early, the rest is served"),
    ("a backlog of proposals", "memory stays bounded"),
    ("a rolling upgrade and downgrade", "linearizable"),
    ("a newer format opened by an old binary", "a clean refusal"),
];

/// Tests of each fault: file and function.
type Found = BTreeMap<usize, Vec<(String, String)>>;

/// Writes the page with `bless`. Otherwise fails if it differs from the tests.
pub(crate) fn run(workspace: &Workspace, bless: bool) -> Result<()> {
    let files = read(&workspace.root)?;
    let page = page(&find(&files)?)
        + &crate::invariants::table(&files)?
        + &crate::edges::table(&workspace.root)?
        + &crate::sizes::table(&workspace.root)?;
    let path = workspace.root.join(PAGE);
    if bless {
        return std::fs::write(&path, page).with_context(|| format!("writing {PAGE}"));
    }
    let now = std::fs::read_to_string(&path).unwrap_or_default();
    if now != page {
        bail!("{PAGE} differs from the tests: run `{BLESS}`");
    }
    Ok(())
}

fn page(found: &Found) -> String {
    let covered = (1..=FAULTS.len()).filter(|number| found.contains_key(number)).count();
    let mut text = format!(
        "# Faults and their tests\n\nMade by `{BLESS}` from the names and marks of the tests; \
         `cargo xtask tidy` checks it. {covered} of {} faults have a test.\n\n\
         | | fault | what must happen | tests |\n|---|---|---|---|\n",
        FAULTS.len()
    );
    for (at, (fault, behaviour)) in FAULTS.iter().enumerate() {
        let tests = found.get(&(at + 1)).map_or("**none yet**".to_owned(), |tests| links(tests));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {fault} | {behaviour} | {tests} |", at + 1);
    }
    text
}

fn links(tests: &[(String, String)]) -> String {
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, name) in tests {
        by_file.entry(file).or_default().push(name);
    }
    let file =
        |(file, names): (&&str, &Vec<&str>)| format!("[{file}](../{file}): {}", names.join(", "));
    by_file.iter().map(file).collect::<Vec<_>>().join("; ")
}

/// Returns the files that may contain tests, with their paths from the root, in path order.
fn read(root: &Path) -> Result<Vec<(String, String)>> {
    let mut paths = Vec::new();
    for folder in FOLDERS {
        collect(&root.join(folder), &mut paths)?;
    }
    paths.sort();
    let file = |path: PathBuf| {
        let name = path.strip_prefix(root)?.display().to_string();
        Ok((name, std::fs::read_to_string(&path)?))
    };
    paths.into_iter().map(file).collect()
}

fn find(files: &[(String, String)]) -> Result<Found> {
    let mut found = Found::new();
    for (name, text) in files {
        for (number, function) in tests_of(text).with_context(|| name.clone())? {
            found.entry(number).or_default().push((name.clone(), function));
        }
    }
    Ok(found)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() && path.file_name().is_none_or(|name| name != "target") {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns faults and the functions that test them. Fails on a mark without a function and on an
/// unknown number.
fn tests_of(text: &str) -> Result<Vec<(usize, String)>> {
    let mut tests = Vec::new();
    let mut marked: Option<(usize, Vec<usize>)> = None;
    for (line, text) in text.lines().map(str::trim).enumerate() {
        if let Some(numbers) = text.strip_prefix(MARK) {
            let numbers = numbers.trim().trim_end_matches('.').split(',');
            let numbers: Result<Vec<usize>> = numbers.map(number).collect();
            marked = Some((line, numbers?));
        }
        let Some(name) = function(text) else { continue };
        let mut numbers = named(name);
        if let Some((at, more)) = marked.take() {
            if line - at > MARK_REACH_LINES {
                bail!("line {}: no function follows the mark", at + 1);
            }
            numbers.extend(more);
        }
        tests.extend(numbers.into_iter().map(|number| (number, name.to_owned())));
    }
    match marked {
        Some((at, _)) => bail!("line {}: no function follows the mark", at + 1),
        None => Ok(tests),
    }
}

fn number(text: &str) -> Result<usize> {
    let number = text.trim().parse().with_context(|| format!("`{text}` is not a number"))?;
    if number == 0 || number > FAULTS.len() {
        bail!("there is no fault {number}");
    }
    Ok(number)
}

pub(crate) fn function(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("fn ").filter(|(before, _)| {
        before
            .split_whitespace()
            .all(|word| matches!(word, "pub" | "async" | "pub(crate)" | "pub(super)"))
    })?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().filter(|name| !name.is_empty())
}

/// Returns the faults in a function's name: 14 and 16 for `fault_14_and_16_…`.
fn named(name: &str) -> Vec<usize> {
    let Some(rest) = name.strip_prefix("fault_") else { return Vec::new() };
    let words = rest.split('_').take_while(|word| *word == "and" || number(word).is_ok());
    words.filter_map(|word| number(word).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_by_name_and_by_mark() {
        let text = "#[test]\nfn fault_14_and_16_a_b() {\n}\n// Catalogue: 3, 66.\n/// Doc.\n\
                    pub(super) async fn run() {\nfn other() {\n";
        let expected =
            [(14, "fault_14_and_16_a_b"), (16, "fault_14_and_16_a_b"), (3, "run"), (66, "run")];
        assert_eq!(tests_of(text).unwrap(), expected.map(|(n, name)| (n, name.to_owned())));
    }

    #[test]
    fn marks_that_lead_nowhere_are_refused() {
        assert!(tests_of("// Catalogue: 67.\nfn a() {}\n").is_err());
        assert!(tests_of("// Catalogue: x.\nfn a() {}\n").is_err());
        assert!(tests_of("// Catalogue: 3.\nlet a = 1;\n").is_err());
    }

    #[test]
    fn the_page_marks_faults_without_a_test() {
        let found = Found::from([(1, vec![("a.rs".to_owned(), "f".to_owned())])]);
        let page = page(&found);
        assert!(page.contains("1 of 66 faults"), "{page}");
        assert!(page.contains("[a.rs](../a.rs): f |\n| 2 |") && page.contains("**none yet**"));
    }
}
