//! Store: its disk, and while its node runs the engine, the consensus and the inbox of its loop.

use crate::world::{Device, Requester};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use stele_engine::{RecoveringStore, Store as Engine};
use stele_node::members::Known;
use stele_node::snapshot::{Parts, Reception};
use stele_replica::{EntryRecovery, RaftStore, ReadGate};
use stele_replica::{Maintenance, Queue, SlowWriters, StoreLoop};
use stele_simulated_disk::SimVfs;
use stele_types::{StoreId, StoreRun};

/// Consensus of a store.
pub type Core = RaftStore<Engine>;

/// Running parts of a store.
pub struct Running {
    /// Engine of the store.
    pub engine: Arc<Engine>,
    /// Loop; `None` until the store joined a cluster, and after it ended.
    pub store_loop: Option<StoreLoop<Engine, Requester>>,
    /// Region state for request threads.
    pub readers: Option<Arc<ReadGate>>,
    /// Items for the loop's next turn.
    pub queue: Queue<Engine, Requester>,
    /// A batch is being written.
    pub is_writing: bool,
    /// Time of the loop's next turn.
    pub wake_at: Option<u64>,
    /// Parts of snapshots that were received before their connections broke.
    pub parts: Parts<Reception<Engine>>,
    /// Policy of maintenance.
    pub maintenance: Maintenance,
    /// Writers, which wait while garbage collection lags.
    pub writers: SlowWriters,
    /// The core needs a checkpoint.
    pub wants_checkpoint: AtomicBool,
    /// Time since when maintenance fails with an unfinished merge.
    pub stuck_since: Option<u64>,
}

/// State of a store.
pub struct Slot {
    /// Number of the slot; a replaced disk gets a new slot.
    pub number: u64,
    /// Node of the store.
    pub node: u64,
    /// Store id, once it joined.
    pub id: Option<StoreId>,
    /// Token of the directory, sent with the join request.
    pub token: StoreId,
    /// Disk of the store.
    pub disk: SimVfs,
    /// Running parts; `None` while the node is down or the store has failed.
    pub running: Option<Running>,
    /// Log entry recovery, while it runs.
    pub recovery: Option<EntryRecovery<RecoveringStore>>,
    /// Incremented by each start and stop.
    pub incarnation: u64,
    /// Incarnation of the last start that was counted, and its run; only in plans with faults of
    /// directories.
    pub run: (u64, StoreRun),
    /// What the file of the list of members in the directory holds.
    pub members: Option<Known>,
    /// At its last start the directory was not where it was at the start before.
    pub has_moved: bool,
    /// The operator says that the directory was moved or restored.
    pub may_have_moved: bool,
    /// It runs from a copy or an earlier state of a directory: no node hears it.
    pub is_copy: bool,
    /// Slot of the original, which runs as long as the copy does; `None` for an earlier state.
    pub original: Option<u64>,
    /// Log bytes read at the last start.
    pub replayed_bytes: u64,
    /// Error that stopped the store.
    pub failed: Option<String>,
    /// The disk was damaged: errors are permitted.
    pub is_damaged: bool,
    /// The disk refuses to read some values: reads of these fail, and nothing else.
    pub is_unreadable: bool,
    /// The operator replaces the disk as soon as the other stores have what is on it.
    pub is_to_be_replaced: bool,
    /// Snapshots of which the reception began since the last report of the node.
    pub receptions_begun: u64,
    /// The disk lost or misdirected a write.
    pub has_lied: bool,
    /// The store opened after lost writes, and is replaced before it acts.
    pub is_mistrusted: bool,
    /// Files were removed: the store rebuilds them or does not open.
    pub may_not_open: bool,
    /// The disk fails operations: the store may stop.
    pub is_troubled: bool,
    /// The disk was removed permanently.
    pub is_gone: bool,
    /// Lasting speed of the disk.
    pub device: Device,
    /// Shortest and longest duration of an append, besides what the device's lasting speed adds.
    pub append_nanos: (u64, u64),
    /// Factor of the time that maintenance takes.
    pub maintenance_factor: u64,
    /// Last time at which the store slowed its writers.
    pub lagged_at: Option<u64>,
    /// Time before which no append completes.
    pub stalled_until: u64,
    /// Time before which the disk does not complete any operation.
    pub hangs_until: u64,
    /// The loop waits for the disk while it hangs.
    pub loop_hangs: bool,
    /// Time before which the store is not restarted after it failed.
    pub fails_until: u64,
    /// The disk is replaced after the store failed.
    pub is_replaced_on_failure: bool,
}

/// Copy of a store's directory. What the original cannot read the copy cannot read either.
pub struct CopiedDirectory {
    /// The copied disk.
    pub disk: SimVfs,
    /// What the file of the list of members holds.
    pub members: Option<Known>,
    /// Reads of it may fail.
    pub may_fail_reads: bool,
}

impl CopiedDirectory {
    /// Copies the directory of a store.
    pub fn of(slot: &Slot) -> Self {
        let (disk, members) = (slot.disk.copy(), slot.members.clone());
        Self { disk, members, may_fail_reads: slot.may_fail_reads() }
    }
}

/// Duration of an append on a disk without faults.
pub const SOUND_APPEND_NANOS: (u64, u64) = (30_000, 400_000);

impl Slot {
    /// Creates a store on an empty disk.
    pub fn new(number: u64, node: u64, disk: SimVfs, device: Device) -> Self {
        Self {
            number,
            node,
            id: None,
            token: StoreId(1_000_000 + number),
            disk,
            running: None,
            recovery: None,
            incarnation: 0,
            run: (0, StoreRun::default()),
            members: None,
            has_moved: false,
            may_have_moved: false,
            is_copy: false,
            original: None,
            replayed_bytes: 0,
            failed: None,
            is_damaged: false,
            is_unreadable: false,
            is_to_be_replaced: false,
            receptions_begun: 0,
            has_lied: false,
            is_mistrusted: false,
            may_not_open: false,
            is_troubled: false,
            is_gone: false,
            device,
            append_nanos: SOUND_APPEND_NANOS,
            maintenance_factor: 1,
            lagged_at: None,
            stalled_until: 0,
            hangs_until: 0,
            loop_hangs: false,
            fails_until: 0,
            is_replaced_on_failure: false,
        }
    }

    /// Returns whether the store runs, or recovers entries before it does.
    pub fn is_running(&self) -> bool {
        (self.running.is_some() && self.failed.is_none()) || self.recovery.is_some()
    }

    /// Returns whether reads of stored data may fail.
    pub fn may_fail_reads(&self) -> bool {
        self.is_damaged || self.is_troubled || self.is_unreadable
    }

    /// Returns whether the loop has ended while its process goes on.
    pub fn has_ended_loop(&self) -> bool {
        let has_ended = |it: &Running| it.readers.is_some() && it.store_loop.is_none();
        self.running.as_ref().is_some_and(has_ended)
    }

    /// Returns the engine of a running store, or of one with a loop that ended.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        self.running.as_ref().map(|running| &running.engine)
    }

    /// Returns the consensus of a running store.
    pub fn core(&mut self) -> Option<&mut Core> {
        Some(self.running.as_mut()?.store_loop.as_mut()?.core())
    }

    /// Returns the region state for request threads of a running store.
    pub fn readers(&self) -> Option<&Arc<ReadGate>> {
        self.running.as_ref()?.readers.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_simulated_disk::SimOptions;

    #[test]
    fn reads_of_a_copy_may_fail_where_those_of_its_original_may() {
        let disk = SimVfs::new(SimOptions::default());
        let mut slot = Slot::new(1, 1, disk, Device::new(None));
        assert!(!CopiedDirectory::of(&slot).may_fail_reads);
        for flaws in [(true, false), (false, true)] {
            (slot.is_unreadable, slot.is_damaged) = flaws;
            assert!(CopiedDirectory::of(&slot).may_fail_reads);
        }
    }
}
