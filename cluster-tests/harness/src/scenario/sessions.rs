use super::three;
use crate::args::Setup;
use crate::cluster::Cluster;
use crate::report::Report;
use crate::scenario::kill;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stele_client::{Client, Options};
use stele_types::{Error, Prng};
use tokio::task::JoinHandle;

const FULL_ROUNDS: u64 = 100;
/// Clients, each with a session, and counters that they share.
const CLIENTS: u64 = 6;
const COUNTERS: u64 = 2;
/// An attempt that takes longer has an unknown outcome. Puts on a busy machine take about as long.
const ATTEMPT_TIMEOUTS_MS: [u64; 3] = [4, 12, 200];
const TIMEOUT: Duration = Duration::from_secs(40);

/// Increments of a client in a round.
#[derive(Default)]
struct Counted {
    /// Counter, and its value after each increment of which the outcome is known.
    sums: Vec<(u64, i64)>,
    undetermined: u64,
}

/// Each round: clients increment shared counters by requests of sessions, with attempts that end before
/// their answers, while nodes are killed, stopped for a time, and leaders move. Every increment counts
/// once: the sums that the clients got are all different, and none is missing.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(FULL_ROUNDS, 3);
    let mut prng = Prng::new(setup.seed);
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let (mut increments, mut undetermined, mut wrong) = (0, 0, Vec::new());
    for round in 0..rounds {
        let clients = start(&cluster, round, &mut prng).await?;
        disturb(&mut cluster, &mut prng).await.with_context(|| format!("round {round}"))?;
        let counted = clients.stop().await?;
        let reader = Client::connect(&cluster.addresses()).await.map_err(anyhow::Error::from)?;
        for counter in 0..COUNTERS {
            let value = reader.get(name(round, counter)).await?;
            let value = value.map_or(Ok(0), |value| {
                std::str::from_utf8(&value)?.parse::<i64>().map_err(anyhow::Error::from)
            })?;
            let sums = counted.iter().flat_map(|it| &it.sums).filter(|(of, _)| *of == counter);
            let sums: Vec<i64> = sums.map(|(_, sum)| *sum).collect();
            let open = counted.iter().map(|it| it.undetermined).sum();
            wrong.extend(check(value, &sums, open).err().map(|it| format!("round {round}: {it}")));
        }
        let done: usize = counted.iter().map(|it| it.sums.len()).sum();
        let open: u64 = counted.iter().map(|it| it.undetermined).sum();
        println!("round {round}: {done} increments, {open} without an outcome");
        increments += done;
        undetermined += open;
        cluster.check_alive()?;
        if !wrong.is_empty() {
            break;
        }
    }
    report.record("rounds", rounds);
    report.record("increments", increments);
    report.record("without_an_outcome", undetermined);
    report.require(increments > 0, "increments are done");
    report.require(wrong.is_empty(), format!("every increment counts once: {wrong:?}"));
    Ok(())
}

/// Fails unless each known increment made a sum of its own, and the others at most one each.
fn check(value: i64, sums: &[i64], open: u64) -> Result<()> {
    let different: BTreeSet<i64> = sums.iter().copied().collect();
    ensure!(different.len() == sums.len(), "two increments have one sum: {sums:?}");
    ensure!(different.iter().all(|sum| (1..=value).contains(sum)), "a sum is not of {value}");
    let missing = value - sums.len() as i64;
    ensure!(
        (0..=open as i64).contains(&missing),
        "{value} counted, {} increments known and {open} unknown",
        sums.len()
    );
    Ok(())
}

fn name(round: u64, counter: u64) -> String {
    format!("counter/{round:04}/{counter}")
}

struct Clients {
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Result<Counted>>>,
}

async fn start(cluster: &Cluster, round: u64, prng: &mut Prng) -> Result<Clients> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let limit = ATTEMPT_TIMEOUTS_MS[prng.below(ATTEMPT_TIMEOUTS_MS.len() as u64) as usize];
        let connecting = Options { timeout: TIMEOUT, ..Options::default() };
        let client = Client::connect_with(&cluster.addresses(), connecting).await?;
        let attempt_timeout = Duration::from_millis(limit);
        let client = client.with(Options { attempt_timeout, ..connecting });
        let (is_over, seed) = (is_over.clone(), prng.draw());
        tasks.push(tokio::spawn(count(client, round, seed, is_over)));
    }
    Ok(Clients { is_over, tasks })
}

async fn count(client: Client, round: u64, seed: u64, is_over: Arc<AtomicBool>) -> Result<Counted> {
    let (session, mut prng) = (client.session(), Prng::new(seed));
    let mut counted = Counted::default();
    while !is_over.load(Ordering::Relaxed) {
        let counter = prng.below(COUNTERS);
        match session.increment(name(round, counter), 1).await {
            Ok(sum) => counted.sums.push((counter, sum)),
            Err(Error::Undetermined(_)) => counted.undetermined += 1,
            // It had no effect: a sum that is missing shows whether that is true.
            Err(Error::Unavailable(_) | Error::Busy(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(counted)
}

impl Clients {
    async fn stop(self) -> Result<Vec<Counted>> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await??);
        }
        Ok(all)
    }
}

async fn disturb(cluster: &mut Cluster, prng: &mut Prng) -> Result<()> {
    kill::wait(prng, 200, 800).await;
    let victim = prng.below(cluster.nodes.len() as u64) as usize;
    match prng.below(3) {
        0 => {
            cluster.nodes[victim].pause()?;
            kill::wait(prng, 100, 1_500).await;
            cluster.nodes[victim].resume()?;
        }
        _ => {
            cluster.nodes[victim].kill()?;
            kill::wait(prng, 0, 1_000).await;
            cluster.nodes[victim].restart()?;
        }
    }
    kill::change_shape(cluster, prng).await;
    cluster.wait_ready().await?;
    kill::wait(prng, 200, 600).await;
    Ok(())
}
