//! The product's storage engine: the unified log, the index and garbage collection as one store.
//!
//! [`Store`] is driven by consensus (the [`stele_storage::StorageEngine`] trait); [`Db`] is the
//! same store as an embedded key-value engine with group commit, completions and time to live.
//! [`Shards`] is one key space over several of them, one for each device.

mod boot_file;
mod checked_text;
mod db;
mod identity;
mod options;
mod shards;
mod store;

pub use boot_file::{DirStart, Started, describe_stop, keep_run, stop_beside};
pub use db::{
    Answer, Batch, Completed, Completion, CompletionQueue, Db, DbIter, DbStats, Device, Group,
    Notify, QueueOptions, QueueStats, QueuedStore, StoreMode, Stored,
};
pub use identity::{DirectoryKind, directory_kind};
pub use options::Options;
pub use shards::{
    Partition, SHARDS_MAX, SetId, ShardOf, ShardPlace, Shards, ShardsIter, ShardsOptions,
    ShardsStats, shard_of,
};
pub use stele_gc::{GcOptions, Phase, PolicyKind};
pub use stele_log::{History, HistoryReader, PinState, Pinned};
pub use stele_storage::{
    Cached, CachedGet, EngineStats, EngineView, LogStore, Modification, Modified, NewPair, Order,
    Pages, Pair, PairMeta, PendingGet, RangeSize, Repair, ScanOptions, Snapshots, StateMachine,
    StorageEngine, read_ident, read_regions,
};
pub use stele_types::{Error, KeyRange, Result};
pub use store::{
    Ingest, OldValue, OldValuesReader, Opened, RESERVE_FILE, RecoveringStore, RepairStats, Replay,
    ScrubStats, Store, VerifyEvent, VerifyReport, View,
};
