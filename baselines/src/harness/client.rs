//! Client in a closed loop: one pending request, through the leader.

use super::cluster::{Cluster, DATA};
use anyhow::{Context, Result, bail};
use bytes::Bytes;
use stele_node::store::LinearizableRead;
use stele_raftstore::{Done, Header, Input, Read, Reply, RequestId, Write};
use stele_server::store::StoreHandle;
use stele_storage::{EngineView, Overlaid, Pair, ScanOptions, StorageEngine};
use stele_types::{ColumnFamily, CommandBuilder, KeyRange};

const FAMILY: ColumnFamily = ColumnFamily::Default;
/// Overhead of a command with one pair, besides key and value.
const OVERHEAD_BYTES: usize = 64;
/// Byte limit of a scan, high enough that only the number of pairs limits it.
const SCAN_BYTES_MAX: usize = 1 << 30;

/// Client of a cluster.
pub struct Client<'a, E: StorageEngine> {
    leader: &'a StoreHandle<E>,
}

impl<'a, E> Client<'a, E>
where
    E: StorageEngine + 'static,
    E::View: 'static,
    E::Ingest: 'static,
{
    /// Creates a client.
    pub fn new(cluster: &'a Cluster<E>) -> Self {
        Self { leader: cluster.leader() }
    }

    fn header() -> Header {
        Header { region: DATA, ..Header::default() }
    }

    fn request(&mut self, make: impl FnOnce(RequestId) -> Input<E>) -> Result<Done> {
        match self.leader.request_blocking(make) {
            Reply::Done(done) => Ok(done),
            other => bail!("not done: {other:?}"),
        }
    }

    /// Puts a key. Returns when a quorum has it durably and the leader has applied it.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut command = CommandBuilder::with_capacity(key.len() + value.len() + OVERHEAD_BYTES);
        command.put(&FAMILY.engine_key(key), value, 0)?;
        let command = command.build().bytes().clone();
        let header = Self::header();
        self.request(|id| Input::Write(Write { id, header, command, frees: false }))?;
        Ok(())
    }

    /// Returns a linearizable view: by the lease, or else by a request to the leader's loop.
    fn view(&mut self) -> Result<Overlaid<E::View>> {
        let store = self.leader;
        let reader = store.readers().get(DATA).context("the region does not exist")?;
        let (header, now) = (Self::header(), || store.clock().monotonic_nanos());
        let view = || store.engine().view();
        if let Some(view) = LinearizableRead::leased_state(&reader, &header, now, view)? {
            return Ok(view);
        }
        self.request(|id| Input::Read(Read { id, header, replica: false }))?;
        let readers = store.readers();
        let confirmed = LinearizableRead::confirmed_state(&reader, &header, readers, view)?;
        confirmed.map_err(|reply| anyhow::anyhow!("not done: {reply:?}"))
    }

    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        let found = self.view()?.get(&FAMILY.engine_key(key))?;
        Ok(found.map(|pair| pair.value))
    }

    /// Returns up to `limit` pairs from `start` on.
    pub fn scan(&mut self, start: &[u8], limit: usize) -> Result<Vec<Pair>> {
        let range = FAMILY.engine_range(&KeyRange::new(start.to_vec(), Bytes::new()));
        let options = ScanOptions { bytes_max: SCAN_BYTES_MAX, ..ScanOptions::new(range, limit) };
        let view = self.view()?;
        let pairs = view.scan(&options)?;
        view.note_scan(&pairs);
        Ok(pairs)
    }
}
