//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod balancing;
mod rule_texts;
mod simulation;
mod support;
mod toy;
mod transcripts;
