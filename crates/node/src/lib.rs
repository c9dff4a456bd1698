//! The drivers of a node, without I/O, threads or a clock of their own.
//!
//! The server runs them on threads and sockets, the simulation in virtual time, the baselines with
//! other engines. Each driver takes inputs and the time, and returns what its owner must do next.

pub mod follow;
pub mod hand_over;
pub mod members;
pub mod moment;
pub mod placement;
pub mod recover;
pub mod report;
pub mod snapshot;
pub mod start;
pub mod succession;
