//! Jobs: a frozen memtable becoming a run, and runs becoming runs. Both are the same merge of
//! sorted sources, done in slices so that the caller paces it.

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
pub use mover::{Leaving, ValueMover};
pub(crate) use output::Output;
pub(crate) use sources::{Merged, Source, SourceCursor};
pub use spec::{MergeInputs, MergeProgress, MergeSpec};
