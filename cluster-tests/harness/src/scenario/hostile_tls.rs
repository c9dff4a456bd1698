use super::hostile::honest;
use super::memory::PEAK_BYTES_MAX;
use super::three;
use crate::args::Setup;
use crate::client::{Session, SessionOptions};
use crate::cluster::certificates::{Certificates, of_cluster};
use crate::cluster::node::get;
use crate::cluster::{Cluster, Spec, process};
use crate::history::Ledger;
use crate::hostile::tls::{Identities, silent_handshakes};
use crate::hostile::{calls, sockets};
use crate::report::Report;
use crate::verify;
use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stele_types::Prng;

const LIMIT: Duration = Duration::from_secs(10);

/// Attacks nodes of a cluster with certificates while a client with one puts. Without a right an attacker gets no
/// answer, and the client is served during each attack.
// Catalogue: 60, 62.
pub(super) async fn run(setup: &Setup, report: &mut Report) -> Result<()> {
    let rounds = setup.rounds(10, 1);
    let mut prng = Prng::new(setup.seed);
    let certificates = of_cluster(setup.work(), 3)?;
    let other = Certificates::create(setup.work().join("other"))?;
    let identities = Identities::create(&certificates, &other)?;
    let spec = Spec { certificates: Some(certificates), ..three(setup, &[]) };
    let mut cluster = Cluster::start(spec).await?;
    let options = SessionOptions { nodes: cluster.addresses(), limit: LIMIT };
    let session = Session::new(Arc::clone(&cluster.channels), options);
    let (stop, puts) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let client = tokio::spawn(honest(session, Arc::clone(&stop), Arc::clone(&puts)));
    let mut attacks = 0;
    for round in 0..rounds {
        // One node a round has all of it where time is short.
        let nodes = cluster.nodes.len();
        let count = if setup.short { 1 } else { nodes };
        for number in (round as usize..).take(count) {
            let number = number % nodes;
            let address = cluster.nodes.get(number).context("a node")?.address().to_owned();
            let at = format!("round {round}, {address}");
            closed_ports(&cluster, number).await.context(at.clone())?;
            let mut stage = Stage { cluster: &mut cluster, puts: &puts, at };
            attacks += stage.run("calls", identities.calls(&address, &mut prng)).await?;
            attacks += stage.run("peers", identities.peers(&address)).await?;
            attacks += stage.run("giants", identities.giants(&address)).await?;
            let silent = async {
                let (count, served) =
                    tokio::try_join!(silent_handshakes(&address), identities.is_served(&address))?;
                let () = served;
                Ok(count)
            };
            attacks += stage.run("silent handshakes", silent).await?;
            attacks += stage.run("garbage", garbage(&identities, &address, &mut prng)).await?;
        }
        println!("round {round}: {attacks} attacks, {} puts", puts.load(Ordering::Relaxed));
    }
    stop.store(true, Ordering::Relaxed);
    client.await?;
    let peaks: Result<Vec<u64>> =
        cluster.nodes.iter().map(|node| process::peak_memory_bytes(node.process()?)).collect();
    let worst = peaks?.into_iter().max().unwrap_or_default();
    report.record("rounds", rounds);
    report.record("attacks", attacks);
    report.record("puts", puts.load(Ordering::Relaxed));
    report.record("peak_memory_bytes", worst);
    report.require(worst < PEAK_BYTES_MAX, format!("memory below {PEAK_BYTES_MAX} bytes: {worst}"));
    verify::everything(&mut cluster, &Ledger::new(0), 3).await
}

struct Stage<'a> {
    cluster: &'a mut Cluster,
    puts: &'a AtomicU64,
    at: String,
}

impl Stage<'_> {
    /// Runs an attack, during or right after which a put succeeds; returns its number of attempts.
    async fn run(&mut self, name: &str, attack: impl Future<Output = Result<u64>>) -> Result<u64> {
        let at = || format!("{}: {name}", self.at);
        let (before, started) = (self.puts.load(Ordering::Relaxed), Instant::now());
        let count = attack.await.with_context(at)?;
        let took = started.elapsed();
        let during = self.puts.load(Ordering::Relaxed) - before;
        // A put takes milliseconds; a machine may be busy.
        ensure!(during > 0 || took < Duration::from_secs(2), "{}: no put in {took:?}", at());
        while self.puts.load(Ordering::Relaxed) == before {
            ensure!(started.elapsed() < took + LIMIT, "{}: no put in {LIMIT:?}", at());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.cluster.check_alive().with_context(at)?;
        Ok(count)
    }
}

/// Bytes that are no TLS, and hostile bytes within TLS.
async fn garbage(identities: &Identities, address: &str, prng: &mut Prng) -> Result<u64> {
    let proxies = identities.proxies(address).await?;
    let within = proxies.iter().map(|proxy| proxy.address.as_str());
    let mut count = 0;
    for address in std::iter::once(address).chain(within) {
        for attack in sockets::ATTACKS {
            (attack.run)(address, prng).await;
            count += 1;
        }
    }
    let [client, _] = &proxies;
    Ok(count + calls::bad_messages(&client.address, prng).await?)
}

/// Fails if a node answers anything without a certificate but the state of its health, at any port.
async fn closed_ports(cluster: &Cluster, number: usize) -> Result<()> {
    let node = cluster.nodes.get(number).context("a node")?;
    let health = node.launch.health.as_deref().context("no address of probes")?;
    let listening = process::listening(node.process()?)?;
    let known = [node.address(), health].map(|address| address.rsplit_once(':').map(|it| it.1));
    for port in listening {
        let text = port.to_string();
        ensure!(known.contains(&Some(&text)), "port {port} listens too");
    }
    for page in ["/", "/status", "/metrics", "/healthz"] {
        let answer = get(node.address(), page, LIMIT).await;
        ensure!(answer.is_err(), "{page} without TLS: {answer:?}");
        let (status, body) = get(health, page, LIMIT).await?;
        let is_health = page == "/healthz" && status == 200;
        ensure!(is_health || status == 404, "{page} of probes: {status}");
        ensure!(body.is_empty(), "{page} of probes: {body}");
    }
    Ok(())
}
