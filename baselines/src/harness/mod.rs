//! Replicas of one Raft group in one process, on the product's consensus core and any engine: one
//! thread and one directory for each store, real disks, the real clock. Messages are passed in
//! memory. The loop follows that of `stele-server` (`store/store_loop.rs`), and is the same for
//! every engine.

mod client;
mod cluster;
mod inbox;
mod slots;
mod store_loop;

pub use client::Client;
pub use cluster::Cluster;
