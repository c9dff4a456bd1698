//! The index: key → where the value lies. A memtable, immutable sorted runs in tiers, and a
//! manifest that says which runs are current. It has no log of its own: the store's log is replayed
//! from the last durable [`Checkpoint`].
//!
//! Newest wins everywhere: memtable, then frozen memtables, then tiers by age. Runs hold one entry
//! per key and no sequence numbers; a view is a published sequence number, the memtables of that
//! moment and one immutable [`Version`].

mod cache;
mod checkpoint;
mod cursor;
mod index;
mod manifest;
mod memtable;
mod merge;
mod options;
mod run;
mod slot;
mod version;
mod view;

pub use cache::BlockCache;
pub use checkpoint::Checkpoint;
pub use cursor::Cursor;
pub use index::{Index, Ingest, Opened, VerifyReport};
pub use manifest::inspect::{ManifestRecord, inspect as inspect_manifest};
pub use manifest::rebuild::{Rebuilt, rebuild};
pub use manifest::{Change, Edit};
pub use memtable::{Memtable, MemtableCursor, RangeSet};
pub use merge::{
    Job, JobDone, JobStep, Leaving, MergeInputs, MergeProgress, MergeSpec, ValueMover,
};
pub use options::IndexOptions;
pub use run::{
    Live, LostBlock, Run, RunCursor, RunExtra, RunItem, RunMeta, RunOptions, RunPart, RunRecord,
    RunVerified, RunWriter, ScrubbedBlocks, inspect_run, inspect_run_items, key_hash,
    parse_run_file_name, run_file_name, run_path,
};
pub use slot::{Found, Lookup, ValueSlice};
pub use version::{Tier, Version, VersionId};
pub use view::{Direction, Estimate, View, ViewIter};
