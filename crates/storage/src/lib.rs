//! Interface between consensus and storage engine: durable log batches in, committed entries
//! applied, consistent views out. The product's engine keeps locators, which do not leave it; a
//! baseline keeps bytes (XLL section 3, Nezha section III-B).
//!
//! Invariant: applied ≤ committed; applied ≤ locally persisted; checkpointed ≤ applied;
//! truncated ≤ checkpointed.

mod found;
mod log_store;
mod modification;
mod overlay;
mod program;
mod record;
mod state_machine;
mod view;

pub use found::{FoundPair, PairSink, Passed, SharedSlice};
pub use log_store::{LogStore, LostEntry, Progress, RecoverableLog, Space};
pub use modification::{Decision, Modification, Modified, NewPair, decide};
pub use overlay::{
    DueMerge, Effects, KeyChange, Layer, MergedLayers, Overlaid, Overlay, effect_bytes,
};
pub use program::{Outcome, PROGRAM_KEYS_MAX, Pairs, Program, ProgramStep};
pub use record::{decode_record, encode_record};
pub use state_machine::{
    EngineStats, LostValue, Maintained, RangeSize, RegionEntries, Repair, Snapshots, StateMachine,
    check_ranges,
};
pub use view::{
    Admit, Admitted, Cached, CachedGet, EngineView, GotAdmitted, Order, Pages, Pair, PairMeta,
    PendingGet, ScanOptions, read_ident, read_regions,
};

/// Storage engine of one store.
///
/// [`LogStore::append`] may run on one thread while another applies: each of both on one thread at
/// a time. The calls that replace or drop ranges run on the thread that applies. Nothing is applied
/// to a region while a batch with a start or destroy mark of it is appended. Views may be used from
/// any thread.
pub trait StorageEngine: LogStore + StateMachine + Snapshots + Repair {}

impl<E: LogStore + StateMachine + Snapshots + Repair> StorageEngine for E {}
