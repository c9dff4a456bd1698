//! The client against a fake cluster. All files are one program: each program with the fake cluster takes
//! long to build.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod control;
mod failures;
mod fake;
mod operations;
mod parts;
mod sessions;
mod simulation;
mod unsent;
mod unserving;
mod watch;
