//! Nodes on loopback: delivery, refusals, and detection of ended connections.

pub mod common;
mod hostile;
mod messages;
mod network;
mod snapshots;
