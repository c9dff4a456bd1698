//! The cost of a put: processor time of each replica by stage. Keeps one line for each measurement
//! and generates a page from all lines.

mod followed;
mod line;
mod page;

use crate::peers;
use anyhow::{Context, Result, bail, ensure};
use followed::Watch;
use line::{Configuration, Line, Machine, Size};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use xtask::flags::Flags;
use xtask::process::{Ended, run_limited};
use xtask::programs::{self, LAB, STELE};
use xtask::servers::{self, with_servers};
use xtask::workspace::Workspace;

const LINES: &str = "lab/results/cost-per-put.jsonl";
const PAGE: &str = "docs/cost-per-put.md";
const BLESS: &str = "cargo lab cost --bless";

const NODES: usize = 3;
const VALUE_BYTES: [u64; 2] = [1 << 10, 16 << 10];
/// Bytes of values loaded before the measurement.
const RECORDS_BYTES: u64 = 32 << 20;
const DEV_RECORDS_BYTES: u64 = 1 << 20;
const CLIENTS: u64 = 64;
const WARM_UP_SECONDS: u64 = 2;
const SECONDS: u64 = 10;
/// More than any run completes: the duration ends it.
const OPERATIONS_MAX: &str = "1000000000";
/// Time limit beyond the measured seconds, for the load and the warm-up.
const CALL_LIMIT: Duration = Duration::from_secs(300);
/// Last lines of a failed program that are shown.
const LAST_LINES: usize = 5;

#[derive(Debug)]
pub(crate) struct Options {
    /// Appends the line and writes the page.
    pub note: bool,
    /// Writes the page from the existing lines and measures nothing.
    pub bless: bool,
    /// Measures the development build.
    pub is_dev: bool,
    pub seconds: u64,
    /// Rounds of puts with and without a stream of all writes, instead of the line; 0 for the line.
    pub followed: u64,
}

impl Options {
    fn from(mut flags: Flags) -> Result<Self> {
        let (note, bless) = (flags.switch("--note"), flags.switch("--bless"));
        let (is_dev, seconds) = (flags.switch("--dev"), flags.number("--seconds", SECONDS)?);
        let followed = flags.number("--followed", 0)?;
        flags.end()?;
        ensure!(seconds > 0, "--seconds must be at least 1");
        ensure!(
            !(note && is_dev),
            "the cost of a development build is meaningless: --note needs a release build"
        );
        Ok(Self { note, bless, is_dev, seconds, followed })
    }
}

/// Measures both sizes. With `--note` it records them, without it first checks that the page is
/// current.
pub(crate) fn run(workspace: &Workspace, flags: Flags) -> Result<()> {
    let options = &Options::from(flags)?;
    let root = &workspace.root;
    if options.bless {
        return write_page(root);
    }
    if !options.note {
        check_page(root)?;
    }
    let (commit, date) = commit(root);
    ensure!(
        !options.note || commit.is_some(),
        "git knows no commit for the line: run --note in a repository"
    );
    let build = |program| programs::build(workspace, program, !options.is_dev);
    let (stele, lab) = (build(STELE)?, build(LAB)?);
    if options.followed > 0 {
        return VALUE_BYTES
            .into_iter()
            .try_for_each(|bytes| followed::run(workspace, (&stele, &lab), options, bytes));
    }
    let measure = |bytes| measure(workspace, (&stele, &lab), options, bytes);
    let sizes = VALUE_BYTES.map(measure);
    let line = Line {
        commit: commit.unwrap_or_else(|| "unknown".to_owned()),
        date,
        machine: machine(&workspace.target)?,
        configuration: configuration(options),
        sizes: sizes.into_iter().collect::<Result<_>>()?,
    };
    print!("{}", page::table(std::slice::from_ref(&line)));
    if options.is_dev {
        println!("a development build: these numbers are meaningless");
    }
    let text = serde_json::to_string(&line)?;
    println!("{text}");
    if options.note {
        let path = root.join(LINES);
        let file = File::options().create(true).append(true).open(path);
        writeln!(file.context(LINES)?, "{text}").context(LINES)?;
        write_page(root)?;
    }
    Ok(())
}

fn page(root: &Path) -> Result<String> {
    let text = match fs::read_to_string(root.join(LINES)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        text => text.context(LINES)?,
    };
    Ok(page::page(&line::lines(&text, LINES)?, LINES))
}

fn write_page(root: &Path) -> Result<()> {
    fs::write(root.join(PAGE), page(root)?).with_context(|| format!("writing {PAGE}"))
}

/// Fails if the page differs from the lines.
fn check_page(root: &Path) -> Result<()> {
    let now = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    ensure!(now == page(root)?, "{PAGE} differs from {LINES}: run `{BLESS}`");
    Ok(())
}

fn measure(
    workspace: &Workspace,
    programs: (&Path, &Path),
    options: &Options,
    value_bytes: u64,
) -> Result<Size> {
    println!("{value_bytes} B: {NODES} nodes, {} s", options.seconds);
    let round = round(workspace, programs, options, value_bytes, false)?;
    Size::of(&round, value_bytes, NODES).with_context(|| format!("reading {round}"))
}

/// Runs the puts of one size on three new nodes, so that no garbage of another size is collected meanwhile.
fn round(
    workspace: &Workspace,
    (stele, lab): (&Path, &Path),
    options: &Options,
    value_bytes: u64,
    is_followed: bool,
) -> Result<Value> {
    let work = tempfile::tempdir_in(&workspace.target)?;
    let words = load(&configuration(options), value_bytes);
    let servers = servers::Options { nodes: NODES, ..servers::Options::default() };
    let printed = with_servers(stele, work.path(), &servers, |servers| {
        let watch = is_followed.then(|| Watch::start(stele, servers)).transpose()?;
        let limit = CALL_LIMIT + Duration::from_secs(options.seconds);
        let printed = call(peers::load(lab, servers).args(words), limit)?;
        watch.map_or(Ok(()), Watch::stop)?;
        Ok(printed)
    })?;
    let object = |line: &str| serde_json::from_str::<Value>(line).ok();
    let round = printed.lines().filter_map(object).find(|line| line["round"] == 1);
    round.with_context(|| format!("no figures: {}", last_lines(&printed)))
}

fn call(command: &mut Command, limit: Duration) -> Result<String> {
    match run_limited(command, limit)? {
        (Ended::Exited(true), printed) => Ok(printed),
        (ended, printed) => bail!("{command:?}: {ended:?}: {}", last_lines(&printed)),
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join(" / ")
}

fn configuration(options: &Options) -> Configuration {
    Configuration {
        build: if options.is_dev { "development" } else { "release" }.to_owned(),
        nodes: NODES as u64,
        clients: CLIENTS,
        records_bytes: if options.is_dev { DEV_RECORDS_BYTES } else { RECORDS_BYTES },
        warm_up_s: if options.is_dev { 0 } else { WARM_UP_SECONDS },
        seconds: options.seconds,
    }
}

fn load(configuration: &Configuration, value_bytes: u64) -> Vec<String> {
    let records = configuration.records_bytes / value_bytes;
    let words = format!(
        "--workload update --distribution uniform --quiet --operations {OPERATIONS_MAX} \
         --value-bytes {value_bytes} --records {records} --clients {} --warm-up {} --duration {}",
        configuration.clients, configuration.warm_up_s, configuration.seconds
    );
    words.split(' ').map(str::to_owned).collect()
}

/// Returns the commit and its day. The commit ends in `-dirty` if the measured files differ from
/// it.
fn commit(root: &Path) -> (Option<String>, String) {
    let git = |words: &[&str]| {
        let output = Command::new("git").args(words).current_dir(root).output().ok();
        output.filter(|it| it.status.success())
    };
    let text_of =
        |words: &[&str]| git(words).map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned());
    let commit = text_of(&["log", "-1", "--format=%h"]).map(|commit| {
        // Recorded lines do not change what is measured.
        let without = [format!(":(exclude){LINES}"), format!(":(exclude){PAGE}")];
        let same = git(&["diff", "--quiet", "HEAD", "--", ".", &without[0], &without[1]]);
        format!("{commit}{}", if same.is_some() { "" } else { "-dirty" })
    });
    (commit, text_of(&["log", "-1", "--format=%cs"]).unwrap_or_else(|| "unknown".to_owned()))
}

fn machine(folder: &Path) -> Result<Machine> {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let mut df = Command::new("df");
    let kind = df.arg("--output=fstype").arg(folder).output().context("starting df")?;
    ensure!(kind.status.success(), "{df:?}: {}", String::from_utf8_lossy(&kind.stderr));
    let kind = String::from_utf8_lossy(&kind.stdout);
    Ok(Machine {
        processor: model.map_or("unknown", |(_, model)| model.trim()).to_owned(),
        cores: std::thread::available_parallelism().map_or(0, usize::from) as u64,
        file_system: kind.lines().last().unwrap_or_default().trim().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_not_what_the_lines_say_is_refused() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["lab/results", "docs"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let refused = || check_page(root.path()).unwrap_err().to_string();
        assert!(refused().contains(BLESS), "{}", refused());
        write_page(root.path()).unwrap();
        check_page(root.path()).unwrap();
        let line = serde_json::to_string(&line::sample("abc1234")).unwrap();
        fs::write(root.path().join(LINES), format!("{line}\n")).unwrap();
        assert!(refused().contains(BLESS), "{}", refused());
        write_page(root.path()).unwrap();
        check_page(root.path()).unwrap();
        fs::write(root.path().join(LINES), format!("{line}\n{{}}\n")).unwrap();
        let error = format!("{:#}", check_page(root.path()).unwrap_err());
        assert!(error.starts_with("lab/results/cost-per-put.jsonl:2: "), "{error}");
    }

    #[test]
    fn records_are_so_many_that_their_values_have_the_bytes() {
        let options = Options { note: false, bless: false, is_dev: false, seconds: 2, followed: 0 };
        let words = load(&configuration(&options), 16 << 10);
        let after = |name: &str| {
            let at = words.iter().position(|word| word == name).unwrap();
            words[at + 1].as_str()
        };
        assert_eq!((after("--records"), after("--duration")), ("2048", "2"));
    }
}
