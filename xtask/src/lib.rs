//! What the chores and the measurements share: arguments, processes, programs of this workspace, and
//! clusters of them.

pub mod flags;
pub mod process;
pub mod programs;
pub mod servers;
pub mod workspace;
