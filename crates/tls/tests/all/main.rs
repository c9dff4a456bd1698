//! TLS in memory, with certificates that the crate creates itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod certificates;
mod common;
mod failures;
mod handshakes;
mod identities;
mod reloads;
