//! Commands of Redis on nodes of Stele, beside Redis: `redis-benchmark` with and without pipelines, a load of which
//! each write counts once two servers have it, and transactions over one and over three regions.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use stele_load::resp::{RespConnection, RespReply};
use stele_types::redis_key;
use tokio::runtime::Runtime;
use xtask::flags::Flags;
use xtask::process::{Ended, run_limited, run_shown};
use xtask::programs::{self, LAB, STELE};
use xtask::servers::{self, Running, ctl_within, with_servers};
use xtask::workspace::Workspace;

/// Requests of a connection that wait for replies at the same time.
const PIPELINES: [u64; 2] = [1, 16];
/// Names that `redis-benchmark` chooses from.
const NAMES: u64 = 100_000;
/// Keys of a transaction.
const KEYS: usize = 10;
/// First letters of the names in three regions.
const LETTERS: [&str; 3] = ["a", "b", "c"];
const LIMIT: Duration = Duration::from_secs(600);
const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
const BULK_BYTES_MAX: usize = 1 << 20;

/// What is measured.
#[derive(Debug)]
struct Load {
    rounds: u64,
    /// Of each run without a pipeline; a run with a pipeline of 16 has four times as many.
    requests: u64,
    clients: u64,
    value_bytes: u64,
    /// Of the load with WAIT.
    seconds: u64,
    /// Of each kind.
    transactions: u64,
}

/// Programs of a measurement.
struct Programs {
    stele: PathBuf,
    lab: PathBuf,
    redis: PathBuf,
    benchmark: PathBuf,
}

/// Measures all loads and prints a line for each.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let redis: PathBuf = flags.value("--redis")?.context("--redis BIN is missing")?.into();
    let beside = redis.with_file_name("redis-benchmark");
    let benchmark = flags.value("--benchmark")?.map_or(beside, PathBuf::from);
    let load = Load {
        rounds: flags.number("--rounds", 3)?,
        requests: flags.number("--requests", 50_000)?,
        clients: flags.number("--clients", 50)?,
        value_bytes: flags.number("--value-bytes", 1024)?,
        seconds: flags.number("--seconds", 5)?,
        transactions: flags.number("--transactions", 500)?,
    };
    let is_release = !flags.switch("--dev");
    flags.end()?;
    let stele = programs::build(workspace, STELE, is_release)?;
    let lab = programs::build(workspace, LAB, is_release)?;
    let programs = Programs { stele, lab, redis, benchmark };
    println!("3 nodes on loopback, {}, {load:?}", if is_release { "release" } else { "dev" });
    let work = tempfile::tempdir_in(&workspace.target)?;
    in_one_region(&programs, work.path(), &load)?;
    over_regions(&programs, work.path(), &load)
}

fn options(programs: &Programs, is_beside_redis: bool) -> servers::Options {
    let stele = servers::Stele { answers_redis: true, ..servers::Stele::default() };
    let redis = is_beside_redis.then(|| programs.redis.clone());
    servers::Options { redis, stele, ..servers::Options::default() }
}

/// Runs `redis-benchmark` on a leader, on another node and on one Redis; then the load with WAIT.
fn in_one_region(programs: &Programs, work: &Path, load: &Load) -> Result<()> {
    // One Redis: with replicas it would do more than the figure says.
    let alone = servers::Options { nodes: 1, ..options(programs, true) };
    let place = work.join("alone");
    std::fs::create_dir(&place)?;
    with_servers(&programs.stele, &place, &alone, |beside| {
        let redis = address_of(beside, "redis")?;
        let place = work.join("nodes");
        std::fs::create_dir(&place)?;
        with_servers(&programs.stele, &place, &options(programs, false), |running| {
            let (leader, other) = leader_and_other(programs, running)?;
            wait_until_answered(&leader)?;
            wait_until_answered(&other)?;
            let targets = [("leader", leader), ("other", other), ("redis", redis)];
            PIPELINES.iter().try_for_each(|pipeline| compare(programs, load, *pipeline, &targets))
        })
    })?;
    let place = work.join("wait");
    std::fs::create_dir(&place)?;
    with_servers(&programs.stele, &place, &options(programs, true), |running| {
        let (leader, _) = leader_and_other(programs, running)?;
        wait_until_answered(&leader)?;
        with_wait(programs, running, &leader, load)
    })
}

/// Prints requests a second of each target in each round, and how the nodes compare with the last target.
fn compare(
    programs: &Programs,
    load: &Load,
    pipeline: u64,
    targets: &[(&str, String); 3],
) -> Result<()> {
    let mut found: Vec<[f64; 2]> = Vec::new();
    for _ in 0..load.rounds {
        for (_, address) in targets {
            found.push(benchmark(programs, load, pipeline, address)?);
        }
    }
    for (at, command) in ["SET", "GET"].iter().enumerate() {
        let of = |target: usize| found.iter().skip(target).step_by(targets.len());
        for (target, (name, _)) in targets.iter().enumerate() {
            let all: Vec<f64> = of(target).map(|both| both[at]).collect();
            let pairs = of(target).zip(of(targets.len() - 1));
            let ratios: Vec<f64> = pairs.map(|(one, other)| one[at] / other[at]).collect();
            let line = json!({"command": command, "pipeline": pipeline, "target": name,
                "requests_per_second": spread(all), "to_redis": spread(ratios)});
            println!("{line}");
        }
    }
    Ok(())
}

/// Returns the sets and the gets a second.
fn benchmark(programs: &Programs, load: &Load, pipeline: u64, address: &str) -> Result<[f64; 2]> {
    let (host, port) = address.rsplit_once(':').context("an address without a port")?;
    let requests = if pipeline == 1 { load.requests } else { load.requests * 4 };
    let mut run = Command::new(&programs.benchmark);
    run.args(["-h", host, "-p", port, "-t", "set,get", "--csv"]);
    let numbers = [
        ("-n", requests),
        ("-c", load.clients),
        ("-d", load.value_bytes),
        ("-r", NAMES),
        ("-P", pipeline),
    ];
    for (name, number) in numbers {
        run.args([name, &number.to_string()]);
    }
    let (ended, printed) = run_limited(&mut run, LIMIT)?;
    ensure!(ended == Ended::Exited(true), "{run:?}: {ended:?}: {printed}");
    let of = |command: &str| -> Result<f64> {
        let line = printed.lines().find(|line| line.starts_with(&format!("\"{command}\"")));
        let field = line.and_then(|line| line.split(',').nth(1));
        let number = field.and_then(|field| field.trim_matches('"').parse().ok());
        number.with_context(|| format!("no {command} in {printed}"))
    };
    Ok([of("SET")?, of("GET")?])
}

/// Runs the load of `lab wire` by the protocol of Redis on both: a write counts once one more server has it.
fn with_wait(programs: &Programs, running: &Running, leader: &str, load: &Load) -> Result<()> {
    let lists: Vec<&str> = running.processes.split('/').collect();
    let [stele_pids, redis_pids] = lists[..] else { bail!("not two systems: {lists:?}") };
    let redis = running.urls.iter().find(|url| url.starts_with("redis://")).context("no Redis")?;
    let mut wire = Command::new(&programs.lab);
    wire.args(["wire", "--target", &format!("redis://{leader}"), "--target", redis]);
    wire.args(["--pids", &format!("{stele_pids}/{redis_pids}"), "--quiet"]);
    wire.args(["--workload", "update", "--operations", "1000000000", "--records", "50000"]);
    let numbers = [
        ("--clients", load.clients),
        ("--value-bytes", load.value_bytes),
        ("--duration", load.seconds),
        ("--rounds", load.rounds),
    ];
    for (name, number) in numbers {
        wire.args([name, &number.to_string()]);
    }
    run_shown(&mut wire)
}

/// Measures transactions of ten keys in one region, and of ten keys over three, in turn.
fn over_regions(programs: &Programs, work: &Path, load: &Load) -> Result<()> {
    let place = work.join("regions");
    std::fs::create_dir(&place)?;
    with_servers(&programs.stele, &place, &options(programs, false), |running| {
        split(programs, running)?;
        let address = running.redis_addresses.first().context("no address for Redis")?;
        wait_until_answered(address)?;
        let line = Runtime::new()?.block_on(transactions(address, load))?;
        println!("{line}");
        Ok(())
    })
}

async fn transactions(address: &str, load: &Load) -> Result<Value> {
    let mut connection = RespConnection::connect(address, None, BULK_BYTES_MAX).await?;
    let in_one: Vec<String> = (0..KEYS).map(|at| format!("{}{at}", LETTERS[0])).collect();
    let of_three = |at: usize| format!("{}{at}", LETTERS[at % LETTERS.len()]);
    let over_three: Vec<String> = (0..KEYS).map(of_three).collect();
    let value = vec![b'v'; load.value_bytes as usize];
    // What follows a transaction over regions within 30 s reads headers first, in both kinds.
    let (mut one_us, mut three_us) = (Vec::new(), Vec::new());
    for _ in 0..load.transactions {
        one_us.push(transaction_us(&mut connection, &in_one, &value).await?);
        three_us.push(transaction_us(&mut connection, &over_three, &value).await?);
    }
    let (one_us, three_us) = (spread(one_us), spread(three_us));
    let ratio = three_us["median"].as_f64().unwrap_or_default()
        / one_us["median"].as_f64().unwrap_or_default();
    Ok(json!({"exec_keys": KEYS, "one_region_us": one_us, "three_regions_us": three_us,
        "median_to_median": ratio}))
}

/// Sends a whole transaction and waits for its last reply. Returns the microseconds.
async fn transaction_us(
    connection: &mut RespConnection,
    names: &[String],
    value: &[u8],
) -> Result<f64> {
    let started = Instant::now();
    connection.send(&["MULTI"]).await?;
    for name in names {
        connection.send(&[b"SET", name.as_bytes(), value]).await?;
    }
    connection.send(&["EXEC"]).await?;
    connection.flush().await?;
    for _ in 0..names.len() + 1 {
        connection.receive().await?;
    }
    let reply = connection.receive().await?;
    let is_done = matches!(&reply, RespReply::Array(Some(replies)) if replies.len() == names.len());
    ensure!(is_done, "EXEC was answered with {reply:?}");
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

/// Splits the first region at the first names of the second and the third one.
fn split(programs: &Programs, running: &Running) -> Result<()> {
    let hex = |letter: &str| -> String {
        let key = redis_key::header_key(0, letter.as_bytes());
        // Without the family.
        key.iter().skip(1).map(|byte| format!("{byte:02x}")).collect()
    };
    let list = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        ctl_within(&programs.stele, &running.addresses[0], &words, READY_WITHIN)
    };
    let regions = list(&["regions"])?;
    let first = regions.first().and_then(|it| it["region"].as_u64()).context("no region")?;
    list(&["split", "--hex", &first.to_string(), &hex(LETTERS[1]), &hex(LETTERS[2])])?;
    let started = Instant::now();
    loop {
        let regions = list(&["regions"])?;
        if regions.len() == LETTERS.len() && regions.iter().all(|it| it["leader"].is_u64()) {
            return Ok(());
        }
        ensure!(started.elapsed() < READY_WITHIN, "the regions are not ready: {regions:?}");
        std::thread::sleep(POLL);
    }
}

/// Returns the addresses for Redis of the node that leads the region and of one that does not.
fn leader_and_other(programs: &Programs, running: &Running) -> Result<(String, String)> {
    let list = |what: &str| {
        ctl_within(&programs.stele, &running.addresses[0], &[what.to_owned()], READY_WITHIN)
    };
    let regions = list("regions")?;
    let leads = regions.first().and_then(|it| it["leader"].as_u64()).context("no leader")?;
    let stores = list("stores")?;
    let store = stores.iter().find(|store| store["store"].as_u64() == Some(leads));
    let address = store.and_then(|store| store["address"].as_str()).context("no such store")?;
    let at = running.addresses.iter().position(|it| it == address).context("an unknown address")?;
    let of = |at: usize| running.redis_addresses.get(at % running.redis_addresses.len()).cloned();
    let leader = of(at).context("no address for Redis")?;
    Ok((leader, of(at + 1).context("no address for Redis")?))
}

fn address_of(running: &Running, scheme: &str) -> Result<String> {
    let prefix = format!("{scheme}://");
    let list = running.urls.iter().find_map(|url| url.strip_prefix(&prefix));
    let first = list.and_then(|list| list.split(',').next());
    first.map(str::to_owned).with_context(|| format!("no {scheme}"))
}

/// Waits until a node executes commands: the level that they need may be in use a little after its start.
fn wait_until_answered(address: &str) -> Result<()> {
    Runtime::new()?.block_on(async {
        let started = Instant::now();
        loop {
            let mut connection = RespConnection::connect(address, None, BULK_BYTES_MAX).await?;
            match connection.call(&["SET", "a", "v"]).await? {
                RespReply::Status(_) => return Ok(()),
                other => ensure!(started.elapsed() < READY_WITHIN, "no first command: {other:?}"),
            }
            tokio::time::sleep(POLL).await;
        }
    })
}

/// Returns the least, the middle and the greatest number.
fn spread(mut numbers: Vec<f64>) -> Value {
    numbers.sort_by(f64::total_cmp);
    let at = |index: usize| numbers.get(index).map(|it| (it * 100.0).round() / 100.0);
    json!({"min": at(0), "median": at(numbers.len() / 2), "max": at(numbers.len().max(1) - 1)})
}
