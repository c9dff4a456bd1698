use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::{Cluster, Spec, process};
use crate::hostile::memory::{Attacker, Size, load, raise_file_limit};
use crate::report::Report;
use anyhow::{Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Resident bytes of a node with the default settings, whatever its clients do.
pub(super) const PEAK_BYTES_MAX: u64 = 512 << 20;
const LIMIT: Duration = Duration::from_secs(20);

pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    raise_file_limit();
    let (rounds, size) = (setup.rounds(3, 1), Size::new(setup.short));
    let mut cluster = Cluster::start(Spec { nodes: 1, ..super::three(setup, &[]) }).await?;
    let options = SessionOptions { nodes: cluster.addresses(), limit: LIMIT };
    let mut session = Session::new(Arc::clone(&cluster.channels), options);
    load(&mut session, size).await?;
    let loaded = peak(&cluster)?;
    let mut requests = 0;
    for round in 0..rounds {
        let attacker = Attacker::new(&mut session, size).await?;
        requests += attacker.run_all().await?;
        cluster.check_alive()?;
        let started = Instant::now();
        while !session.put(b"honest", Bytes::from_static(b"value")).await.is_done() {
            ensure!(started.elapsed() < LIMIT, "no put within {LIMIT:?} after round {round}");
        }
        println!("round {round}: {requests} requests, peak {} MiB", peak(&cluster)? >> 20);
    }
    let worst = peak(&cluster)?;
    report.record("rounds", rounds);
    report.record("requests", requests);
    report.record("peak_memory_after_load_bytes", loaded);
    report.record("peak_memory_bytes", worst);
    report.require(worst < PEAK_BYTES_MAX, format!("memory below {PEAK_BYTES_MAX} bytes: {worst}"));
    Ok(())
}

fn peak(cluster: &Cluster) -> Result<u64> {
    let mut worst = 0;
    for node in &cluster.nodes {
        worst = process::peak_memory_bytes(node.process()?)?.max(worst);
    }
    Ok(worst)
}
