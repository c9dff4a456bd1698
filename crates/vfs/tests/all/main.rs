//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod copy_on_write;
mod crash;
mod faults;
mod model;
mod probe;
mod profiled;
mod real;
