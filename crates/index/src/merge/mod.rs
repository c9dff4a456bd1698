//! Flushes, which turn a frozen memtable into a run, and merges of runs. Both merge sorted sources
//! in slices, so that the caller paces them.

mod claim;
mod drop_rule;
mod job;
mod lookahead;
mod mover;
mod output;
mod sources;
mod spec;

pub(crate) use claim::{Claim, Slot};
pub(crate) use drop_rule::DropRule;
pub(crate) use job::Target;
pub use job::{Job, JobDone, JobStep};
pub use mover::{MovingValue, ValueMover};
pub(crate) use output::Output;
pub(crate) use sources::{Merged, Source, SourceCursor};
pub use spec::{MergeInputs, MergeProgress, MergeSpec};
