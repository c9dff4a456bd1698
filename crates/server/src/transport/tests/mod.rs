//! Nodes on loopback: delivery, refusals, and detection of ended connections.

pub mod common;
mod gone;
mod hostile;
mod messages;
mod network;
mod runs;
mod snapshots;
