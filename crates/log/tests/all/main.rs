//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod behind_sidecars;
mod common;
mod crash;
mod damaged_payloads;
mod device_latency;
mod faults;
mod handles;
mod history;
mod model;
mod pipelined_writes;
mod rolls;
mod round_trip;
mod salts;
mod scans;
mod values;
mod writes;
mod wrong_reads;
