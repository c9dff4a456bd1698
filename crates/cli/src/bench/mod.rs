//! `stele bench`: the same workloads on an embedded store and over the wire.

pub mod engine;
pub mod wire;
