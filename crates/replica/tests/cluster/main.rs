//! Several stores with a faulty network, disks and clocks: elections, reads, members, ranges, and
//! random histories checked for linearizability.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod checker;
mod clients;
mod elections;
mod histories;
mod leavers;
mod liveness;
mod members;
mod nemesis;
mod ranges;
mod reads;
mod sim;
