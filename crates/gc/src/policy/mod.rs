//! Decisions of garbage collection as pure functions: no clock, no file, no lock.

mod files;
mod pick;
mod schedule;
mod state;
mod tiers;
mod victims;

pub use files::Files;
pub use pick::{credit_for, pick, pick_collect, pick_short_of_space, space_trigger};
pub(crate) use schedule::sorted_ago_s;
pub use state::{Choice, ExpiredRun, FileState, Held, HotRange, State, TierState};
