//! Nodes on loopback: what arrives, what is refused, and how ends are noticed.

pub mod common;
mod hostile;
mod messages;
mod network;
mod snapshots;
