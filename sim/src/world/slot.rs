//! A store: its disk, and while its node runs its engine, its consensus and the queue of its loop.

use std::sync::Arc;
use stele_engine::{RecoveringStore, Store as Engine};
use stele_raftstore::{Append, EntryRecovery, Input, RaftStore, Readers};
use stele_types::StoreId;
use stele_vfs::SimVfs;

/// The consensus of a store.
pub type Core = RaftStore<Engine>;

/// What runs of a store.
pub struct Running {
    /// Its engine.
    pub engine: Arc<Engine>,
    /// Its consensus; `None` until it joined a cluster.
    pub core: Option<Core>,
    /// What edges may know of its regions.
    pub readers: Option<Arc<Readers>>,
    /// What its loop takes at its next turn.
    pub inbox: Vec<Input<Engine>>,
    /// What its loop writes at its next turn.
    pub append: Option<Append>,
    /// Its loop waits for the disk.
    pub is_writing: bool,
    /// When its loop wakes.
    pub wake_at: Option<u64>,
    /// How long its maintenance sleeps when there is nothing to do.
    pub maintain_sleep: u64,
    /// Since when its maintenance fails while a merge waits to be gone on with.
    pub stuck_since: Option<u64>,
}

/// See the module.
pub struct Slot {
    /// Its number here; a replaced disk is a new slot.
    pub number: u64,
    /// The node it is in.
    pub node: u64,
    /// Its number in the cluster, once it joined.
    pub id: Option<StoreId>,
    /// Drawn for its directory; it joins with it.
    pub token: StoreId,
    /// Its disk.
    pub disk: SimVfs,
    /// While its node runs and it has not failed.
    pub running: Option<Running>,
    /// While it waits for copies of entries.
    pub mending: Option<EntryRecovery<RecoveringStore>>,
    /// Counts its starts.
    pub life: u64,
    /// Bytes of its log that were read at its last start.
    pub replayed_bytes: u64,
    /// Why it stopped.
    pub failed: Option<String>,
    /// Something was done to its disk that it may not survive.
    pub is_damaged: bool,
    /// Its disk took a write that it lost or wrote elsewhere.
    pub has_lied: bool,
    /// It opened on a disk that lied, and is replaced before it does anything.
    pub is_mistrusted: bool,
    /// What it lost can be made again, or it does not open.
    pub may_not_open: bool,
    /// Its disk fails operations: it may stop.
    pub is_troubled: bool,
    /// Its disk is gone for good.
    pub is_gone: bool,
    /// How long an append takes, least and most.
    pub append_nanos: (u64, u64),
    /// Appends do not end before this time.
    pub stalled_until: u64,
}

/// How long an append takes on a sound disk.
pub const SOUND_APPEND_NANOS: (u64, u64) = (30_000, 400_000);

impl Slot {
    /// A store on an empty disk.
    pub fn new(number: u64, node: u64, disk: SimVfs) -> Self {
        Self {
            number,
            node,
            id: None,
            token: StoreId(1_000_000 + number),
            disk,
            running: None,
            mending: None,
            life: 0,
            replayed_bytes: 0,
            failed: None,
            is_damaged: false,
            has_lied: false,
            is_mistrusted: false,
            may_not_open: false,
            is_troubled: false,
            is_gone: false,
            append_nanos: SOUND_APPEND_NANOS,
            stalled_until: 0,
        }
    }

    /// Its engine, while it runs.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        self.running.as_ref().map(|running| &running.engine)
    }

    /// Its consensus, while it runs.
    pub fn core(&mut self) -> Option<&mut Core> {
        self.running.as_mut()?.core.as_mut()
    }

    /// What edges may know of its regions, while it runs.
    pub fn readers(&self) -> Option<&Arc<Readers>> {
        self.running.as_ref()?.readers.as_ref()
    }
}
