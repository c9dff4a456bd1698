//! Client in a closed loop: one pending request, through the leader.

use super::Stages;
use super::cluster::{Cluster, DATA, Store};
use crate::designs::buc::{Decision, Related, both};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::time::{Duration, Instant};
use stele_replica::{Done, Header, LinearizableRead, Read, Reply, Request, Write};
use stele_storage::{
    Effects, EngineView, Overlaid, Pair, Passed, ScanOptions, StateMachine, StorageEngine,
};
use stele_types::{ColumnFamily, CommandBuilder, KeyRange, LogIndex};

const FAMILY: ColumnFamily = ColumnFamily::Default;
/// Overhead of a command with one pair, besides key and value.
const OVERHEAD_BYTES: usize = 64;
/// Byte limit of a scan, high enough that only the number of pairs limits it.
const SCAN_BYTES_MAX: usize = 1 << 30;
/// Longest wait for an entry. A store that applies nothing for so long has stopped.
const APPLY_WAIT_MAX: Duration = Duration::from_secs(60);

/// View of an engine with the effects of what waits before it, and of what the core has not applied.
type State<E> = Overlaid<Overlaid<<E as StateMachine>::View>>;

/// Client of a cluster.
pub struct Client<'a, E: StorageEngine> {
    cluster: &'a Cluster<E>,
    leader: &'a Store<E>,
    stages: Stages,
}

impl<'a, E: StorageEngine + 'static> Client<'a, E> {
    /// Creates a client.
    pub fn new(cluster: &'a Cluster<E>) -> Self {
        Self { cluster, leader: cluster.leader(), stages: Stages::default() }
    }

    /// Returns the times of the requests so far.
    pub fn stages(&self) -> &Stages {
        &self.stages
    }

    fn header() -> Header {
        Header { region: DATA, ..Header::default() }
    }

    fn now_nanos(&self) -> u64 {
        self.leader.clock().monotonic_nanos()
    }

    fn applied(&self) -> LogIndex {
        self.leader.engine().inner().progress(DATA).map_or(LogIndex(0), |progress| progress.applied)
    }

    /// Waits until the leader has applied an entry.
    fn wait_applied(&self, index: LogIndex) -> Result<()> {
        let is_applied = self.leader.engine().wait_applied(DATA, index, APPLY_WAIT_MAX)?;
        ensure!(is_applied, "entry {index} is not applied after {APPLY_WAIT_MAX:?}");
        Ok(())
    }

    fn request(&mut self, request: impl Into<Request>) -> Result<Done> {
        match self.leader.submit_blocking(request) {
            Reply::Done(done) => Ok(done),
            other => bail!("not done: {other:?}"),
        }
    }

    /// Puts a key. Returns when it is answered: it is on the disks of a quorum, and, without commit
    /// return, applied.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut command = CommandBuilder::with_capacity(key.len() + value.len() + OVERHEAD_BYTES);
        command.put(&FAMILY.engine_key(key), value, 0)?;
        self.write(command, false)
    }

    /// Deletes a key, as [`Client::put`] puts one.
    pub fn delete(&mut self, key: &[u8]) -> Result<()> {
        let mut command = CommandBuilder::with_capacity(key.len() + OVERHEAD_BYTES);
        command.delete(&FAMILY.engine_key(key))?;
        self.write(command, true)
    }

    fn write(&mut self, command: CommandBuilder, only_deletes: bool) -> Result<()> {
        let command = command.build().bytes().clone();
        let (header, arrived_nanos) = (Self::header(), self.now_nanos());
        let done = self.request(Write { header, command, only_deletes })?;
        if let Done::Written { timings, index, .. } = done {
            if self.cluster.mode().apply_queue && !self.cluster.mode().commit_return {
                self.wait_applied(index)?;
            }
            self.stages.note_write(arrived_nanos, &timings, self.now_nanos());
        }
        Ok(())
    }

    /// Returns a linearizable state. Without read acceleration it is one in which nothing waits that was
    /// committed before.
    fn state(&mut self) -> Result<State<E>> {
        let state = self.confirmed_state()?;
        let mode = self.cluster.mode();
        if !mode.apply_queue || mode.read_acceleration || !state.view().has_effects() {
            return Ok(state);
        }
        let reader = self.leader.readers().get(DATA).context("the region does not exist")?;
        let (began_nanos, applied, visible) = (self.now_nanos(), self.applied(), reader.visible());
        self.wait_applied(visible)?;
        let waited_nanos = self.now_nanos().saturating_sub(began_nanos);
        self.stages.note_wait_for_apply(waited_nanos, visible.0.saturating_sub(applied.0));
        let view = self.leader.engine().inner().view()?;
        Ok(Overlaid::new(Overlaid::new(view, Effects::default()), Effects::default()))
    }

    /// Returns a linearizable state: by the lease, or else by a request to the leader's loop.
    fn confirmed_state(&mut self) -> Result<State<E>> {
        let store = self.leader;
        let reader = store.readers().get(DATA).context("the region does not exist")?;
        let (header, now) = (Self::header(), || store.clock().monotonic_nanos());
        let view = || store.engine().view();
        if let Some(read) = LinearizableRead::by_lease(&reader, &header, now()) {
            let state = read.finish(view()?, store.readers(), now());
            if let Some(state) = state.map_err(|refusal| anyhow::anyhow!("{refusal:?}"))? {
                return Ok(state);
            }
        }
        let (began_nanos, applied) = (now(), self.applied());
        let done = self.request(Read { header, replica: false })?;
        if let Done::ReadReady { visible } = done {
            let entries = visible.0.saturating_sub(applied.0);
            self.stages.note_wait(now().saturating_sub(began_nanos), entries);
        }
        let readers = store.readers();
        let confirmed = LinearizableRead::confirmed_state(&reader, &header, readers, view)?;
        confirmed.map_err(|reply| anyhow::anyhow!("not done: {reply:?}"))
    }

    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        let began_nanos = self.now_nanos();
        let found = self.state()?.get(&FAMILY.engine_key(key))?;
        self.stages.note_read(self.now_nanos().saturating_sub(began_nanos));
        Ok(found.map(|pair| pair.value))
    }

    /// Returns up to `limit` pairs from `start` on.
    pub fn scan(&mut self, start: &[u8], limit: usize) -> Result<Vec<Pair>> {
        let range = FAMILY.engine_range(&KeyRange::new(start.to_vec(), Bytes::new()));
        let options = ScanOptions { bytes_max: SCAN_BYTES_MAX, ..ScanOptions::new(range, limit) };
        let began_nanos = self.now_nanos();
        let state = self.state()?;
        let pairs = match self.cluster.mode().costed_scans {
            true => self.costed_scan(&state, &options)?,
            false => state.scan(&options)?,
        };
        state.note_scan(&Passed::of(&pairs));
        self.stages.note_read(self.now_nanos().saturating_sub(began_nanos));
        Ok(pairs)
    }

    /// Scans by the paper's cost model.
    fn costed_scan(&self, state: &State<E>, options: &ScanOptions) -> Result<Vec<Pair>> {
        let costs = self.cluster.costs();
        let reader = self.leader.readers().get(DATA).context("the region does not exist")?;
        let waiting = state.view().effects().changes(&options.range);
        let (Some(waiting), Some(later)) = (waiting, state.effects().changes(&options.range))
        else {
            costs.note_range_delete();
            return self.relaxed_scan(reader.visible(), options);
        };
        let related = Related::of(both(waiting, later), options.limit);
        let (applied, began) = (self.applied(), Instant::now());
        let is_applying = applied < reader.visible();
        let more = match costs.decide(&related, applied) {
            Decision::Wait(relaxed) => return self.relaxed_scan(relaxed, options),
            Decision::ReadMore(more) => usize::try_from(more)?,
            Decision::Immediate => 0,
        };
        let limit = options.limit + more;
        let pairs = state.view().view().scan(&ScanOptions { limit, ..options.clone() })?;
        let took = began.elapsed();
        costs.note_read(pairs.len(), took);
        // Whether some are applied in this time must not decide whether it counts.
        if is_applying {
            costs.note_applied(self.applied().0.saturating_sub(applied.0), took);
        }
        Ok(related.merge(pairs, options.limit))
    }

    /// Waits until `relaxed` is applied, and scans a view alone.
    ///
    /// The state before the wait was linearizable and all entries related to the scan are applied
    /// now. The view may hold later ones, which are committed: the scan counts as read after them.
    fn relaxed_scan(&self, relaxed: LogIndex, options: &ScanOptions) -> Result<Vec<Pair>> {
        let (applied, began) = (self.applied(), Instant::now());
        self.wait_applied(relaxed)?;
        self.cluster.costs().note_applied(relaxed.0.saturating_sub(applied.0), began.elapsed());
        Ok(self.leader.engine().inner().view()?.scan(options)?)
    }
}
