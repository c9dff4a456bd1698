//! Measurements of clusters on unequal devices: each node is a process with one store on a device of the
//! test-bed, and a series is a placement mode.

use super::bed::{self, Bed};
use super::measure::{Measurement, Measuring, objects};
use super::memory::Cgroup;
use super::numbers::BUSY;
use super::plan::{Amounts, Job, arguments};
use super::slow::{self, Sample, Times};
use super::spec::{Point, Program, Spec};
use crate::peers;
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use xtask::process::kill;
use xtask::servers::{self, Running, with_servers};

/// Share of the machine's processors above which they and not the devices may be the limit.
const PROCESSORS_BUSY_MAX: f64 = 0.7;
const REPLICAS: usize = 3;
/// Time for the placement of empty regions.
const REST_WITHIN: Duration = Duration::from_secs(90);
/// Time for a call of `stele ctl` that fails at first.
const CTL_WITHIN: Duration = Duration::from_secs(60);
/// Setting of the cluster that chooses the placement mode.
const MODE: &str = "placement_mode";
/// Settings while empty regions are placed, and their values during the measurement.
const PLACING: [(&str, &str, &str); 2] = [("moves_max", "64", "4"), ("snapshots_max", "32", "4")];
const LOAD: &str = "load";
/// Phase in which the last store becomes slow and fast again, and its arguments in seconds: the times
/// before, while and after it is slow, and the time that measures the other stores without it.
const SLOW: &str = "slow";
const TIMES: [&str; 4] = ["before", "during", "after", "without"];
const POLL: Duration = Duration::from_millis(500);
/// Time for the elections after a node has ended.
const ELECTIONS: Duration = Duration::from_secs(5);

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    cluster: String,
    regions: usize,
    server: Vec<String>,
    /// Arguments of `lab wire` for all phases.
    bench: BTreeMap<String, String>,
    /// Arguments that replace them in one phase.
    of_phase: BTreeMap<(String, String), String>,
}

impl Arguments {
    /// Sorts arguments: `server.name` is for the nodes, `phase.name` for one phase.
    fn of(all: BTreeMap<String, String>) -> Result<Self> {
        let mut sorted = Self { regions: 1, ..Self::default() };
        for (name, value) in all {
            match (name.as_str(), name.split_once('.')) {
                ("cluster", _) => sorted.cluster = value,
                ("regions", _) => sorted.regions = value.parse().context("regions")?,
                (_, Some(("server", name))) => sorted.server.extend([format!("--{name}"), value]),
                (_, Some((phase, name))) => {
                    sorted.of_phase.insert((phase.to_owned(), name.to_owned()), value);
                }
                (_, None) => {
                    sorted.bench.insert(name, value);
                }
            }
        }
        Ok(sorted)
    }

    fn bench(&self, phase: &str) -> Vec<String> {
        let mut all = BTreeMap::from([("workload".to_owned(), phase.to_owned())]);
        all.extend(self.bench.clone());
        let of_it = self
            .of_phase
            .iter()
            .filter(|((of, name), _)| of == phase && !TIMES.contains(&name.as_str()));
        all.extend(of_it.map(|((_, name), value)| (name.clone(), value.clone())));
        let mut words = vec!["--quiet".to_owned()];
        if phase != LOAD {
            words.push("--skip-load".to_owned());
        }
        words.extend(all.into_iter().flat_map(|(name, value)| [format!("--{name}"), value]));
        words
    }

    fn time(&self, name: &str) -> Result<Duration> {
        let text = self.of_phase.get(&(SLOW.to_owned(), name.to_owned()));
        let text = text.with_context(|| format!("no argument `{SLOW}.{name}`"))?;
        Ok(Duration::from_secs(text.parse().with_context(|| format!("{SLOW}.{name}"))?))
    }
}

pub(super) fn clusters(spec: &Spec, jobs: &[Job<'_>], amounts: Amounts) -> Result<Vec<Vec<char>>> {
    let kinds = bed::kinds(&spec.devices)?;
    let mut clusters = Vec::new();
    for job in jobs.iter().filter(|job| job.run.program == Program::TestBed) {
        for point in &job.points {
            let all = Arguments::of(arguments(spec, job.run, point, amounts)?)?;
            clusters.push(bed::nodes(&kinds, &all.cluster)?);
        }
    }
    Ok(clusters)
}

impl Measuring<'_> {
    /// Starts a cluster in one placement mode, waits until its empty regions are placed, and measures
    /// the phases on the same data.
    pub(super) fn test_bed(
        &self,
        job: &Job<'_>,
        point: &Point,
        mode: &str,
        round: u64,
    ) -> Result<Vec<Measurement>> {
        let bed = self.bed.context("there is no test-bed")?;
        let all = Arguments::of(arguments(self.spec, job.run, point, self.amounts)?)?;
        let nodes = bed::nodes(&bed::kinds(&self.spec.devices)?, &all.cluster)?;
        if let Some(cgroup) = self.cgroup {
            cgroup.renew()?;
        }
        let own = |(key, value, _): (&str, &str, &str)| (key.to_owned(), value.to_owned());
        let mut settings = vec![(MODE.to_owned(), mode.to_owned())];
        settings.extend(PLACING.map(own));
        let options = servers::Options {
            nodes: nodes.len(),
            regions: all.regions,
            stele: servers::Stele {
                replicas: Some(REPLICAS),
                stores: bed.stores(&nodes)?,
                arguments: all.server.clone(),
                settings,
                has_uneven_leaders: true,
                ..servers::Stele::default()
            },
            // The end of the group ends the nodes, also if this process is killed.
            within: self.cgroup.map(Cgroup::words).unwrap_or_default(),
            ..servers::Options::default()
        };
        let stele = &self.programs.stele;
        let work = tempfile::tempdir_in(&self.device.folder)?;
        with_servers(stele, work.path(), &options, |servers| {
            let address = servers.addresses.first().context("no node")?;
            let placed = place(stele, address)?;
            let mut measurements = Vec::new();
            if !job.phases.contains(&LOAD) {
                // No figure shows the load, but the other phases need its data.
                self.phase(self.load(servers).args(all.bench(LOAD)))?;
            }
            for phase in &job.phases {
                let found = match *phase {
                    SLOW => self.slow(&all, servers, options.stele.stores.last()),
                    _ => self.phase(self.load(servers).args(all.bench(phase))),
                };
                let mut line =
                    found.unwrap_or_else(|error| json!({"failed": format!("{phase}: {error:#}")}));
                line["device"] = json!(bed.description());
                line["placed"] = placed.clone();
                line["stores"] = json!(ctl(stele, address, &["stores"])?);
                let (run, point, series) = (job.run.name.clone(), point.x.clone(), mode.to_owned());
                let phase = (*phase).to_owned();
                measurements.push(Measurement { run, point, series, round, phase, line });
            }
            Ok(measurements)
        })
    }

    /// Measures while the store of the last node becomes slow and fast again, and then without that
    /// node.
    fn slow(&self, all: &Arguments, servers: &Running, slowed: Option<&PathBuf>) -> Result<Value> {
        let times = Times {
            before: all.time("before")?,
            slow: all.time("during")?,
            after: all.time("after")?,
        };
        let mut bench = self.load(servers);
        bench.args(all.bench(SLOW)).args(["--duration", &times.whole().as_secs().to_string()]);
        let (line, samples) = thread::scope(|scope| {
            let load = scope.spawn(|| self.phase(&mut bench));
            let samples = self.watch(servers, slowed, times);
            (load.join().map_err(|_| anyhow!("the load has panicked")), samples)
        });
        let (mut line, samples) = (line??, samples?);
        let curve: Vec<f64> =
            line["per_100_ms"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let stele = &self.programs.stele;
        let (first, last) =
            servers.addresses.first().zip(servers.addresses.last()).context("no node")?;
        let rows = ctl(stele, first, &["stores"])?;
        let store = rows.iter().find(|row| row["address"].as_str() == Some(last));
        let store =
            store.and_then(|row| row["store"].as_u64()).context("no store of the last node")?;
        let mut found = slow::summary(&samples, &curve, store, times);

        let without = self.without_last(all, servers)?;
        found["operations_without"] = json!(without);
        let during = found["operations_slow"].as_f64().unwrap_or_default();
        found["share_of_without"] = json!(during / without);
        line["slow"] = found;
        Ok(line)
    }

    /// Ends the last node and returns the operations per second of the others.
    fn without_last(&self, all: &Arguments, servers: &Running) -> Result<f64> {
        kill(&servers.pids[servers.pids.len().saturating_sub(1)..])?;
        thread::sleep(ELECTIONS);
        let mut bench = servers.load(&self.programs.lab, &["wire"]);
        bench.args(all.bench(SLOW));
        bench.args(["--duration", &all.time("without")?.as_secs().to_string()]);
        let lines = objects(&self.call(&mut bench)?);
        let speed = lines.iter().find_map(|line| line["operations_per_second"].as_f64());
        speed.context("no line of a round without the last node")
    }

    /// Makes the device of a store slow and fast again and reads the leaders meanwhile.
    fn watch(
        &self,
        servers: &Running,
        slowed: Option<&PathBuf>,
        times: Times,
    ) -> Result<Vec<Sample>> {
        let (bed, slowed) = self.bed.zip(slowed).context("there is no test-bed")?;
        let address = servers.addresses.first().context("no node")?;
        let events = [(times.before, slow::FACTOR), (times.before + times.slow, 1)];
        let (started, mut samples, mut events) =
            (Instant::now(), Vec::new(), events.into_iter().peekable());
        while started.elapsed() < times.whole() {
            if let Some((_, factor)) = events.next_if(|(at, _)| started.elapsed() >= *at) {
                bed.slow_down(slowed, factor)?;
            }
            let at = started.elapsed();
            samples.push(Sample::of(at, &ctl(&self.programs.stele, address, &["regions"])?));
            thread::sleep(POLL);
        }
        bed.slow_down(slowed, 1)?;
        Ok(samples)
    }

    fn load(&self, servers: &Running) -> Command {
        peers::load(&self.programs.lab, servers)
    }

    fn phase(&self, bench: &mut Command) -> Result<Value> {
        let before = machine_ticks()?;
        let printed = self.call(bench)?;
        let after = machine_ticks()?;
        let lines = objects(&printed);
        let mut line =
            lines.into_iter().find(|line| line["round"].is_u64()).context("no line of a round")?;
        let processors = std::thread::available_parallelism()?.get();
        line[BUSY] = json!(processors_busy(&line, processors).context("no use of processors")?);
        let (busy, whole) = (after.0 - before.0, after.1 - before.1);
        line["machine_busy"] = json!(busy as f64 / whole.max(1) as f64);
        Ok(line)
    }
}

/// Waits until empty regions are placed, and sets what is for the measurement alone. Returns how long
/// that took, for the raw lines.
fn place(stele: &Path, address: &str) -> Result<Value> {
    let started = Instant::now();
    let is_at_rest = servers::wait_for_rest(stele, address, REST_WITHIN)?;
    for (key, _, value) in PLACING {
        ctl(stele, address, &["config", key, value])?;
    }
    Ok(json!({"seconds": started.elapsed().as_secs_f64(), "is_at_rest": is_at_rest}))
}

/// Calls `stele ctl`, again for a while if it fails: on a busy machine the placement group may have no
/// leader for seconds.
fn ctl(stele: &Path, address: &str, words: &[&str]) -> Result<Vec<Value>> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    servers::ctl_within(stele, address, &words, CTL_WITHIN)
}

fn processors_busy(line: &Value, processors: usize) -> Option<f64> {
    let nodes = line["servers"]["processor_us_per_operation"].as_array()?;
    let nodes: Option<Vec<f64>> = nodes.iter().map(Value::as_f64).collect();
    let generator = line["generator_processor_us_per_operation"].as_f64()?;
    let us_per_operation = nodes?.iter().sum::<f64>() + generator;
    Some(us_per_operation / 1e6 * line["operations_per_second"].as_f64()? / processors as f64)
}

/// Returns the reason to drop a measurement, if the devices were not its limit.
pub(super) fn reason_to_drop(line: &Value) -> Option<String> {
    let busy = line[BUSY].as_f64().filter(|busy| *busy > PROCESSORS_BUSY_MAX)?;
    let (busy, most) = (busy * 100.0, PROCESSORS_BUSY_MAX * 100.0);
    Some(format!("the processors were {busy:.0} % busy, more than {most:.0} %"))
}

pub(super) fn processors(line: &Value) -> Option<String> {
    let busy = line[BUSY].as_f64()?;
    let (speed, all) = (line["operations_per_second"].as_f64()?, line["machine_busy"].as_f64()?);
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    Some(format!(
        "{speed:.0} operations/s, processors {} busy, with all other work {}",
        percent(busy),
        percent(all)
    ))
}

/// Returns the busy time and the whole time of all processors since the start of the machine, in ticks.
fn machine_ticks() -> Result<(u64, u64)> {
    ticks(&std::fs::read_to_string("/proc/stat")?).context("reading /proc/stat")
}

fn ticks(text: &str) -> Option<(u64, u64)> {
    let numbers = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    // User, nice, system, idle, wait for devices, two kinds of interrupts, and the time that other
    // machines took. Guests are part of user.
    let numbers: Vec<u64> = numbers.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let (whole, idle) = (numbers.iter().sum::<u64>(), numbers.get(3)? + numbers.get(4)?);
    Some((whole - idle, whole))
}

pub(super) fn setup(bed: &Bed) -> Vec<String> {
    let mut lines = vec![
        bed.description(),
        format!(
            "clusters of unequal devices: each node is a process with one store, {REPLICAS} replicas; regions are \
             split and placed while they are empty; points at which processes use more than {:.0} % of \
             the processors are dropped",
            PROCESSORS_BUSY_MAX * 100.0
        ),
    ];
    lines.extend(bed.tried.iter().cloned());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_for_the_nodes_for_all_phases_or_for_one() {
        let all = [
            ("cluster", "1N2P"),
            ("regions", "8"),
            ("server.commit-return", "false"),
            ("records", "10"),
            ("threads", "4"),
            ("b.threads", "2"),
            ("slow.workload", "a"),
            ("slow.before", "5"),
        ];
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let sorted = Arguments::of(all.map(own).into()).unwrap();
        assert_eq!((sorted.cluster.as_str(), sorted.regions), ("1N2P", 8));
        assert_eq!(sorted.server, ["--commit-return", "false"]);
        let load = ["--quiet", "--records", "10", "--threads", "4", "--workload", "load"];
        assert_eq!(sorted.bench("load"), load);
        let b = ["--quiet", "--skip-load", "--records", "10", "--threads", "2", "--workload", "b"];
        assert_eq!(sorted.bench("b"), b);
        let slow =
            ["--quiet", "--skip-load", "--records", "10", "--threads", "4", "--workload", "a"];
        assert_eq!(sorted.bench("slow"), slow);
        assert_eq!(sorted.time("before").unwrap(), Duration::from_secs(5));
        assert!(sorted.time("after").is_err());
    }

    #[test]
    fn a_point_at_which_the_processors_are_the_limit_is_dropped() {
        let line = |us: f64| {
            let mut line = json!({
                "servers": {"processor_us_per_operation": [us, us, us]},
                "generator_processor_us_per_operation": us,
                "operations_per_second": 1000.0,
            });
            line[BUSY] = json!(processors_busy(&line, 2));
            line
        };
        assert_eq!(line(100.0)[BUSY], 0.2);
        assert_eq!(reason_to_drop(&line(100.0)), None);
        let reason = "the processors were 80 % busy, more than 70 %";
        assert_eq!(reason_to_drop(&line(400.0)).unwrap(), reason);
        assert_eq!(reason_to_drop(&json!({})), None);
    }

    #[test]
    fn time_that_waits_for_devices_is_not_busy() {
        assert_eq!(ticks("cpu  10 1 5 80 3 1 0 0 7 0\ncpu0 1 1\n"), Some((17, 100)));
        assert_eq!(ticks("cpu  10\n"), None);
    }
}
