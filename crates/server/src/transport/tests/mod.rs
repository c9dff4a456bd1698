//! Nodes on loopback: delivery, refusals, and detection of ended connections.

pub(crate) mod common;
mod gone;
mod hostile;
mod messages;
mod network;
mod outgoing;
mod runs;
mod snapshots;
