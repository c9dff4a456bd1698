//! The product's storage engine: the unified log, the index and garbage collection as one store.
//!
//! [`Store`] is driven by consensus (the [`stele_storage::StorageEngine`] trait); [`Db`] is the
//! same store as an embedded key-value engine with group commit, completions and time to live.

mod db;
mod identity;
mod options;
mod store;

pub use db::{
    Answer, Batch, Completed, Completion, CompletionQueue, Db, DbIter, DbStats, Group, Notify,
    QueueOptions, QueueStats, QueuedStore,
};
pub use options::Options;
pub use stele_gc::{GcOptions, Phase, PolicyKind};
pub use stele_storage::{
    Cached, EngineStats, EngineView, LogStore, Order, Pair, RangeSize, Repair, ScanOptions,
    Snapshots, StateMachine, StorageEngine,
};
pub use stele_types::{Error, KeyRange, Result};
pub use store::{
    Ingest, Opened, RecoveringStore, RepairStats, Replay, ScrubStats, Store, VerifyEvent,
    VerifyReport, View,
};
