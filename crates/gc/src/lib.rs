//! Garbage collection (GC) of one store: flush, merge, relocate, sort and reclaim. A pure function
//! ([`pick`]) decides each job, and slices within a byte budget execute it.
//!
//! The invariant of file removal is in `removal.rs`. The order that preserves it through a crash:
//! the outputs of a relocation are synced, then their directory, then one manifest edit is written;
//! only then may the victim be removed.

mod drop_time;
mod force;
mod gc;
mod heat;
mod jobs;
mod mover;
mod observe;
mod options;
mod policy;
mod removal;
mod saved;
mod sorting;
mod stats;
mod work;

#[doc(hidden)]
pub mod fuzzing {
    //! Decoders of bytes from outside, for fuzz targets.

    /// Decodes the state that a manifest holds, and encodes it again.
    pub fn saved(bytes: &[u8]) -> Option<bytes::Bytes> {
        crate::saved::Saved::decode(bytes).map(|saved| saved.encode())
    }
}

pub use drop_time::TimeSource;
pub use gc::{Gc, GcHooks};
pub use heat::Scanned;
pub use options::{GcOptions, PolicyKind};
pub use policy::{
    Choice, ExpiredRun, FileState, Files, Held, HotRange, State, TierState, credit_for, pick,
    pick_collect, pick_short_of_space, space_trigger,
};
pub use stats::{Forced, GcStats, Phase, Pressure, Stage, StageBytes, StepDone};
