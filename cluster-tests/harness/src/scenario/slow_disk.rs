use super::three;
use crate::args::Setup;
use crate::cluster::Cluster;
use crate::programs::{self, Printed};
use crate::report::{Report, percentile, rounded};
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const RECORDS: &str = "2000";
const VALUE_BYTES: &str = "1KiB";
const CLIENTS: &str = "8";
const FULL_SECONDS: u64 = 5;
const SHORT_SECONDS: u64 = 2;
/// A sync of the slow disk takes so many times as long as before.
const SLOWER: u32 = 10;
const PROBES: usize = 200;
const PROBE_BYTES: usize = 16 << 10;

/// 99th percentiles of one measured part, in microseconds, and operations per second.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    put_p99_us: f64,
    get_p99_us: f64,
    puts_per_s: f64,
}

impl Measured {
    fn divided_by(self, other: Self) -> [f64; 3] {
        [
            self.put_p99_us / other.put_p99_us,
            self.get_p99_us / other.get_p99_us,
            self.puts_per_s / other.puts_per_s,
        ]
    }
}

/// Clients put and others get, in closed loops, while the syncs of the leader's log take as long as
/// the others' and then [`SLOWER`] times as long, in turn. One cluster has commit return and read
/// acceleration, another one has neither. In every part, the tool that delays syncs traces the leader; while
/// its disk is as fast as the others, it delays by a microsecond.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(5, 1);
    let seconds = if setup.short { SHORT_SECONDS } else { FULL_SECONDS };
    let sync = sync_time(setup.work())?;
    let delay = sync * (SLOWER - 1);
    report.record("sync_median_us", sync.as_micros() as u64);
    report.record("rounds", rounds);
    report.record("configuration", format!(
        "three nodes, fsync on, values of {VALUE_BYTES}, {CLIENTS} clients put and {CLIENTS} get, {seconds} s a part"
    ));
    for is_on in ["true", "false"] {
        let settings = [("commit_return", is_on), ("read_acceleration", is_on)];
        let mut own = three(setup, &settings);
        own.work = setup.work().join(format!("commit-return-{is_on}"));
        std::fs::create_dir_all(&own.work)?;
        let mut cluster = Cluster::start(own).await?;
        // The leader stays on the node with the slow disk.
        cluster.set_option("balance", "0").await?;
        load(setup, &cluster).await?;
        let mut ratios: [Vec<f64>; 3] = Default::default();
        for round in 0..rounds {
            let fast = part(setup, &mut cluster, Duration::from_micros(1), seconds).await?;
            let slow = part(setup, &mut cluster, delay, seconds).await?;
            println!("commit_return={is_on}, round {round}: fast {fast:?}, slow {slow:?}");
            for (ratios, ratio) in ratios.iter_mut().zip(slow.divided_by(fast)) {
                ratios.push(ratio);
            }
        }
        for (name, ratios) in ["put_p99", "get_p99", "puts_per_s"].iter().zip(ratios) {
            let lowest_median_highest = [0.0, 0.5, 1.0].map(|at| rounded(percentile(&ratios, at)));
            let name = format!("{name}_slow_to_fast_commit_return_{is_on}");
            report.record(&name, lowest_median_highest.to_vec());
        }
    }
    Ok(())
}

fn sync_time(work: &Path) -> Result<Duration> {
    let file = File::create(work.join("probe"))?;
    let block = vec![7; PROBE_BYTES];
    let mut times = Vec::new();
    for probe in 0..PROBES {
        let started = Instant::now();
        file.write_all_at(&block, (probe * PROBE_BYTES) as u64)?;
        file.sync_data()?;
        times.push(started.elapsed().as_secs_f64());
    }
    Ok(Duration::from_secs_f64(percentile(&times, 0.5)))
}

/// Measures the load while a sync of the leader's log takes `delay` longer.
async fn part(
    setup: &Setup,
    cluster: &mut Cluster,
    delay: Duration,
    seconds: u64,
) -> Result<Measured> {
    let leader = cluster.leader_of(b"user").await?;
    cluster.nodes[leader].slow_syncs(delay).await?;
    let bench = |workload: &str| {
        let mut command = command(setup, cluster, workload);
        command.args(["--skip-load", "--operations", "100000000", "--warm-up", "1", "--duration"]);
        command.arg(seconds.to_string());
        programs::start(command)
    };
    let (puts, gets) = (bench("update"), bench("c"));
    let (puts, gets) = (puts.await??, gets.await??);
    cluster.nodes[leader].restore_syncs();
    ensure!(cluster.leader_of(b"user").await? == leader, "the leader changed");
    let put_p99_us = summary(&puts, "p99_us")?;
    let puts_per_s = summary(&puts, "operations_per_second")?;
    Ok(Measured { put_p99_us, get_p99_us: summary(&gets, "p99_us")?, puts_per_s })
}

async fn load(setup: &Setup, cluster: &Cluster) -> Result<()> {
    let printed = programs::start(command(setup, cluster, "load")).await??;
    ensure!(printed.succeeded, "loading: {}", printed.errors);
    Ok(())
}

fn command(setup: &Setup, cluster: &Cluster, workload: &str) -> Command {
    let mut command = Command::new(&setup.stele);
    command.args(["bench", "wire", "--quiet", "--workload", workload, "--target"]);
    command.arg(format!("stele://{}", cluster.addresses().join(",")));
    command.args(["--records", RECORDS, "--value-bytes", VALUE_BYTES, "--threads", CLIENTS]);
    command
}

/// Returns the median of a figure of the only target.
fn summary(printed: &Printed, name: &str) -> Result<f64> {
    ensure!(printed.succeeded, "stele bench wire: {}", printed.errors);
    let targets = printed.object.get("summary").and_then(|it| it.as_object());
    let target = targets.and_then(|targets| targets.values().next());
    let errors = target.and_then(|target| target.get("errors")?.as_u64());
    ensure!(errors == Some(0), "{errors:?} operations failed");
    let median = target.and_then(|target| target.get(name)?.get("median")?.as_f64());
    median.with_context(|| format!("no {name} in {}", printed.object))
}
