//! Runs the commands in the documents: a command that fails is an error of its document.

use crate::process::{Ended, run_limited};
use crate::programs::{self, STELE};
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Documents, by their paths from the workspace's root.
const DOCUMENTS: [&str; 8] = [
    "README.md",
    "ARCHITECTURE.md",
    "docs/backup.md",
    "docs/http.md",
    "docs/redis.md",
    "docs/security.md",
    "docs/upgrade.md",
    "docs/watch.md",
];
const LIMIT: Duration = Duration::from_secs(300);
/// Commands that a block may contain if it is not run: they download, build and test the project.
const INSTALL: [&str; 4] = ["cargo ", "git clone ", "cd ", "rustup "];

#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    is_run: bool,
    text: String,
}

/// Runs every block of every document, in one folder for each document, with the built `stele`
/// first on PATH.
pub(crate) fn run(workspace: &Workspace, release: bool) -> Result<()> {
    let binary = programs::build(workspace, STELE, release)?;
    let folder = binary.parent().context("the binary has no parent folder")?;
    let mut count = 0;
    for document in DOCUMENTS {
        let path = workspace.root.join(document);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {document}"))?;
        let blocks = blocks(&text).with_context(|| document.to_owned())?;
        // Not in /tmp, which may be small: nodes keep space in reserve.
        let place = tempfile::tempdir_in(&workspace.target)?;
        for block in blocks.iter().filter(|block| block.is_run) {
            run_block(block, place.path(), folder)
                .with_context(|| format!("{document}:{}", block.line))?;
            println!("{document}:{} ok", block.line);
            count += 1;
        }
    }
    ensure!(count > 0, "the documents show no command");
    println!("docs: {count} blocks run");
    Ok(())
}

fn run_block(block: &Block, place: &Path, binaries: &Path) -> Result<()> {
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-e", "-u", "-c", &block.text])
        .current_dir(place)
        .env("TMPDIR", place)
        .env("PATH", format!("{}:{path}", binaries.display()));
    let (ended, printed) = run_limited(&mut shell, LIMIT)?;
    if ended != Ended::Exited(true) {
        bail!("{ended:?} from\n{}\nwhich printed\n{printed}", block.text);
    }
    Ok(())
}

/// Returns the blocks of a document. Fails on a block that is marked as not run and contains other
/// commands than [`INSTALL`].
fn blocks(text: &str) -> Result<Vec<Block>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (&mut open, line.trim_end()) {
            (None, "```sh" | "```sh no-run") => {
                let is_run = !line.contains("no-run");
                open = Some(Block { line: number + 1, is_run, text: String::new() });
            }
            (None, _) => {}
            (Some(_), "```") => blocks.extend(open.take()),
            (Some(block), line) => {
                let installs = INSTALL.iter().any(|start| line.starts_with(start));
                ensure!(block.is_run || installs, "line {}: `{line}` must be run", number + 1);
                block.text.push_str(line);
                block.text.push('\n');
            }
        }
    }
    ensure!(open.is_none(), "a block has no end");
    Ok(blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_with_their_line() {
        let text = "a\n```sh\nstele put\nstele get\n```\n```rust\nx\n```\n```sh no-run\ncargo build\n```\n";
        let found = blocks(text).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            Block { line: 2, is_run: true, text: "stele put\nstele get\n".into() }
        );
        assert!(!found[1].is_run);
    }

    #[test]
    fn only_installation_may_be_left_out() {
        assert!(blocks("```sh no-run\nstele get x\n```\n").is_err());
        assert!(blocks("```sh\nstele get x\n").is_err());
    }

    #[test]
    fn a_failing_block_fails() {
        let place = tempfile::tempdir().unwrap();
        let block = |text: &str| Block { line: 1, is_run: true, text: text.into() };
        run_block(&block("echo a > b\ncat b\n"), place.path(), place.path()).unwrap();
        assert!(run_block(&block("false\ntrue\n"), place.path(), place.path()).is_err());
    }
}
