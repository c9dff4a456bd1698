//! Opening the directories of a node.

use crate::config::Config;
use crate::store::{Core, Engine};
use std::path::Path;
use std::sync::Arc;
use stele_engine::{GcOptions, Options as EngineOptions, PolicyKind, RecoveringStore, Replay};
use stele_raftstore::{Now, Options, RaftStore};
use stele_types::{Clock, Result, StoreId, StoreIdent};
use stele_vfs::{RealVfs, SystemClock};

/// What must be mended in a directory that did not open, if that is what it takes.
pub(super) fn mending(config: &Config, dir: &Path) -> Result<Option<RecoveringStore>> {
    RecoveringStore::begin(Arc::new(RealVfs::new()), dir, &engine_options(config))
}

/// Opens one directory. A new one is marked with `drawn`, a number no other directory has: it goes
/// into every checksum, and it is what the directory joins a cluster with.
pub(super) fn engine(config: &Config, dir: &Path, drawn: StoreId) -> Result<Arc<Engine>> {
    let vfs = Arc::new(RealVfs::new());
    let clock = Arc::new(SystemClock::new());
    let mut options = engine_options(config);
    options.store = (!dir.join("STORE").exists()).then_some(drawn);
    let (engine, opened) = Engine::open(vfs, clock, dir, options, Replay::Committed)?;
    if opened.replayed_entries > 0 {
        let (dir, count) = (dir.display(), opened.replayed_entries);
        tracing::info!("{dir}: {count} entries applied again");
    }
    if let Some(reason) = opened.rebuilt {
        tracing::warn!("{}: the index was rebuilt: {reason}", dir.display());
    }
    if opened.damaged_runs > 0 {
        let (dir, count) = (dir.display(), opened.damaged_runs);
        tracing::warn!(
            "{dir}: {count} runs are damaged; other replicas are asked for what they held"
        );
    }
    Ok(Arc::new(engine))
}

/// A tenth of what a slow disk reads, and a terabyte in a day.
const SCRUB_BYTES_PER_SECOND_MAX: u64 = 16 << 20;

/// Dead bytes accepted of a small store, on a device of 64 times as many bytes or more.
const SPACE_SLACK_BYTES: u64 = 1 << 30;

fn engine_options(config: &Config) -> EngineOptions {
    let policy = match config.gc_policy.as_str() {
        "nezha" => PolicyKind::Nezha,
        "wisckey" => PolicyKind::Wisckey,
        _ => PolicyKind::Adaptive,
    };
    let target = config.space_amp_target;
    let hard = GcOptions::default().space_amp_hard.max(target * 1.25);
    EngineOptions {
        entry_cache_bytes_max: config.memtable_bytes_max as usize / 2,
        memtable_bytes_max: config.memtable_bytes_max as usize,
        block_cache_bytes_max: config.block_cache_bytes_max as usize,
        value_cache_bytes_max: config.block_cache_bytes_max as usize,
        reserved_bytes: config.reserved_bytes,
        scrub_bytes_per_second_max: SCRUB_BYTES_PER_SECOND_MAX,
        background: false,
        gc: GcOptions {
            policy,
            space_amp_target: target,
            space_slack_bytes: SPACE_SLACK_BYTES,
            space_amp_hard: hard,
            ..GcOptions::default()
        },
        ..EngineOptions::default()
    }
}

/// Starts the consensus of one store.
pub(super) fn core(
    config: &Config,
    engine: &Arc<Engine>,
    ident: StoreIdent,
    clock: &dyn Clock,
    seed: u64,
) -> Result<Core> {
    let now = Now { monotonic_nanos: clock.monotonic_nanos(), unix_seconds: clock.unix_seconds() };
    RaftStore::open(engine.clone(), raft_options(config, ident, seed), now)
}

fn raft_options(config: &Config, ident: StoreIdent, seed: u64) -> Options {
    // Random at every start: an earlier life's read contexts are never taken for this one's.
    let mut options = Options::new(ident.store, ident.cluster, seed, seed);
    options.tick_nanos = config.tick_ms * 1_000_000;
    options.election_ticks_min = ELECTION_TICKS;
    options.election_ticks_max = ELECTION_TICKS * 2;
    options.hibernate_after_ticks = config.hibernate_after_ms.div_ceil(config.tick_ms);
    options.entry_bytes_max = ENTRY_BYTES_MAX;
    options.pending_bytes_max = config.pending_bytes_max;
    options.log_kept.pin_bytes_max = config.pin_bytes_max;
    options
}

/// Silence before an election; up to twice as long, drawn at random.
const ELECTION_TICKS: u64 = 10;
/// A single pair may be as large as values are; batches are split at the configured size before.
const ENTRY_BYTES_MAX: u64 = stele_types::limits::COMMAND_BYTES_MAX as u64;
