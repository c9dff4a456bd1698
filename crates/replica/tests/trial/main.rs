//! Tests of the core with a few stores in one thread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admin;
mod basics;
mod entry_recovery;
mod full;
mod harness;
mod hibernation;
mod leases;
mod many;
mod merge;
mod merge_decision;
mod modify;
mod moment;
mod orphaned_ranges;
mod outcomes;
mod programs;
mod quorum;
mod quorum_speed;
mod raft_crate;
mod reads;
mod recover;
mod removed_child;
mod repair;
mod reports;
mod sessions;
mod space;
mod stale_voter;
mod storm;
mod tails;
mod ticks;
mod traffic;

use bytes::Bytes;
use harness::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_conformance::ModelEngine;
use stele_replica::*;
use stele_storage::{EngineView, LogStore, ScanOptions, Snapshots, StateMachine};
use stele_types::*;
