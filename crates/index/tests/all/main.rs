//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cold;
mod common;
mod crash;
mod damage;
mod estimate;
mod merge;
mod model;
mod scan;
