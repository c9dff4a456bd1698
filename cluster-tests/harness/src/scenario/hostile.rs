use super::memory::PEAK_BYTES_MAX;
use super::three;
use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::{Cluster, process};
use crate::history::Ledger;
use crate::hostile::memory::{Attacker, Size, load, raise_file_limit};
use crate::hostile::{calls, sockets};
use crate::report::{Report, rounded};
use crate::verify;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stele_types::Prng;

const LIMIT: Duration = Duration::from_secs(20);

// Catalogue: 60, 62.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(30, 2);
    let mut prng = Prng::new(setup.seed);
    raise_file_limit();
    let mut cluster = Cluster::start(three(setup, &[])).await?;
    let options = SessionOptions { nodes: cluster.addresses(), limit: LIMIT };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    let size = Size::new(setup.short || rounds < 2);
    // The attacks on memory address a leader, which must not move meanwhile.
    cluster.set_option("balance", "0").await?;
    load(&mut session, size).await?;
    let (stop, puts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let honest = tokio::spawn(honest(
        Session::new(
            Arc::clone(&cluster.channels),
            SessionOptions { nodes: cluster.addresses(), limit: Duration::from_secs(5) },
        ),
        Arc::clone(&stop),
        Arc::clone(&puts),
    ));
    let before = peaks(&cluster)?;
    let mut attacks = 0u64;
    for round in 0..rounds {
        for address in cluster.addresses() {
            for attack in sockets::ATTACKS {
                (attack.run)(&address, &mut prng).await;
                attacks += 1;
                cluster.check_alive().with_context(|| format!("round {round}: {}", attack.name))?;
            }
            attacks += calls::bad_messages(&address, &mut prng).await?;
            cluster.check_alive().with_context(|| format!("round {round}: bad messages"))?;
        }
        attacks += Attacker::new(&mut session, size).await?.run_all().await?;
        cluster.check_alive().with_context(|| format!("round {round}: memory"))?;
        println!("round {round}: {attacks} attacks, {} honest puts", puts.load(Ordering::Relaxed));
    }
    let done = puts.load(Ordering::Relaxed);
    let started = Instant::now();
    while puts.load(Ordering::Relaxed) == done {
        ensure!(started.elapsed() < LIMIT, "no put succeeded within {LIMIT:?} after the attacks");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Ordering::Relaxed);
    honest.await?;
    let after = peaks(&cluster)?;
    let worst = after.iter().copied().max().unwrap_or_default();
    report.record("rounds", rounds);
    report.record("attacks", attacks);
    report.record("honest_puts", puts.load(Ordering::Relaxed));
    report.record("first_put_after_s", rounded(started.elapsed().as_secs_f64()));
    report.record("peak_memory_before_bytes", before);
    report.record("peak_memory_after_bytes", after);
    report.require(worst < PEAK_BYTES_MAX, format!("memory below {PEAK_BYTES_MAX} bytes: {worst}"));
    verify::everything(&mut cluster, &Ledger::new(0), 3).await
}

fn peaks(cluster: &Cluster) -> Result<Vec<u64>> {
    cluster.nodes.iter().map(|node| process::peak_memory_bytes(node.process()?)).collect()
}

pub(super) async fn honest(mut session: Session, stop: Arc<AtomicBool>, puts: Arc<AtomicU64>) {
    while !stop.load(Ordering::Relaxed) {
        if session.put(b"honest", Bytes::from_static(b"value")).await.is_done() {
            puts.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
