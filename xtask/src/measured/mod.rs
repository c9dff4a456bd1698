//! What was measured, kept in the repository: `figures` and `peers` measure, this keeps their lines and
//! makes one page of them, which begins with where Stele is behind.

mod peers;

use crate::figures;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

const FIGURES: &str = "bench/results/figures.jsonl";
const PEERS: &str = "bench/results/peers.jsonl";
const PAGE: &str = "docs/measured.md";
const BLESS: &str = "cargo xtask measured --bless";

/// What becomes of what was measured.
#[derive(Debug, Default)]
pub struct Options {
    /// `figures.jsonl` of `figures`, or what `peers` printed; between commas.
    pub add: Option<String>,
    /// Writes the page instead of checking it.
    pub bless: bool,
}

/// Adds files, if any, and writes the page; without them checks that it is what the lines say.
pub fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let root = &workspace.root;
    for file in options.add.iter().flat_map(|files| files.split(',')) {
        add(root, Path::new(file)).with_context(|| format!("adding {file}"))?;
    }
    let page = page(root)?;
    if options.bless || options.add.is_some() {
        return fs::write(root.join(PAGE), page).with_context(|| format!("writing {PAGE}"));
    }
    let now = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    ensure!(now == page, "{PAGE} is not what {FIGURES} and {PEERS} say: run `{BLESS}`");
    Ok(())
}

fn add(root: &Path, file: &Path) -> Result<()> {
    let text = fs::read_to_string(file)?;
    let said = |words: &[&str]| -> Result<String> {
        let output = Command::new("git").args(words).current_dir(root).output()?;
        ensure!(output.status.success(), "git {words:?} failed");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let date = said(&["log", "-1", "--format=%cs"])?;
    if text.starts_with("{\"left_out\"") || text.starts_with("{\"setup\"") {
        let mut lines: Vec<figures::Kept> = kept(root, FIGURES)?;
        lines.extend(figures::read_kept(root, &text, &date)?);
        return keep(root, FIGURES, &figures::newest_kept(lines));
    }
    let mut lines: Vec<peers::Kept> = kept(root, PEERS)?;
    // What was added before is no change of what was measured.
    let without = [FIGURES, PEERS, PAGE].map(|file| format!(":(exclude){file}"));
    let mut changes = vec!["status", "--porcelain", "--untracked-files=no", "--", "."];
    changes.extend(without.iter().map(String::as_str));
    let dirty = if said(&changes)?.is_empty() { "" } else { "-dirty" };
    let commit = format!("{}{dirty}", said(&["describe", "--always"])?);
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
    let (behind_papers, tables) = figures::kept_tables(root, &figures)?;
    let mut text = format!(
        "<!-- Made by `cargo xtask measured --add FILES` from {FIGURES} and {PEERS}; CI checks that it is what \
         they say. -->\n# Measured\n\n\
         Each number is the median of the rounds, all systems in turn in each; a ratio is the median of the \
         rounds' ratios. Every answer waits for a quorum's syncs. Everything ran on one small machine, \
         on which other machines' work is felt: numbers of different runs can't be compared.\n\n\
         ## Where Stele is behind\n\n"
    );
    let behind = peers::behind(&peers).into_iter().chain(behind_papers);
    behind.for_each(|line| {
        let _ = writeln!(text, "- {line}");
    });
    text.push_str(
        "\n## Beside other servers\n\nProcesses on loopback, one load for all (`cargo xtask peers`). \
         *disk*: what as many writers as there are nodes got from it before and after, with a sync for \
         each MiB.\n\n",
    );
    text.push_str(&peers::table(&peers));
    text.push_str(
        "\nBelow: other designs on the same consensus, three replicas in one process (`cargo xtask \
         figures`; [what they are](../baselines/README.md)).\n",
    );
    text.push_str(&tables);
    Ok(text)
}
