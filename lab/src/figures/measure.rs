//! Calls of the measuring programs, and the lines that they print.

use super::bed::Bed;
use super::device::Device;
use super::memory::Cgroup;
use super::plan::{Amounts, Job, arguments, page_cache};
use super::spec::{Point, Program, Spec, WIRE_PHASE};
use super::trial::{Failure, SERVERS, Trial};
use crate::peers;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use xtask::process::{Ended, run_limited, within};
use xtask::servers::{self, with_servers};

/// Time limit of one call.
const CALL_LIMIT: Duration = Duration::from_secs(1800);
/// Last lines of a failed program that are kept.
const LAST_LINES: usize = 5;

/// One line of a program, for one series at one point in one round.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    pub run: String,
    pub point: String,
    pub series: String,
    pub round: u64,
    pub phase: String,
    pub line: Value,
}

#[derive(Debug, Default)]
pub(super) struct Results {
    pub measured: Vec<Measurement>,
    /// Measurements that do not count, because the devices were not their limit.
    pub dropped: Vec<Measurement>,
    pub failed: Vec<Failure>,
}

#[derive(Debug)]
pub(super) struct Programs {
    pub lab: PathBuf,
    pub stele: PathBuf,
    pub etcd: Option<PathBuf>,
}

pub(super) struct Measuring<'a> {
    pub spec: &'a Spec,
    pub programs: &'a Programs,
    pub amounts: Amounts,
    pub rounds: u64,
    pub device: &'a Device,
    pub cgroup: Option<&'a Cgroup>,
    /// Unequal devices, if a run needs them.
    pub bed: Option<&'a Bed>,
    /// File that receives a JSON line for each measurement.
    pub lines: File,
    pub results: Results,
    /// Completed calls and all calls.
    pub calls: (usize, usize),
    pub started: Instant,
}

impl Measuring<'_> {
    pub(super) fn count(jobs: &[Job<'_>], rounds: u64) -> usize {
        let calls = |job: &Job<'_>| match job.run.program {
            Program::Baselines | Program::TestBed => {
                job.points.len() * job.series.len() * rounds as usize
            }
            Program::Wire => job.points.len(),
        };
        jobs.iter().map(calls).sum()
    }

    /// Measures all jobs, round by round, the series in turn; each series comes first in some
    /// round. Records a failed call and continues with the next one.
    pub(super) fn measure(&mut self, jobs: &[Job<'_>]) -> Result<()> {
        let is_wire = |job: &&Job<'_>| job.run.program == Program::Wire;
        for round in 0..self.rounds {
            for job in jobs.iter().filter(|job| !is_wire(job)) {
                for point in &job.points {
                    for at in 0..job.series.len() {
                        let turn = (at + round as usize) % job.series.len();
                        let series = job.series[turn];
                        let trial = Trial { run: &job.run.name, point: &point.x, series, round };
                        self.try_twice(trial, |it| match job.run.program {
                            Program::TestBed => it.test_bed(job, point, series, round),
                            _ => it.baselines(job, point, series, round),
                        })?;
                    }
                }
            }
        }
        for job in jobs.iter().filter(is_wire) {
            for point in &job.points {
                let series = SERVERS;
                let trial = Trial { run: &job.run.name, point: &point.x, series, round: 0 };
                self.try_twice(trial, |it| it.wire(job, point))?;
            }
        }
        Ok(())
    }

    fn baselines(
        &self,
        job: &Job<'_>,
        point: &Point,
        series: &str,
        round: u64,
    ) -> Result<Vec<Measurement>> {
        let args = arguments(self.spec, job.run, point, self.amounts)?;
        let page_cache = page_cache(self.spec, job.run, &args, self.amounts)?;
        let mut command = Command::new(&self.programs.lab);
        command.arg("designs").arg(job.phases.join(",")).args([
            "--systems",
            series,
            "--rounds",
            "1",
            "--dir",
        ]);
        command.arg(&self.device.folder);
        command.args(args.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]));
        command.args(self.amounts.is_tiny.then_some("--quick"));
        if let Some(cgroup) = self.cgroup {
            cgroup.renew()?;
            if let Some(page_cache) = page_cache {
                command.arg("--cgroup").arg(cgroup.folder());
                command.args(["--page-cache", &page_cache.bytes.to_string()]);
            }
        }
        let words = self.cgroup.map(Cgroup::words).unwrap_or_default();
        let printed = self.call(&mut within(&words, &command))?;
        let mut measurements = Vec::new();
        for mut line in objects(&printed) {
            let Some(phase) = line["phase"].as_str().map(str::to_owned) else { continue };
            if let (Some(cgroup), Some(page_cache)) = (self.cgroup, page_cache) {
                line["memory"] = cgroup.used();
                line["memory"]["page_cache_bytes"] = json!(page_cache.bytes);
            }
            let (run, point, series) = (job.run.name.clone(), point.x.clone(), series.to_owned());
            measurements.push(Measurement { run, point, series, round, phase, line });
        }
        Ok(measurements)
    }

    fn wire(&self, job: &Job<'_>, point: &Point) -> Result<Vec<Measurement>> {
        let mut args = arguments(self.spec, job.run, point, self.amounts)?;
        let mut count = |name: &str| args.remove(name).map(|it| it.parse()).transpose();
        let (nodes, regions) = (count("nodes")?, count("regions")?);
        let mut load: Vec<String> = vec!["--quiet".to_owned()];
        load.extend(args.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]));
        load.extend(["--rounds".to_owned(), self.rounds.to_string()]);
        if let Some(cgroup) = self.cgroup {
            cgroup.renew()?;
        }
        let defaults = servers::Options::default();
        let options = servers::Options {
            nodes: nodes.unwrap_or(defaults.nodes),
            regions: regions.unwrap_or(defaults.regions),
            etcd: self.programs.etcd.clone().filter(|_| job.series.contains(&super::ETCD)),
            within: self.cgroup.map(Cgroup::words).unwrap_or_default(),
            ..defaults
        };
        let work = tempfile::tempdir_in(&self.device.folder)?;
        let stele = &self.programs.stele;
        let printed = with_servers(stele, work.path(), &options, |servers| {
            self.call(peers::load(&self.programs.lab, servers).args(load))
        })?;
        let lines = objects(&printed).into_iter().filter_map(|line| {
            let series = line["target"].as_str()?.split_once("://")?.0.to_owned();
            let round = line["round"].as_u64()?.checked_sub(1)?;
            let (run, point) = (job.run.name.clone(), point.x.clone());
            Some(Measurement { run, point, series, round, phase: WIRE_PHASE.to_owned(), line })
        });
        Ok(lines.collect())
    }

    pub(super) fn call(&self, command: &mut Command) -> Result<String> {
        let (ended, printed) = run_limited(command, CALL_LIMIT).context("calling a program")?;
        if ended == Ended::Exited(true) {
            return Ok(printed);
        }
        let lines: Vec<&str> = printed.lines().filter(|line| !line.starts_with('{')).collect();
        let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
        let killed = self.cgroup.and_then(|cgroup| cgroup.used()["killed"].as_u64()).unwrap_or(0);
        let reason = match (&ended, killed) {
            (Ended::TimedOut, _) => format!("it did not end within {CALL_LIMIT:?}"),
            (_, 0) => "it failed".to_owned(),
            _ => "it was killed at its memory limit".to_owned(),
        };
        bail!("{reason}: {}", last.join(" / "))
    }
}

pub(super) fn objects(text: &str) -> Vec<Value> {
    let parse = |line: &str| serde_json::from_str(line).ok();
    text.lines().filter(|line| line.starts_with('{')).filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_distinguished_from_other_lines() {
        let text = "{\"phase\": \"put\"}\nmedians; {}\n{broken\n {\"phase\": 1}\n{}\n";
        assert_eq!(objects(text), [json!({"phase": "put"}), json!({})]);
    }
}
