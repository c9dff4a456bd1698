//! Interface between consensus and storage engine: durable log batches in, committed entries
//! applied, consistent views out. The product's engine keeps locators, which do not leave it; a
//! baseline keeps bytes (XLL section 3, Nezha section III-B).
//!
//! Invariant: applied ≤ committed; applied ≤ locally persisted; checkpointed ≤ applied;
//! truncated ≤ checkpointed.

pub mod conformance;
mod log_store;
mod model;
mod modification;
mod overlay;
mod pages;
mod state_machine;
mod stats;
mod view;

pub use log_store::{LogStore, Progress, Space};
pub use log_store::{LostEntry, RecoverableLog};
pub use model::{ModelEngine, ModelFactory, ModelIngest, ModelView};
pub use modification::{Decision, Modification, Modified, NewPair, decide};
pub use overlay::{
    DueMerge, Effects, KeyChange, Layer, MergedLayers, Overlaid, Overlay, effect_bytes,
};
pub use pages::{Pages, read_ident, read_regions};
pub use state_machine::{LostValue, Repair};
pub use state_machine::{Maintained, RangeSize, StateMachine};
pub use state_machine::{Snapshots, check_ranges};
pub use stats::EngineStats;
pub use view::{Admit, Admitted, Cached, EngineView, Order, Pair, ScanOptions};

/// Storage engine of one store.
///
/// [`LogStore::append`] may run on one thread while another applies: each of both on one thread at
/// a time. The calls that replace or drop ranges run on the thread that applies. Nothing is applied
/// to a region while a batch with a start or destroy mark of it is appended. Views may be used from
/// any thread.
pub trait StorageEngine: LogStore + StateMachine + Snapshots + Repair {}

impl<E: LogStore + StateMachine + Snapshots + Repair> StorageEngine for E {}
