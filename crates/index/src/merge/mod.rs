//! Flushes, which turn a frozen memtable into a run, and merges of runs. Both merge sorted sources
//! in slices, so that the caller paces them.

mod job;
mod lookahead;
mod output;
mod sources;
mod spec;

pub(crate) use job::Target;
pub use job::{Job, JobDone, JobStep};
pub(crate) use output::Output;
pub(crate) use sources::{Merged, Source, SourceCursor};
pub(crate) use spec::DropRule;
pub(crate) use spec::{Claim, Slot};
pub use spec::{MergeInputs, MergeProgress, MergeSpec};
pub use spec::{MovingValue, ValueMover};
