//! `stele bench`: the same workloads on an embedded store and over the wire.

pub mod calibrate;
mod choice;
pub mod devices;
pub mod engine;
mod latency;
mod process_io;
mod records;
pub mod wire;
mod workload;
