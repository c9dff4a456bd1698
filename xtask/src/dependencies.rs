//! Licenses, advisories and sources of all dependencies, by `cargo deny` and `deny.toml`.

use crate::process::{Ended, run_limited};
use crate::workspace::{Workspace, cargo};
use anyhow::{Result, bail, ensure};
use serde::Deserialize;
use std::time::Duration;

/// Time for the download of the advisories and the checks. They usually take less than a minute.
const LIMIT: Duration = Duration::from_secs(10 * 60);

/// The part of `deny.toml` of which this program checks the rules.
#[derive(Debug, Deserialize)]
struct Config {
    advisories: Advisories,
}

#[derive(Debug, Deserialize)]
struct Advisories {
    #[serde(default)]
    ignore: Vec<Ignored>,
}

#[derive(Debug, Deserialize)]
struct Ignored {
    id: String,
    reason: String,
}

/// Checks the licenses and the sources of the dependencies. Needs no network once they are downloaded.
pub(crate) fn licenses(workspace: &Workspace) -> Result<()> {
    run(workspace, &["licenses", "sources"])
}

/// Checks the dependencies against published advisories, which are downloaded every time: without
/// them the check fails.
pub(crate) fn advisories(workspace: &Workspace) -> Result<()> {
    check_reasons(&std::fs::read_to_string(workspace.root.join("deny.toml"))?)?;
    run(workspace, &["advisories"])
}

fn run(workspace: &Workspace, checks: &[&str]) -> Result<()> {
    let mut deny = cargo();
    deny.args(["deny", "--color", "never", "--locked", "check", "--hide-inclusion-graph"]);
    deny.args(checks).current_dir(&workspace.root);
    let (ended, printed) = run_limited(&mut deny, LIMIT)?;
    print!("{printed}");
    verdict(checks, &ended, &printed)
}

/// Fails for an ignored advisory without a reason.
fn check_reasons(config: &str) -> Result<()> {
    let Config { advisories } = toml::from_str(config)?;
    for Ignored { id, reason } in &advisories.ignore {
        ensure!(reason.split_whitespace().count() >= 5, "deny.toml gives no reason for {id}");
    }
    Ok(())
}

/// Succeeds only if every check says that it passed: one that did not run says nothing.
fn verdict(checks: &[&str], ended: &Ended, printed: &str) -> Result<()> {
    if *ended == Ended::TimedOut {
        bail!("`cargo deny` did not end within {} s", LIMIT.as_secs());
    }
    if printed.contains("failed to fetch") {
        bail!(
            "the advisories could not be downloaded, so nothing was checked ({}); where there is no \
             network, run `cargo xtask ci --without advisories`",
            last(printed)
        );
    }
    let has_passed = |check: &str| printed.contains(&format!("{check} ok"));
    let not_passed: Vec<&str> = checks.iter().copied().filter(|it| !has_passed(it)).collect();
    ensure!(not_passed.is_empty(), "not passed: {}", not_passed.join(", "));
    ensure!(*ended == Ended::Exited(true), "`cargo deny` failed: {}", last(printed));
    Ok(())
}

fn last(printed: &str) -> &str {
    printed.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it printed nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSED: &str = "warning[duplicate]: found 2\n\nadvisories ok, licenses ok, sources ok\n";

    #[test]
    fn only_checks_that_say_so_have_passed() {
        let checks = ["advisories", "licenses", "sources"];
        verdict(&checks, &Ended::Exited(true), PASSED).unwrap();
        let failed =
            |ended, printed: &str| verdict(&checks, &ended, printed).unwrap_err().to_string();
        let found = PASSED.replace("licenses ok", "licenses FAILED");
        assert_eq!(failed(Ended::Exited(false), &found), "not passed: licenses");
        let skipped = "licenses ok, sources ok\n";
        assert_eq!(failed(Ended::Exited(true), skipped), "not passed: advisories");
        assert!(failed(Ended::Exited(false), PASSED).contains("failed"));
        assert!(failed(Ended::TimedOut, PASSED).contains("did not end"));
        assert!(failed(Ended::Exited(true), "").contains("advisories, licenses, sources"));
    }

    #[test]
    fn advisories_that_cannot_be_downloaded_fail_the_check() {
        let printed = "2026-01-01 00:00:00 [ERROR] failed to fetch advisory database x: no route\n";
        for ended in [Ended::Exited(false), Ended::Exited(true)] {
            let text = verdict(&["advisories"], &ended, printed).unwrap_err().to_string();
            assert!(text.contains("nothing was checked") && text.contains("no route"), "{text}");
        }
    }

    #[test]
    fn every_exception_of_the_repository_has_a_reason() {
        let workspace = Workspace::load().unwrap();
        let config = std::fs::read_to_string(workspace.root.join("deny.toml")).unwrap();
        check_reasons(&config).unwrap();
        let silent = "[advisories]\nignore = [{ id = 'RUSTSEC-1', reason = 'old' }]\n";
        assert!(check_reasons(silent).unwrap_err().to_string().contains("RUSTSEC-1"));
        assert!(check_reasons("[advisories]\nignore = ['RUSTSEC-1']\n").is_err());
    }
}
