//! Reads from a leader that is cut off from its peers, while a writer writes through the others.

use crate::client::{Session, SessionOptions};
use crate::cluster::Cluster;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawPutRequest};
use stele_proto::tikvpb::tikv_client::TikvClient;
use stele_types::StoreId;
use tonic::transport::Channel;

const KEY: &[u8] = b"stale-reads";
/// Time limit of a read: a leader without a lease waits for peers that do not respond.
const READ_LIMIT: Duration = Duration::from_millis(100);
const WRITE_LIMIT: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Debug, Default)]
pub(super) struct Reads {
    pub served: u64,
    pub refused: u64,
    /// Served with a value older than one acknowledged before the read began.
    pub stale: u64,
}

impl Reads {
    pub(super) fn add(&mut self, other: &Self) {
        self.served += other.served;
        self.refused += other.refused;
        self.stale += other.stale;
    }
}

/// A reader of one node, and a writer of increasing numbers to one key through the others.
#[derive(Debug)]
pub(super) struct StaleReads {
    reader: TikvClient<Channel>,
    request: RawGetRequest,
    /// Each other node with the context of its replica. No lookups are made, because the node that
    /// serves them may be cut off too.
    writers: Vec<(TikvClient<Channel>, Context)>,
    acknowledged: u64,
}

impl StaleReads {
    /// Caches the route to the node, which must lead the key's region.
    pub(super) async fn new(cluster: &Cluster, node: usize) -> Result<Self> {
        let mut nodes = cluster.addresses();
        let address = nodes.remove(node);
        let options = SessionOptions { nodes, limit: WRITE_LIMIT };
        let mut writer = Session::new(Arc::clone(&cluster.channels), options);
        let store = cluster.store_of(node).await?.0;
        let started = Instant::now();
        // Greater than every number of earlier rounds.
        let acknowledged = std::time::SystemTime::UNIX_EPOCH.elapsed()?.as_nanos() as u64;
        loop {
            let is_put = writer.put(KEY, number(acknowledged)).await.is_done();
            let route = writer.route(KEY).await?;
            let peer = route.region.peers.get(route.leader).copied().context("no leader")?;
            if is_put && peer.store_id == store {
                let context = Some(route.context(&peer, false));
                let key = Bytes::from_static(KEY);
                let request = RawGetRequest { context, key, ..Default::default() };
                let reader = cluster.channels.tikv(&address, READ_LIMIT)?;
                let mut writers = Vec::new();
                for peer in route.region.peers.iter().filter(|peer| peer.store_id != store) {
                    let node = cluster.node_of(StoreId(peer.store_id)).await?;
                    let writer =
                        cluster.channels.tikv(cluster.nodes[node].address(), WRITE_LIMIT)?;
                    writers.push((writer, route.context(peer, false)));
                }
                return Ok(Self { reader, request, writers, acknowledged });
            }
            ensure!(started.elapsed() < LIMIT, "node {node} is not the leader after {LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Reads and writes for this time; returns the counts.
    pub(super) async fn run(self, time: Duration) -> Result<Reads> {
        let Self { mut reader, request, writers, acknowledged } = self;
        let newest = Arc::new(AtomicU64::new(acknowledged));
        let stop = Arc::new(AtomicBool::new(false));
        let (noted, stopped) = (Arc::clone(&newest), Arc::clone(&stop));
        let writing = tokio::spawn(async move {
            for (next, (writer, context)) in (acknowledged + 1..).zip(writers.iter().cycle()) {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                match put(writer.clone(), context.clone(), next).await {
                    true => noted.store(next, Ordering::SeqCst),
                    false => tokio::time::sleep(Duration::from_millis(2)).await,
                }
            }
        });
        let mut reads = Reads::default();
        let until = Instant::now() + time;
        while Instant::now() < until {
            let before = newest.load(Ordering::SeqCst);
            match reader.raw_get(request.clone()).await.map(tonic::Response::into_inner) {
                Ok(found) if found.region_error.is_none() && found.error.is_empty() => {
                    reads.served += 1;
                    reads.stale += u64::from(found.value < number(before));
                }
                _ => reads.refused += 1,
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stop.store(true, Ordering::Relaxed);
        writing.await?;
        Ok(reads)
    }
}

/// Puts a number; returns whether the put was acknowledged.
async fn put(mut writer: TikvClient<Channel>, context: Context, next: u64) -> bool {
    let (key, value) = (Bytes::from_static(KEY), number(next));
    let request = RawPutRequest { context: Some(context), key, value, ..Default::default() };
    let answer = writer.raw_put(request).await.map(tonic::Response::into_inner);
    answer.is_ok_and(|answer| answer.region_error.is_none() && answer.error.is_empty())
}

/// Encodes a number as bytes that sort like numbers.
fn number(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}
