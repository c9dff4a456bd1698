//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod harness;
mod original;
mod queued;
mod tables;
