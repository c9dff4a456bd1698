//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commands;
mod conformance;
#[path = "../../../crates/client/tests/fake/mod.rs"]
mod fake;
mod harness;
mod original;
mod queued;
mod tables;
