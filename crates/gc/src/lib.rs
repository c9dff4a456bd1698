//! Garbage collection of one store: flush, merge, relocate, sort and reclaim, each decided by a
//! pure function and carried out in slices within a byte budget.

mod options;
mod policy;

pub use options::{GcOptions, PolicyKind};
pub use policy::{Choice, FileState, Held, HotRange, State, TierState, credit_for, pick, pick_collect};
