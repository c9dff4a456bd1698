//! Measurements kept in the repository. `figures` and `peers` measure. This module keeps their
//! lines and generates one page from them, which begins with a summary of wins and losses.

mod index_memory;
pub(crate) mod peers;

use crate::figures::{self, Comparison};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use xtask::flags::Flags;
use xtask::workspace::Workspace;

const FIGURES: &str = "lab/results/figures.jsonl";
const PEERS: &str = "lab/results/peers.jsonl";
const PAGE: &str = "docs/measured.md";
const BLESS: &str = "cargo lab measured --bless";

const KEPT: &str = "lab/results";

/// Adds the files of `--add`, if any, and writes the page. Otherwise checks that the page agrees with the lines.
/// Fails if a kept line was measured on a modified tree: nothing can repeat it.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let (added, bless) = (flags.value("--add")?, flags.switch("--bless"));
    flags.end()?;
    let (root, is_written) = (&workspace.root, bless || added.is_some());
    for file in added.iter().flat_map(|files| files.split(',')) {
        add(root, Path::new(file)).with_context(|| format!("adding {file}"))?;
    }
    for file in fs::read_dir(root.join(KEPT)).context(KEPT)? {
        let path = file?.path();
        check_repeatable(&path.display().to_string(), &fs::read_to_string(&path)?)?;
    }
    index_memory::run(root, is_written)?;
    let page = page(root)?;
    if is_written {
        return fs::write(root.join(PAGE), page).with_context(|| format!("writing {PAGE}"));
    }
    let now = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    ensure!(now == page, "{PAGE} differs from {FIGURES} and {PEERS}: run `{BLESS}`");
    Ok(())
}

/// Fails if a line names the commit of a modified tree.
fn check_repeatable(file: &str, text: &str) -> Result<()> {
    let found = text.lines().position(|line| line.contains("-dirty\""));
    let line = found.map(|at| at + 1).unwrap_or_default();
    ensure!(
        found.is_none(),
        "{file}:{line}: measured on a modified tree: remove it, or commit and measure again"
    );
    Ok(())
}

fn add(root: &Path, file: &Path) -> Result<()> {
    let text = fs::read_to_string(file)?;
    let git = |words: &[&str]| -> Result<String> {
        let output = Command::new("git").args(words).current_dir(root).output()?;
        ensure!(output.status.success(), "git {words:?} failed");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let date = git(&["log", "-1", "--format=%cs"])?;
    if text.starts_with("{\"left_out\"") || text.starts_with("{\"setup\"") {
        let mut lines: Vec<figures::Kept> = kept(root, FIGURES)?;
        lines.extend(figures::read_kept(root, &text, &date)?);
        return keep(root, FIGURES, &figures::newest_kept(lines));
    }
    let mut lines: Vec<peers::Kept> = kept(root, PEERS)?;
    // Results that were added do not change what was measured.
    let without = [FIGURES, PEERS, PAGE].map(|file| format!(":(exclude){file}"));
    let mut changes = vec!["status", "--porcelain", "--untracked-files=no", "--", "."];
    changes.extend(without.iter().map(String::as_str));
    let dirty = if git(&changes)?.is_empty() { "" } else { "-dirty" };
    let commit = format!("{}{dirty}", git(&["describe", "--always"])?);
    lines.push(peers::read(&text, &commit, &date)?);
    keep(root, PEERS, &peers::newest(lines))
}

fn kept<T: DeserializeOwned>(root: &Path, file: &str) -> Result<Vec<T>> {
    let text = match fs::read_to_string(root.join(file)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.context(file.to_owned())?,
    };
    text.lines().map(|line| serde_json::from_str(line).context(file.to_owned())).collect()
}

fn keep<T: Serialize>(root: &Path, file: &str, lines: &[T]) -> Result<()> {
    let lines = lines.iter().map(serde_json::to_string).collect::<Result<Vec<_>, _>>()?;
    fs::write(root.join(file), lines.join("\n") + "\n").context(file.to_owned())
}

fn page(root: &Path) -> Result<String> {
    let (figures, peers) = (kept(root, FIGURES)?, peers::newest(kept(root, PEERS)?));
    let digest = figures::kept_digest(root, &figures)?;
    let mut text = format!(
        "<!-- Made by `cargo lab measured --add FILES` from {FIGURES} and {PEERS}; CI checks that it \
         agrees with them. -->\n# Measured\n\n\
         Each number is the median of the rounds; each round runs all systems in turn. A ratio is the \
         median of the rounds' ratios, Stele to the other system. Every answer waits for the syncs of a \
         quorum. All runs used one small machine that other work disturbs, so numbers of different runs \
         cannot be compared.\n\n## Summary\n\n"
    );
    let rows: Vec<_> = peers::comparisons(&peers).into_iter().chain(digest.comparisons).collect();
    text.push_str(&summary(&rows));
    list(&mut text, "Loads with a slower tail", &peers::slower_tails(&peers));
    list(&mut text, "Other designs that are ahead", &digest.behind_others);
    list(&mut text, "Figures of the papers that are not reached", &digest.behind_papers);
    text.push_str(
        "\n## Beside other servers\n\nProcesses on loopback, one load for all (`cargo lab peers`). \
         *disk*: throughput of as many writers as there are nodes, before and after, with a sync for \
         each MiB.\n\n",
    );
    text.push_str(&peers::table(&peers));
    text.push_str(
        "\nBelow: other designs on the same consensus, three replicas in one process, and placement modes on \
         clusters of unequal devices (`cargo lab figures`; [their description](../lab/README.md)).\n",
    );
    text.push_str(&digest.tables);
    Ok(text)
}

fn summary(rows: &[Comparison]) -> String {
    let mut text = String::from(
        "Ratio of Stele's throughput to that of the other system: above 1, Stele is faster. The result is \
         *even* if Stele is ahead in some rounds and behind in others. `etcd` and `redis` are servers. \
         `original` is Raft with a log of its own above RocksDB with its write-ahead log, the design of \
         etcd and TiKV; `nezha-nogc` is the Nezha design without garbage collection. `even` is Stele that spreads \
         replicas and leaders evenly over unequal devices, beside its other placement modes.\n\n\
         | workload | beside | ahead | even | behind |\n|---|---|---|---|---|\n",
    );
    for row in rows {
        let cells = [&row.ahead, &row.even, &row.behind].map(|cell| cell.join(", "));
        let _ = writeln!(text, "| {} | {} | {} |", row.workload, row.beside, cells.join(" | "));
    }
    text
}

fn list(text: &mut String, title: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = write!(text, "\n### {title}\n\n");
    lines.iter().for_each(|line| {
        let _ = writeln!(text, "- {line}");
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_was_measured_on_a_modified_tree_is_not_kept() {
        let line = |commit: &str| format!("{{\"origin\":{{\"commit\":\"{commit}\"}}}}\n");
        check_repeatable("f", &line("823950d").repeat(2)).unwrap();
        let both = line("823950d") + &line("823950d-dirty");
        let error = check_repeatable("f", &both).unwrap_err().to_string();
        assert!(error.starts_with("f:2: measured on a modified tree"), "{error}");
    }
}
