//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod damaged_payloads;
mod helical;
mod placement;
mod scenarios;
mod seeds;
mod slow_writers;
