//! Opening the directories of a node. Those with lost log entries wait for copies from other stores
//! while the node serves with its other stores, and open when nothing is missing.

use super::{Parts, open, random};
use crate::config::Config;
use crate::recovery_thread::{RecoveryContext, RecoveryThread};
use crate::store::{Core, Engine, OutputSink};
use crate::stores::FailedDir;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_engine::{GcOptions, Options as EngineOptions, PolicyKind, RecoveringStore, Replay};
use stele_node::start;
use stele_replica::{EntryRecovery, LeaseTimes, Now, Options, RaftStore};
use stele_types::size::format_bytes;
use stele_types::{Clock, Error, Result, StoreIdent, StoreRun, TickMillis};
use stele_vfs::{RealVfs, SlowedVfs, SystemClock, Vfs, warnings};

/// Locks a directory that did not open for log entry recovery; `None` if that would not open it.
pub(super) fn begin_recovery(config: &Config, dir: &Path) -> Result<Option<RecoveringStore>> {
    RecoveringStore::begin(files(config), dir, &engine_options(config, dir))
}

/// Returns the files of the machine; with a scale, on devices that are so much slower.
pub(super) fn files(config: &Config) -> Arc<dyn Vfs> {
    let real = Arc::new(RealVfs::new());
    match &config.device_scale {
        Some(scale) => Arc::new(SlowedVfs::new(real, scale.clone(), Arc::new(SystemClock::new()))),
        None => real,
    }
}

/// Returns whether no store was created in the directory. Fails if that cannot be told.
pub(super) fn is_new(dir: &Path) -> Result<bool> {
    let path = dir.join("STORE");
    let found = path.try_exists().map_err(|error| Error::io("stat", &path, error));
    found.map(|is_there| !is_there)
}

/// Opens one directory. A new one gets a random identity, which no other directory has: it
/// identifies the directory when it joins a cluster.
pub(super) fn engine(config: &Config, dir: &Path) -> Result<Engine> {
    let vfs = files(config);
    let clock = Arc::new(SystemClock::new());
    let options = engine_options(config, dir);
    let (engine, opened) = Engine::open(vfs, clock, dir, options, Replay::Committed)?;
    if opened.replayed_entries > 0 {
        let (dir, count) = (dir.display(), opened.replayed_entries);
        tracing::info!("{dir}: replayed {count} entries");
    }
    if let Some(reason) = opened.rebuilt {
        tracing::warn!("{}: the index was rebuilt: {reason}", dir.display());
    }
    if opened.damaged_runs > 0 {
        let (dir, count) = (dir.display(), opened.damaged_runs);
        tracing::warn!(
            "{dir}: {count} runs are damaged; requesting their pairs from other replicas"
        );
    }
    describe_file_system(&engine, dir);
    estimate_speed(&engine, dir);
    Ok(engine)
}

fn describe_file_system(engine: &Engine, dir: &Path) {
    let (file_system, dir) = (engine.file_system(), dir.display());
    let reserve = match file_system.kind.can_reserve() {
        true => "",
        false => ", space cannot be reserved",
    };
    tracing::info!("{dir}: the file system is {file_system}{reserve}");
    warnings(&file_system).iter().for_each(|text| tracing::warn!("{dir}: {text}"));
}

/// Probes the device of a store at its first start, and estimates its speed from that.
fn estimate_speed(engine: &Engine, dir: &Path) {
    let dir = dir.display();
    match engine.estimate_speed(random()) {
        Ok((probed, write)) => {
            let (large, small) = (probed.large_bytes_per_second, probed.small_nanos);
            let per_second = write.per_second(SPEED_OP_BYTES).unwrap_or_default();
            tracing::info!(
                "{dir}: the device writes {} a second in large parts and 4 KiB in {} us, with syncs; \
                 expecting {per_second} writes of {} a second",
                format_bytes(large),
                small / 1000,
                format_bytes(SPEED_OP_BYTES)
            );
        }
        // The speed is unknown until the store has written; a full device still serves reads.
        Err(error) => tracing::warn!("{dir}: the speed of the device is not estimated: {error}"),
    }
}

/// Size of the operations of which messages and metrics show the speed. The default of the cluster's
/// setting `speed_op_bytes`.
pub(crate) const SPEED_OP_BYTES: u64 = 16 << 10;

/// A tenth of a slow disk's read throughput, and at least a terabyte a day.
const SCRUB_BYTES_PER_SECOND_MAX: u64 = 16 << 20;

/// Garbage accepted in a small store, on a device of at least 64 times this size.
const SPACE_SLACK_BYTES: u64 = 1 << 30;

/// Returns a part of 1 that differs between the stores of a cluster and stays the same: they sort at
/// different times.
fn sort_phase(config: &Config, dir: &Path) -> f64 {
    let name = format!("{} {}", config.advertised(), dir.display());
    let hash = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Xz, name.as_bytes());
    hash as f64 / u64::MAX as f64
}

pub(super) fn gc_options(config: &Config) -> GcOptions {
    let policy = match config.gc_policy.as_str() {
        "nezha" => PolicyKind::Nezha,
        "wisckey" => PolicyKind::Wisckey,
        _ => PolicyKind::Adaptive,
    };
    let target = config.space_amp_target;
    let hard = GcOptions::default().space_amp_hard.max(target * 1.25);
    GcOptions {
        policy,
        space_amp_target: target,
        space_slack_bytes: SPACE_SLACK_BYTES,
        space_amp_hard: hard,
        sort_threshold_bytes: config.sort_threshold_bytes,
        sort_interval_s: config.sort_interval_s,
        scan_load_ratio: config.scan_load_ratio,
        ..GcOptions::default()
    }
}

fn engine_options(config: &Config, dir: &Path) -> EngineOptions {
    EngineOptions {
        entry_cache_bytes_max: config.memtable_bytes_max as usize / 2,
        memtable_bytes_max: config.memtable_bytes_max as usize,
        block_cache_bytes_max: config.block_cache_bytes_max as usize,
        index_memory_bytes_max: config.block_cache_bytes_max as usize,
        value_cache_bytes_max: config.block_cache_bytes_max as usize,
        reserved_bytes: config.reserved_bytes,
        handles: config.descriptors.handles().clone(),
        history_bytes_max: config.pin_bytes_max,
        scrub_bytes_per_second_max: SCRUB_BYTES_PER_SECOND_MAX,
        background: false,
        gc: GcOptions { sort_phase: sort_phase(config, dir), ..gc_options(config) },
        ..EngineOptions::default()
    }
}

pub(super) fn core(
    config: &Config,
    engine: &Arc<Engine>,
    ident: StoreIdent,
    clock: &dyn Clock,
    seed: u64,
) -> Result<Core> {
    let now = Now { monotonic_nanos: clock.monotonic_nanos(), unix_millis: clock.unix_millis() };
    RaftStore::open(engine.clone(), raft_options(config, ident, seed), now)
}

/// Returns the times that all nodes of a cluster with this tick must have.
pub(crate) fn lease_times(tick: TickMillis) -> LeaseTimes {
    LeaseTimes { tick_nanos: tick.nanos(), election_ticks_min: ELECTION_TICKS }
}

/// Returns the times of a node that has its tick.
pub(super) fn times_of(config: &Config) -> LeaseTimes {
    lease_times(config.tick().unwrap_or(TickMillis::UNLESS_RECORDED))
}

/// Returns the configuration of a node with the tick of its cluster, which its stores record.
pub(super) fn with_tick(config: Config, idents: &[StoreIdent]) -> Result<Config> {
    let recorded: Vec<_> = idents.iter().map(|ident| ident.tick).collect();
    let tick = start::tick(config.tick(), &recorded)?;
    tracing::info!("the tick of the cluster is {} ms", tick.get());
    Ok(Config { tick_ms: tick.get(), ..config })
}

fn raft_options(config: &Config, ident: StoreIdent, seed: u64) -> Options {
    // Random at every start: read contexts of an earlier process are never accepted.
    let mut options = Options::new(ident.store, ident.cluster, seed, seed);
    let times = times_of(config);
    options.tick_nanos = times.tick_nanos;
    options.election_ticks_min = times.election_ticks_min;
    options.election_ticks_max = times.election_ticks_min * 2;
    // Invariant: a store has no lease before it knows that the cluster allows leases.
    // bug server.leases_at_start: `false` is `true`
    options.leases = false;
    options.commit_return = config.commit_return;
    options.read_acceleration = config.read_acceleration;
    options.hibernate_after_ticks =
        (config.hibernate_after_ms * 1_000_000).div_ceil(times.tick_nanos);
    options.entry_bytes_max = ENTRY_BYTES_MAX;
    options.found_bytes_max = config.pending_bytes_max;
    options.log_kept.pin_bytes_max = config.pin_bytes_max;
    options
}

/// Ticks without a leader before an election; at most twice as many, at random.
const ELECTION_TICKS: u64 = 10;
/// A single pair may be as large as values are; batches are split at the configured size earlier.
const ENTRY_BYTES_MAX: u64 = stele_types::size::COMMAND_BYTES_MAX as u64;

pub(super) struct DamagedDir {
    pub dir: PathBuf,
    pub ident: StoreIdent,
    pub run: StoreRun,
    recovery: EntryRecovery<RecoveringStore>,
}

pub(super) fn damaged(
    dir: &Path,
    ident: StoreIdent,
    recovery: EntryRecovery<RecoveringStore>,
    run: StoreRun,
) -> DamagedDir {
    let (store, (lost, _)) = (ident.store, recovery.lost());
    tracing::warn!(
        "{}: {lost} log entries cannot be read: store {store} neither votes nor acknowledges \
         until copies from other stores replace them",
        dir.display()
    );
    DamagedDir { dir: dir.to_path_buf(), ident, run, recovery }
}

/// Starts the recovery thread of a directory; the store joins the others when it is recovered.
pub(super) fn start_recovery(damaged: DamagedDir, parts: &Parts) -> Result<()> {
    let DamagedDir { dir, ident, recovery, .. } = damaged;
    let device_bytes = RealVfs::new().total_bytes(&dir)?;
    let members = parts.members.clone();
    let context = RecoveryContext {
        clock: parts.clock.clone(),
        sink: parts.router.clone(),
        stores: Box::new(move || members.stores()),
    };
    let open_store = {
        let (parts, dir) = (parts.clone(), dir.clone());
        move || -> Result<()> {
            let engine = open::engine(&parts.config, &dir)?;
            parts.stores.add(parts.start_store(Arc::new(engine), ident)?);
            Ok(())
        }
    };
    let (stores, router, failed_dir) = (parts.stores.clone(), parts.router.clone(), dir.clone());
    let on_end = move |ended: Result<bool>| {
        let opened =
            ended.and_then(|is_recovered| if is_recovered { open_store() } else { Ok(()) });
        stores.remove_recovering(ident.store);
        match opened {
            Ok(()) => router.report_due.notify_one(),
            Err(error) => {
                stores.add_failed(FailedDir::new(failed_dir, Some(ident.store), &error));
                router.failed(ident.store, error);
            }
        }
    };
    let start = || RecoveryThread::start(recovery, (dir, device_bytes), context, on_end);
    parts.stores.add_recovering(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{ClusterId, StoreId};

    #[test]
    fn the_triggers_of_sorts_reach_the_engine_and_stores_sort_at_different_times() {
        let config = Config {
            gc_policy: "nezha".to_owned(),
            sort_threshold_bytes: 5 << 20,
            sort_interval_s: 3600,
            scan_load_ratio: 7.5,
            ..Config::default()
        };
        let options = |dir: &str| engine_options(&config, Path::new(dir)).gc;
        let gc = options("/a");
        assert_eq!((gc.policy, gc.sort_threshold_bytes), (PolicyKind::Nezha, 5 << 20));
        assert_eq!((gc.sort_interval_s, gc.scan_load_ratio), (3600, 7.5));
        gc.validate().unwrap();
        assert_eq!(gc.sort_phase, options("/a").sort_phase, "the same after a restart");
        assert!((gc.sort_phase - options("/b").sort_phase).abs() > 0.001);
    }

    #[test]
    fn a_store_starts_without_leases_and_with_the_tick_that_its_node_states() {
        let config = Config { tick_ms: 70, ..Config::default() };
        let ident = StoreIdent::new(ClusterId(1), StoreId(1));
        let options = raft_options(&config, ident, 1);
        assert!(!options.leases);
        assert_eq!(options.lease_times(), times_of(&config));
        assert_eq!(options.tick_nanos, 70_000_000);
    }
}
