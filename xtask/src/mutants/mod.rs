//! Deliberate bugs against the tests. Every bug in the table must make its test fail: no test
//! covers an invariant if its bug is not caught.

mod remarks;
mod selection;
mod suite;
mod table;
mod tokens;
mod tree;

pub(crate) use remarks::{BEGIN, expand, remarks};
pub(crate) use table::{Mutant, Table};
pub(crate) use tree::{Tree, switch_of};

use crate::process::{Ended, in_parallel};
use crate::workspace::Workspace;
use anyhow::{Result, bail, ensure};
use selection::Change;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use suite::{Outcome, Suite, Tests};

/// Lower bound of the time limit with a mutant: a slow machine must not count as a caught bug.
const LIMIT_MIN: Duration = Duration::from_secs(5);
/// Multiple of the time without a mutant after which a test counts as hanging.
const LIMIT_FACTOR: u32 = 10;
/// Time limit without a mutant.
const SOUND_LIMIT: Duration = Duration::from_secs(600);
/// Last lines shown of a test that fails without a mutant.
const SHOWN_LINES: usize = 30;

#[derive(Debug, Default)]
pub(crate) struct Options {
    /// Name of a bug or its beginning.
    pub only: Option<String>,
    /// Prints the table and runs nothing.
    pub list: bool,
    /// Plants only bugs of code that changed lately, and a part of the others.
    pub recent: bool,
    /// All tests have just passed: none needs a run without a bug first.
    pub tested: bool,
}

/// Runs the table; fails unless every chosen bug is caught.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let table = Table::load(workspace)?;
    let mut chosen = table.chosen(options.only.as_deref());
    if options.recent {
        chosen = recent(workspace, chosen)?;
    }
    ensure!(!chosen.is_empty(), "no deliberate bug is chosen");
    let width = chosen.iter().map(|mutant| mutant.name.len()).max().unwrap_or(0);
    if options.list {
        for mutant in &chosen {
            let Mutant { name, package, test, breaks, .. } = mutant;
            println!("{name:width$}  {package} {test}: {breaks}");
        }
        println!("{} deliberate bugs", chosen.len());
        return Ok(());
    }
    let packages: BTreeSet<&str> = chosen.iter().map(|mutant| mutant.package.as_str()).collect();
    let suite = Suite::build(&Tree::expanded(workspace)?, &packages)?;
    let mut by_test: BTreeMap<(&str, &str), Vec<&Mutant>> = BTreeMap::new();
    for mutant in &chosen {
        by_test.entry((&mutant.package, &mutant.test)).or_default().push(mutant);
    }
    let missed = in_parallel(by_test.into_iter(), |((package, test), mutants)| {
        let tests = suite.matching(package, test);
        ensure!(!tests.is_empty(), "{}: no test of {package} matches `{test}`", mutants[0].name);
        judge(&tests, &mutants, options.tested, LIMIT_MIN, &|mutant, how| {
            println!("{:width$}  {how}  {}", mutant.name, mutant.breaks);
        })
    })?;
    let missed = missed.concat();
    println!("mutants: caught {}/{}", chosen.len() - missed.len(), chosen.len());
    // The error names them, because it is the last of all that CI prints.
    ensure!(missed.is_empty(), "not caught: {}", missed.join(" "));
    Ok(())
}

/// Returns those of `mutants` that CI plants at this commit; all if git cannot tell what changed.
fn recent<'a>(workspace: &Workspace, mutants: Vec<&'a Mutant>) -> Result<Vec<&'a Mutant>> {
    let change = match Change::read(workspace) {
        Ok(change) => change,
        Err(error) => {
            println!("mutants: all, because git does not say what changed: {error:#}");
            return Ok(mutants);
        }
    };
    let chosen = change.select(&mutants, &selection::places(workspace)?);
    println!("{}", change.text(chosen.len(), mutants.len()));
    Ok(chosen)
}

/// Runs the tests that all of `mutants` share with each of them, for at least `limit_min` if they hang.
/// Returns the names of those that passed them.
fn judge(
    tests: &[Tests<'_>],
    mutants: &[&Mutant],
    tested: bool,
    limit_min: Duration,
    show: &dyn Fn(&Mutant, &str),
) -> Result<Vec<String>> {
    let Some(first) = mutants.first() else { return Ok(Vec::new()) };
    let limit = |sound_took: Option<Duration>| limit(sound_took, limit_min);
    let mut sound_took = if tested { None } else { Some(sound(tests, first)?) };
    let mut missed = Vec::new();
    for mutant in mutants {
        let tried = limit(sound_took);
        let mut outcome = suite::run(tests, Some(&mutant.name), tried)?;
        // Until its time without a bug is known, a test past the shortest limit may only be slow.
        if outcome.ended == Ended::TimedOut && sound_took.is_none() {
            sound_took = Some(sound(tests, first)?);
            if limit(sound_took) > tried {
                outcome = suite::run(tests, Some(&mutant.name), limit(sound_took))?;
            }
        }
        let (is_caught, how) = verdict(&outcome);
        show(mutant, &how);
        if !is_caught {
            missed.push(mutant.name.clone());
        }
    }
    Ok(missed)
}

/// Returns the time after which a test with a mutant counts as hanging, from its time without one.
fn limit(sound_took: Option<Duration>, limit_min: Duration) -> Duration {
    limit_min.max(sound_took.unwrap_or_default() * LIMIT_FACTOR)
}

/// Checks that the tests run and pass without a mutant: otherwise their failure would prove nothing.
/// Returns the time that they took.
fn sound(tests: &[Tests<'_>], mutant: &Mutant) -> Result<Duration> {
    let outcome = suite::run(tests, None, SOUND_LIMIT)?;
    let (package, test) = (&mutant.package, &mutant.test);
    if outcome.ended != Ended::Exited(true) {
        let lines: Vec<&str> = outcome.printed.lines().collect();
        let tail = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        bail!("{package} {test} fails without a deliberate bug:\n{tail}");
    }
    ensure!(outcome.passed > 0, "{}: no test of {package} matches `{test}`", mutant.name);
    Ok(outcome.took)
}

fn verdict(outcome: &Outcome) -> (bool, String) {
    let seconds = outcome.took.as_secs_f64();
    match outcome.ended {
        Ended::Exited(true) => (false, format!("NOT CAUGHT     {seconds:6.1} s")),
        Ended::Exited(false) => (true, format!("caught         {seconds:6.1} s")),
        Ended::TimedOut => (true, format!("caught (hangs) {seconds:6.1} s")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::run_shown;
    use std::process::Command;
    use std::time::Instant;

    /// A test program that takes a while, passes without a bug, and obeys the name of its bug.
    const PROGRAM: &str = "#!/bin/sh
[ \"$1\" = --list ] && echo 'a::b: test' && exit 0
sleep 0.1
case \"$STELE_MUTANT\" in
    found) exit 1 ;;
    hangs) sleep 60 ;;
esac
echo \"test result: ok. 1 passed; 0 failed\"
";

    #[test]
    fn a_hanging_test_ends_at_ten_times_its_own_time_and_a_slow_one_is_no_catch() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        // Written by another process: a file that this one has open for writing cannot be run.
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "printf %s \"$1\" > \"$2\" && chmod 755 \"$2\"", "sh", PROGRAM])
            .arg(&path);
        run_shown(&mut shell).unwrap();
        let suite = Suite::of(&path, "p").unwrap();
        let entry = |name| {
            format!("[[mutant]]\nname = '{name}'\npackage = 'p'\ntest = 't'\nbreaks = 'b'\n")
        };
        let table = Table::parse(&["found", "slow", "hangs"].map(entry).concat()).unwrap();
        let mutants: Vec<&Mutant> = table.mutants.iter().collect();
        let tests = suite.matching("p", "b");
        assert_eq!(tests.len(), 1);
        for tested in [false, true] {
            let started = Instant::now();
            let shown = std::cell::RefCell::new(Vec::new());
            let show = |_: &Mutant, how: &str| shown.borrow_mut().push(how.to_owned());
            let limit_min = Duration::from_millis(20);
            let missed = judge(&tests, &mutants, tested, limit_min, &show).unwrap();
            assert_eq!(missed, ["slow"]);
            assert!(shown.borrow()[2].contains("hangs"), "{shown:?}");
            assert!(started.elapsed() < Duration::from_secs(50));
        }
    }

    #[test]
    fn a_slow_machine_has_time_for_a_fast_test() {
        assert_eq!(limit(None, LIMIT_MIN), LIMIT_MIN);
        assert_eq!(limit(Some(Duration::from_millis(20)), LIMIT_MIN), LIMIT_MIN);
        assert_eq!(limit(Some(Duration::from_secs(3)), LIMIT_MIN), Duration::from_secs(30));
    }

    #[test]
    fn only_a_failure_or_a_hang_is_a_catch() {
        let of = |ended| Outcome {
            ended,
            passed: 1,
            took: Duration::from_secs(1),
            printed: String::new(),
        };
        assert!(!verdict(&of(Ended::Exited(true))).0);
        assert!(verdict(&of(Ended::Exited(false))).0);
        let (caught, how) = verdict(&of(Ended::TimedOut));
        assert!(caught && how.contains("hangs"));
    }
}
