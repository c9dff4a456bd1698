//! Replicas of one Raft group in one process, on the product's consensus core and any engine: a
//! thread and a directory for each store, real disks, the real clock. Messages are handed over in
//! memory. The loop is the one of `stele-server` (`store/turn.rs`), for every engine the same.

mod client;
mod cluster;
mod inbox;
mod slots;
mod store_loop;

pub use client::Client;
pub use cluster::Cluster;
