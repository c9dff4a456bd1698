//! Decisions of garbage collection as pure functions: no clock, no file, no lock.

mod pick;
mod state;
mod victims;

pub(crate) use pick::sorted_ago_s;
pub use pick::{credit_for, pick, pick_collect, pick_short_of_space, space_trigger};
pub use state::{Choice, ExpiredRun, FileState, Held, HotRange, State, TierState};
pub use victims::Files;
