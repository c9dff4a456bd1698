//! Simulated store.

use std::sync::Arc;
use stele_replica::{Now, RaftStore};
use stele_storage::StorageEngine;
use stele_types::{Error, KeyRange, LogBatch, Record, RegionId, Result};

/// Batches for which the device has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NoRoom {
    #[default]
    None,
    Entries,
    All,
}

/// Simulated store: its engine, its core while it runs, its clock and its disk.
pub(crate) struct Node<E: StorageEngine> {
    pub id: u64,
    pub engine: Arc<E>,
    /// Core; `None` while the store is down.
    pub core: Option<RaftStore<E>>,
    /// Number of its starts: pending events of an earlier start are dropped.
    pub incarnation: u64,
    /// Rate of its clock, in 1/1000.
    pub rate_permille: u64,
    offset_nanos: u64,
    /// Global time before which it is paused: inputs wait.
    pub paused_until: u64,
    /// Whether appends do not complete.
    pub stalled: bool,
    pub no_room: NoRoom,
    /// Least and greatest duration of an append.
    pub append_nanos: (u64, u64),
}

impl<E: StorageEngine> Node<E> {
    pub(crate) fn new(id: u64, engine: Arc<E>) -> Self {
        Self {
            id,
            engine,
            core: None,
            incarnation: 0,
            rate_permille: 1000,
            offset_nanos: id * 1_000_000_000,
            paused_until: 0,
            stalled: false,
            no_room: NoRoom::None,
            append_nanos: (100_000, 2_000_000),
        }
    }

    pub(crate) fn local(&self, global_nanos: u64) -> u64 {
        self.offset_nanos
            + (u128::from(global_nanos) * u128::from(self.rate_permille) / 1000) as u64
    }

    /// Returns the first global time at which its clock shows at least `local_nanos`.
    pub(crate) fn global(&self, local_nanos: u64) -> u64 {
        let own = u128::from(local_nanos.saturating_sub(self.offset_nanos));
        (own * 1000).div_ceil(u128::from(self.rate_permille)) as u64
    }

    pub(crate) fn now(&self, global_nanos: u64) -> Now {
        Now {
            monotonic_nanos: self.local(global_nanos),
            unix_millis: 1_700_000_000_000 + global_nanos / 1_000_000,
        }
    }

    /// Makes a batch durable, if there is room.
    pub(crate) fn append(&self, batch: &LogBatch) -> Result<()> {
        let is_entry =
            |record: &Record| matches!(record, Record::Entry(it) if it.region != RegionId(0));
        let is_refused = match self.no_room {
            NoRoom::None => false,
            NoRoom::Entries => batch.records.iter().any(is_entry),
            NoRoom::All => true,
        };
        match is_refused {
            true => Err(Error::NoSpace("simulated".into())),
            false => self.engine.append(batch),
        }
    }

    pub(crate) fn core(&mut self) -> &mut RaftStore<E> {
        self.core.as_mut().expect("the store is down")
    }
}

/// Snapshot in transfer; its pairs were read from the sender's view at the start.
pub(crate) struct Carried {
    pub ranges: Vec<KeyRange>,
    pub pairs: Vec<Vec<stele_storage::Pair>>,
}
