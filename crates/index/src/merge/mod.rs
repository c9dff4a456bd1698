//! Flushes, which turn a frozen memtable into a run, and merges of runs. Both merge sorted sources
//! in slices, so that the caller paces them.

mod job;
mod sources;
mod spec;

pub use job::{Job, JobDone, JobStep};
pub(crate) use job::{Output, Target};
pub(crate) use sources::{Merged, Source, SourceCursor};
pub(crate) use spec::{Claim, DropRule, Slot};
pub use spec::{MergeInputs, MergeProgress, MergeSpec, MovingValue, ValueMover};
