//! Deliberate bugs that CI plants: those of code that changed lately, and a part of the others.

use super::remarks::remarks;
use super::table::Mutant;
use crate::changes::{COMMITS, Changes, ONE_OF};
use crate::workspace::{Package, Workspace};
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

#[derive(Debug, Default)]
pub(super) struct Change {
    changes: Changes,
    packages: BTreeSet<String>,
}

impl Change {
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let changes = Changes::read(workspace)?;
        let folders = folders(workspace);
        let packages = changes.files().filter_map(|file| package_of(file, &folders)).collect();
        Ok(Self { changes, packages })
    }

    /// Returns the bugs with their code or test in a changed package, and the part of the others that the
    /// commit's hash chooses. `places` are the packages of the bugs' code.
    pub(super) fn select<'a>(
        &self,
        mutants: &[&'a Mutant],
        places: &BTreeMap<String, String>,
    ) -> Vec<&'a Mutant> {
        let is_changed = |package: &String| self.packages.contains(package);
        let is_chosen = |at: usize, mutant: &Mutant| {
            let is_of_code = places.get(&mutant.name).is_some_and(is_changed);
            is_of_code || is_changed(&mutant.package) || self.changes.is_turn(at)
        };
        let all = mutants.iter().enumerate();
        all.filter(|(at, mutant)| is_chosen(*at, mutant)).map(|(_, mutant)| *mutant).collect()
    }

    pub(super) fn text(&self, chosen: usize, all: usize) -> String {
        let packages: Vec<&str> = self.packages.iter().map(String::as_str).collect();
        format!(
            "mutants: {chosen} of {all}: those of packages that the last {COMMITS} commits changed ({}), and one of \
             {ONE_OF} others, chosen by commit {}; `cargo xtask mutants` plants all",
            packages.join(", "),
            self.changes.commit()
        )
    }
}

pub(super) fn places(workspace: &Workspace) -> Result<BTreeMap<String, String>> {
    let mut places = BTreeMap::new();
    for (folder, package) in folders(workspace) {
        let mut files = Vec::new();
        rust_files(&workspace.root.join(&folder).join("src"), &mut files)?;
        for text in files {
            let names = remarks(&text).map(|remark| (remark.name.to_owned(), package.clone()));
            places.extend(names);
        }
    }
    Ok(places)
}

fn rust_files(folder: &Path, texts: &mut Vec<String>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            rust_files(&path, texts)?;
        } else if path.extension().is_some_and(|it| it == "rs") {
            texts.push(std::fs::read_to_string(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(())
}

/// Returns the folders of all packages, from the workspace's root, with the packages' names.
fn folders(workspace: &Workspace) -> Vec<(String, String)> {
    let folder = |package: &Package| {
        let below = package.manifest_path.parent()?.strip_prefix(&workspace.root).ok()?;
        Some((below.to_string_lossy().into_owned(), package.name.clone()))
    };
    workspace.packages.iter().filter_map(folder).collect()
}

fn package_of(file: &str, folders: &[(String, String)]) -> Option<String> {
    let is_below = |folder: &str| file.strip_prefix(folder).is_some_and(|it| it.starts_with('/'));
    folders.iter().find(|(folder, _)| is_below(folder)).map(|(_, package)| package.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutants::Table;

    fn table() -> Table {
        let entry = |number: usize| {
            let package = if number < 50 { "stele-log" } else { "stele-gc" };
            format!(
                "[[mutant]]\nname = 'm{number}'\npackage = '{package}'\ntest = 't'\nbreaks = 'b'\n"
            )
        };
        Table::parse(&(0..100).map(entry).collect::<String>()).unwrap()
    }

    fn chosen(commit: &str, packages: &[&str]) -> Vec<String> {
        let table = table();
        let all: Vec<&Mutant> = table.mutants.iter().collect();
        let packages = packages.iter().map(|&it| it.to_owned()).collect();
        let places = [("m7".to_owned(), "stele-types".to_owned())].into();
        let change = Change { changes: Changes::new(commit, &[]), packages };
        change.select(&all, &places).into_iter().map(|it| it.name.clone()).collect()
    }

    #[test]
    fn all_bugs_of_changed_packages_and_a_tenth_of_the_others_are_chosen() {
        let of_log = chosen("0000000a", &["stele-log"]);
        assert_eq!(of_log.len(), 50 + 5);
        assert!(of_log.contains(&"m49".to_owned()) && of_log.contains(&"m50".to_owned()));
        assert!(!of_log.contains(&"m51".to_owned()));
        assert_eq!(chosen("0000000a", &["stele-log", "stele-gc"]).len(), 100);
        let by_code = chosen("0000000a", &["stele-types"]);
        assert_eq!(by_code.len(), 10 + 1);
        assert!(by_code.contains(&"m7".to_owned()));
    }

    #[test]
    fn a_file_belongs_to_the_package_of_its_folder() {
        let folders = [("crates/log".to_owned(), "stele-log".to_owned())];
        assert_eq!(package_of("crates/log/src/a.rs", &folders).as_deref(), Some("stele-log"));
        assert_eq!(package_of("crates/logs/src/a.rs", &folders), None);
        assert_eq!(package_of("Cargo.toml", &folders), None);
    }

    #[test]
    fn the_places_of_all_bugs_and_the_last_commits_are_read() {
        let workspace = Workspace::load().unwrap();
        let places = places(&workspace).unwrap();
        let table = Table::load(&workspace).unwrap();
        for mutant in &table.mutants {
            assert!(places.contains_key(&mutant.name), "{}", mutant.name);
        }
    }
}
