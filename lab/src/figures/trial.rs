//! Trials: a call of a measuring program that fails is made once more, and both failures are kept.

use super::measure::{Measurement, Measuring};
use super::test_bed;
use anyhow::Result;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt;
use std::io::Write;

/// Calls of a trial, at most: what fails twice stays missing.
const CALLS_MAX: usize = 2;
/// Series of a call that measures all series of its run.
pub(super) const SERVERS: &str = "servers";

/// One call for a series at a point in a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial<'a> {
    pub run: &'a str,
    pub point: &'a str,
    pub series: &'a str,
    pub round: u64,
}

/// A call that failed, or one phase of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub run: String,
    pub point: String,
    pub series: String,
    /// The phase that failed; `None` if the whole call failed.
    pub phase: Option<String>,
    pub round: u64,
    /// Number of the call for this trial, from 1.
    pub call: usize,
    pub reason: String,
}

impl Failure {
    /// Returns whether a number of this series is missing because of it.
    pub(super) fn explains(&self, run: &str, point: &str, series: &str, phase: &str) -> bool {
        (self.run == run && self.point == point)
            && (self.series == series || self.series == SERVERS)
            && self.phase.as_ref().is_none_or(|it| it == phase)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, point, series, phase, round, call, reason } = self;
        let phase = phase.as_ref().map(|phase| format!(", {phase}")).unwrap_or_default();
        write!(f, "{run}, {point}, {series}{phase}, round {}, call {call}: {reason}", round + 1)
    }
}

impl Measuring<'_> {
    /// Makes a call, and once more if it or one of its phases fails. The second call counts only for
    /// the phases that failed in the first one.
    pub(super) fn try_twice(
        &mut self,
        trial: Trial<'_>,
        measure: impl Fn(&Self) -> Result<Vec<Measurement>>,
    ) -> Result<()> {
        let mut measured = BTreeSet::new();
        for call in 1..=CALLS_MAX {
            let found = measure(self);
            self.report(trial, call);
            if self.add(trial, call, found, &mut measured)? {
                break;
            }
        }
        Ok(())
    }

    fn report(&mut self, trial: Trial<'_>, call: usize) {
        self.calls.0 += usize::from(call == 1);
        let seconds = self.started.elapsed().as_secs();
        let (done, all) = self.calls;
        let Trial { run, point, series, round } = trial;
        let again = if call > 1 { ", once more" } else { "" };
        println!(
            "{done} of {all}, {seconds} s: {run}, {point}, {series}, round {}{again}",
            round + 1
        );
    }

    /// Keeps what a call found for phases that are not `measured` yet. Returns whether nothing failed.
    fn add(
        &mut self,
        trial: Trial<'_>,
        call: usize,
        found: Result<Vec<Measurement>>,
        measured: &mut BTreeSet<(String, String, u64)>,
    ) -> Result<bool> {
        let failures = self.results.failed.len();
        match found {
            Ok(all) => {
                for it in all {
                    let place = (it.series.clone(), it.phase.clone(), it.round);
                    let is_new = !measured.contains(&place);
                    if is_new && self.keep(it, call)? {
                        measured.insert(place);
                    }
                }
            }
            Err(error) => {
                let failure = Failure {
                    run: trial.run.to_owned(),
                    point: trial.point.to_owned(),
                    series: trial.series.to_owned(),
                    phase: None,
                    round: trial.round,
                    call,
                    reason: format!("{error:#}"),
                };
                println!("{failure}");
                let place = json!({"run": trial.run, "x": trial.point, "series": trial.series, "round": trial.round + 1});
                writeln!(self.lines, "{}", json!({"failed": failure.to_string(), "of": place}))?;
                self.results.failed.push(failure);
            }
        }
        Ok(self.results.failed.len() == failures)
    }

    /// Writes a line and keeps it with the results, unless its phase failed or does not count. Returns
    /// whether the phase did not fail.
    fn keep(&mut self, it: Measurement, call: usize) -> Result<bool> {
        let place = format!("{}, {}, {}, {}", it.run, it.point, it.series, it.phase);
        if let Some(text) = test_bed::processors(&it.line) {
            println!("  {place}: {text}");
        }
        let failed = it.line["failed"].as_str().map(str::to_owned);
        let dropped = test_bed::reason_to_drop(&it.line).filter(|_| !self.amounts.is_tiny);
        let name = match (&failed, &dropped) {
            (Some(_), _) => "of",
            (None, Some(_)) => "dropped",
            (None, None) => "measured",
        };
        let line = json!({
            "run": it.run, "x": it.point, "series": it.series, "round": it.round + 1,
            "phase": it.phase, name: it.line,
        });
        writeln!(self.lines, "{line}")?;
        if let Some(reason) = failed.as_ref().or(dropped.as_ref()) {
            println!("  {place}: {reason}");
        }
        if let Some(reason) = failed {
            let Measurement { run, point, series, round, phase, .. } = it;
            let phase = Some(phase);
            self.results.failed.push(Failure { run, point, series, phase, round, call, reason });
            return Ok(false);
        }
        match dropped {
            Some(_) => self.results.dropped.push(it),
            None => self.results.measured.push(it),
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::Device;
    use super::super::measure::{Programs, Results};
    use super::super::numbers::tests::sample;
    use super::super::plan::Amounts;
    use super::*;
    use anyhow::anyhow;
    use serde_json::Value;
    use std::cell::Cell;
    use std::path::PathBuf;
    use std::time::Instant;

    const TRIAL: Trial<'static> =
        Trial { run: "values", point: "1 KiB", series: "stele", round: 0 };

    /// Makes the calls of one trial that finds these results in turn. Returns the number of calls and
    /// their results.
    fn calls(found: &[Result<Vec<(&str, Value)>, &str>]) -> (usize, Results) {
        let (spec, _) = sample();
        let programs = Programs { lab: PathBuf::new(), stele: PathBuf::new(), etcd: None };
        let device =
            Device { folder: PathBuf::new(), description: String::new(), is_memory: false };
        let mut measuring = Measuring {
            spec: &spec,
            programs: &programs,
            amounts: Amounts { scale: 1.0, is_tiny: false },
            rounds: 1,
            device: &device,
            cgroup: None,
            bed: None,
            lines: tempfile::tempfile().unwrap(),
            results: Results::default(),
            calls: (0, 1),
            started: Instant::now(),
        };
        let made = Cell::new(0);
        let measure = |_: &Measuring<'_>| {
            let found = &found[made.replace(made.get() + 1)];
            let measurement = |(phase, line): &(&str, Value)| Measurement {
                run: TRIAL.run.to_owned(),
                point: TRIAL.point.to_owned(),
                series: TRIAL.series.to_owned(),
                round: TRIAL.round,
                phase: (*phase).to_owned(),
                line: line.clone(),
            };
            let found = found.as_ref().map_err(|reason| anyhow!("{reason}"))?;
            Ok(found.iter().map(measurement).collect())
        };
        measuring.try_twice(TRIAL, measure).unwrap();
        assert_eq!(measuring.calls, (1, 1));
        (made.get(), measuring.results)
    }

    fn failed(results: &Results) -> Vec<String> {
        results.failed.iter().map(Failure::to_string).collect()
    }

    #[test]
    fn a_call_that_fails_is_made_once_more_and_both_failures_are_kept() {
        let line = || json!({"ops_per_s": 5.0});
        let (made, results) = calls(&[Ok(vec![("put", line())])]);
        assert_eq!((made, results.measured.len(), results.failed.len()), (1, 1, 0));
        let (made, results) = calls(&[Err("no leader"), Ok(vec![("put", line())])]);
        assert_eq!((made, results.measured.len()), (2, 1));
        assert_eq!(failed(&results), ["values, 1 KiB, stele, round 1, call 1: no leader"]);
        let (made, results) = calls(&[Err("no leader"), Err("busy")]);
        assert_eq!((made, results.measured.len()), (2, 0));
        let second = "values, 1 KiB, stele, round 1, call 2: busy";
        assert_eq!(failed(&results), ["values, 1 KiB, stele, round 1, call 1: no leader", second]);
    }

    #[test]
    fn a_second_call_counts_only_for_the_phases_that_failed_in_the_first() {
        let (first, second) = (json!({"ops_per_s": 5.0}), json!({"ops_per_s": 7.0}));
        let broken = json!({"failed": "it did not end"});
        let both = vec![("put", second.clone()), ("get", second.clone())];
        let (made, results) = calls(&[Ok(vec![("put", first.clone()), ("get", broken)]), Ok(both)]);
        let lines: Vec<(&str, &Value)> =
            results.measured.iter().map(|it| (it.phase.as_str(), &it.line)).collect();
        assert_eq!((made, lines), (2, vec![("put", &first), ("get", &second)]));
        assert_eq!(
            failed(&results),
            ["values, 1 KiB, stele, get, round 1, call 1: it did not end"]
        );
    }
}
