//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod addresses;
mod common;
mod copied_directory;
mod exposition;
mod failing_stores;
mod follow;
mod full_log_disk;
mod http;
mod http_identities;
mod identities;
mod level;
mod listeners;
mod lost_entries;
mod memory;
mod moved_directory;
mod node;
mod redis_commands;
mod redis_scans;
mod redis_transactions;
mod reference;
mod sessions;
mod snapshots;
mod tick;
mod tikv;
mod two_directories;
