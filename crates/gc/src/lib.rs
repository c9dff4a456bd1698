//! Garbage collection of one store: flush, merge, relocate, sort and reclaim, each decided by a
//! pure function ([`pick`]) and carried out in slices within a byte budget.
//!
//! The law of removal is in `law.rs`. The order that makes it hold through a crash: outputs of a
//! relocation are synced, then their directory, then one manifest edit; only then is the victim
//! removable.

mod force;
mod gc;
mod heat;
mod jobs;
mod mover;
mod observe;
mod options;
mod policy;
mod pressure;
mod read_ahead;
mod reclaim;
mod removal;
mod saved;
mod sorting;
mod stats;
mod work;

#[doc(hidden)]
pub mod fuzzing {
    //! What reads bytes from outside, for fuzz targets.

    /// Reads the state that a manifest keeps, and writes it again.
    pub fn saved(bytes: &[u8]) -> Option<bytes::Bytes> {
        crate::saved::Saved::decode(bytes).map(|saved| saved.encode())
    }
}

pub use gc::{Gc, GcHooks};
pub use heat::Scanned;
pub use options::{GcOptions, PolicyKind};
pub use policy::{
    Choice, FileState, Held, HotRange, State, TierState, credit_for, pick, pick_collect,
    pick_short_of_space, space_trigger,
};
pub use stats::{Forced, GcStats, Phase, Pressure, Stage, StageBytes, StepDone};
