//! Sets of shards, each on a simulated disk of its own.
//!
//! `STELE_CRASH_STRIDE=n` checks every n-th crash point only; `STELE_SEED=n` replays one history;
//! `STELE_HISTORIES=n` runs n of them.

mod calls;
mod crash_points;
mod directories;
mod histories;
mod queues;
mod world;
