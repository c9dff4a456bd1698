//! Replicas of one Raft group in one process, with the product's store threads
//! (`stele_server::store`) and any engine: one directory for each store, real disks, the real clock.
//! Messages are passed in memory.

mod client;
mod cluster;
mod mode;
mod network;
mod stages;

pub use client::Client;
pub use cluster::Cluster;
pub use mode::{Mode, Setup};
pub use stages::{Stages, between};
