//! All files are one program: each program of tests takes long to build and to link.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;
mod conformance;
mod copy_on_write;
mod crash_points;
mod displaced;
mod faults;
mod front;
mod golden_put;
mod histories;
mod identity;
mod in_memory;
mod install;
mod large;
mod live_bytes;
mod many_gets;
mod moves;
mod old_values;
mod panics;
mod read_ahead;
mod recovering;
mod repair;
mod replicated;
mod scan_pages;
mod shards;
mod small_devices;
mod speed;
mod store_modes;
mod threads;
mod traps;
mod unreadable;
