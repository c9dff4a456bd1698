//! The index: key → location of the value. It consists of a memtable, immutable sorted runs in
//! tiers, and a manifest that lists the current runs. It has no log: the store's log is replayed
//! from the last durable [`Checkpoint`].
//!
//! The newest entry wins: memtable, then frozen memtables, then tiers by age. Runs hold one entry
//! per key and no sequence numbers. A view is a published sequence number with the memtables and
//! the immutable [`Version`] of that time.

mod cache;
mod cursor;
mod index;
mod manifest;
mod memtable;
mod merge;
mod options;
mod run;
mod version;
mod view;

pub use cache::BlockCache;
pub use cursor::{Cursor, Found, Lookup, ValueSlice};
pub use index::{Index, Ingest, Opened, VerifyReport};
pub use manifest::Checkpoint;
pub use manifest::frame::{ManifestRecord, inspect as inspect_manifest};
pub use manifest::rebuild::{Rebuilt, rebuild};
pub use manifest::{Change, Edit};
pub use memtable::{KeyWrite, RangeSet};
pub use merge::{
    Job, JobDone, JobStep, MergeInputs, MergeProgress, MergeSpec, MovingValue, ValueMover,
};
pub use options::IndexOptions;
pub use run::{
    Live, LostBlock, Run, RunCursor, RunExtra, RunItem, RunMeta, RunOptions, RunPart, RunRecord,
    RunVerified, RunWriter, ScrubbedBlocks, inspect_run, inspect_run_items, key_hash,
    parse_run_file_name, run_file_name,
};
pub use version::{Tier, Version, VersionId};
pub use view::{Direction, Estimate, View, ViewIter};
