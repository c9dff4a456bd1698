//! Random runs of the client over a simulated network: leaders move, regions split, nodes stop,
//! connections break before and after a request is taken, requests and answers are late or lost. Time is
//! simulated, so that the same seed gives the same run.

mod calls;
mod network;

use calls::Call;
use network::{Dialler, Network};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;
use stele_client::{Client, Options, simulation};
use stele_types::{Prng, Result};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;

const STORES: u64 = 3;
/// Environment variables: the first seed, and the number of seeds.
const SEED: &str = "STELE_SEED";
const SEEDS: &str = "STELE_HISTORIES";

/// What a run returned: the calls with their ends, in the order of their ends.
struct Run {
    network: Arc<Network>,
    ends: Vec<(Call, Result<()>)>,
}

fn run(seed: u64) -> Run {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run_on_its_clock(seed))
}

async fn run_on_its_clock(seed: u64) -> Run {
    let network = Network::new(STORES, seed);
    let options = Options {
        timeout: Duration::from_millis(100 + network.below(700)),
        attempt_timeout: Duration::from_millis(30 + network.below(200)),
        connections_per_node: 1 + network.below(2) as usize,
        repeat_undetermined: network.below(4) == 0,
        ..Options::default()
    };
    let addresses: Vec<String> = (1..=STORES).map(|store| format!("n{store}:1")).collect();
    let dialler = Box::new(Dialler(Arc::clone(&network)));
    let client = simulation::connect(dialler, &addresses, options, seed).await.unwrap();
    network.state().unruly = Some(Prng::new(seed ^ 0xfa7e));
    let changes = tokio::spawn(change(Arc::clone(&network)));
    let mut ends = Vec::new();
    let mut id = 0;
    for _ in 0..1 + network.below(3) {
        ends.extend(some_calls(&client, &network, &mut id).await);
        // Connections are idle for a while.
        sleep(network.ms(1000)).await;
    }
    changes.abort();
    network.state().unruly = None;
    // What has arrived is executed, and every node is up again.
    sleep(Duration::from_secs(5)).await;
    let patient = client.with(Options { timeout: Duration::from_secs(10), ..options });
    let last = patient.put("last", "v").await;
    last.unwrap_or_else(|error| panic!("after all faults a put fails: {error}"));
    Run { network, ends }
}

async fn some_calls(
    client: &Client,
    network: &Arc<Network>,
    id: &mut u32,
) -> Vec<(Call, Result<()>)> {
    let mut calls = JoinSet::new();
    for _ in 0..2 + network.below(6) {
        let call = Call::draw(*id, network);
        *id += 1;
        let (client, start) = (client.clone(), network.ms(40));
        calls.spawn(async move {
            sleep(start).await;
            let ended = call.make(&client).await;
            (call, ended)
        });
    }
    calls.join_all().await
}

async fn change(network: Arc<Network>) {
    let splits = ["c", "g", "k", "p", "t", "w"];
    let mut next_split = 0;
    loop {
        sleep(network.ms(120)).await;
        let node = network.below(STORES) as usize;
        match network.below(6) {
            0 => network.cut(node),
            1 => {
                network.stop(node, network.ms(600));
                sleep(network.ms(200)).await;
                let to = 1 + (node as u64 + 1) % STORES;
                let of_node = |leader: &&mut u64| **leader == node as u64 + 1;
                network.state().leaders.values_mut().filter(of_node).for_each(|at| *at = to);
            }
            2 if next_split < splits.len() => {
                network.state().split(splits[next_split], 11 + next_split as u64);
                next_split += 1;
            }
            _ => {
                let to = 1 + network.below(STORES);
                let regions = network.state().leaders.len() as u64;
                let at = network.below(regions) as usize;
                *network.state().leaders.values_mut().nth(at).unwrap() = to;
            }
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn each_end_of_a_call_is_what_the_cluster_executed() {
    let first = number(SEED).unwrap_or(1);
    let seeds = number(SEEDS).unwrap_or(if number(SEED).is_some() { 1 } else { 300 });
    let next = AtomicU64::new(first);
    let counts: [AtomicU64; 4] = Default::default();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, |threads| threads.get().min(4)) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Relaxed);
                    if seed >= first + seeds {
                        break;
                    }
                    check(seed, &counts);
                }
            });
        }
    });
    let counts = counts.map(AtomicU64::into_inner);
    println!("seeds {first}..{}: {counts:?} done, not, unknown, partial", first + seeds);
    assert!(seeds < 100 || counts.iter().all(|count| *count > 10), "{counts:?}");
}

fn check(seed: u64, counts: &[AtomicU64; 4]) {
    let replay = format!(
        "seed {seed}; replay: {SEED}={seed} cargo test -p stele-client --test client each_end"
    );
    let run = catch_unwind(|| run(seed)).unwrap_or_else(|_| panic!("{replay}"));
    for (call, ended) in &run.ends {
        if let Err(violation) = call.check(ended, &run.network) {
            panic!("{violation}\n{call:?}\n{ended:?}\n{replay}");
        }
        counts[kind_of_end(ended)].fetch_add(1, Relaxed);
    }
}

fn kind_of_end(ended: &Result<()>) -> usize {
    match ended {
        Ok(()) => 0,
        Err(stele_types::Error::Partial(_)) => 3,
        Err(error) => 1 + usize::from(error.is_undetermined()),
    }
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    let ends = |seed| format!("{:?}", run(seed).ends);
    for seed in 1..=5 {
        assert_eq!(ends(seed), ends(seed), "seed {seed}");
    }
}
