//! `stele bench`: the same workloads on an embedded store and over the wire.

pub(crate) mod engine;
pub(crate) mod wire;
