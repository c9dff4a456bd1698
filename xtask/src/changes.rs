//! What the last commits changed, for checks of which CI runs those of changed sources and a part of the others.

use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

pub(crate) const COMMITS: usize = 20;
/// One of so many checks of unchanged sources is chosen.
pub(crate) const ONE_OF: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct Changes {
    commit: String,
    /// Paths from the workspace's root.
    files: Vec<String>,
}

impl Changes {
    #[cfg(test)]
    pub(crate) fn new(commit: &str, files: &[&str]) -> Self {
        let files = files.iter().map(|&file| file.to_owned()).collect();
        Self { commit: commit.to_owned(), files }
    }

    /// Reads the last commits and the files that no commit has yet. The oldest commit of a shallow clone
    /// counts as a change of all files.
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let git = |arguments: &[&str]| git(&workspace.root, arguments);
        let count = COMMITS.to_string();
        let log = ["log", "--first-parent", "-m", "--name-only", "--format=", "-n", &count];
        let files = [
            git(&log)?,
            git(&["diff", "--name-only", "HEAD"])?,
            git(&["ls-files", "--others", "--exclude-standard"])?,
        ]
        .concat();
        let files = files.lines().filter(|file| !file.is_empty()).map(str::to_owned).collect();
        Ok(Self { commit: git(&["rev-parse", "HEAD"])?.trim().to_owned(), files })
    }

    pub(crate) fn commit(&self) -> &str {
        &self.commit
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(String::as_str)
    }

    /// Returns whether the last commit chooses the check at this place of all checks.
    pub(crate) fn is_turn(&self, place: usize) -> bool {
        const DIGITS: usize = 8;
        let start = self.commit.get(..DIGITS).unwrap_or_default();
        let turn = u32::from_str_radix(start, 16).unwrap_or_default() as usize % ONE_OF;
        place % ONE_OF == turn
    }
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output();
    let output = output.context("starting git")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {}", arguments.join(" "), errors.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn commits_choose_all_tenths() {
        let mut all = BTreeSet::new();
        for commit in 0..10 {
            let changes = Changes::new(&format!("{commit:08x}ffff"), &[]);
            let some: Vec<usize> = (0..100).filter(|place| changes.is_turn(*place)).collect();
            assert_eq!(some.len(), 10);
            all.extend(some);
        }
        assert_eq!(all.len(), 100);
        let without = Changes::default();
        assert_eq!((0..100).filter(|place| without.is_turn(*place)).count(), 10);
    }

    #[test]
    fn the_last_commits_are_read() {
        let changes = Changes::read(&Workspace::load().unwrap()).unwrap();
        assert_eq!(changes.commit().len(), 40);
        assert!(changes.files().next().is_some());
    }
}
