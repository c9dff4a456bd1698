//! Opening: checks the identity, opens the index, and replays the log.

use super::apply::ApplyState;
use super::level::RecordedLevel;
use super::losses::{LostBlocks, LostValues};
use super::place::{DiskBytes, Place};
use super::reserve::{Reserve, ReserveSize};
use super::scans::{ContinuedScans, ScansInMemory};
use super::scrub::Scrub;
use super::space::SpaceState;
use super::value_cache::ValueCache;
use super::{Shared, Store, engine, rebuild};
use crate::identity;
use crate::options::Options;
use crate::shards::check_not_a_shard;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stele_gc::{Gc, GcOptions, TimeSource};
use stele_index::{Checkpoint, Index, Opened as KnownState};
use stele_log::{Log, RecoverFrom, Recovery, ReplayEntry, ReplayOp};
use stele_types::lock::Mutex;
use stele_types::{Clock, Error, KeyRange, LogIndex, RegionId, Result, RunId, keyspace};
use stele_vfs::{DeviceTimer, DirLock, FrugalVfs, Vfs};

/// Extent to which entries in the log are applied at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// All entries: a store without replicas, where durable means committed.
    All,
    /// Entries up to the commit index of the region's hard state; later ones wait for consensus.
    Committed,
}

/// Result of opening.
#[derive(Clone, Debug)]
pub struct Opened {
    /// How the log ended, and how much of it was read.
    pub recovery: Recovery,
    /// Number of applied entries that no checkpoint held.
    pub replayed_entries: u64,
    /// Reason why the index was rebuilt, if it was.
    pub rebuilt: Option<String>,
    /// Number of runs opened although damaged or missing; other replicas supply their pairs.
    pub damaged_runs: usize,
}

/// Largest part of the device that dead bytes may take: a small device has little room for them.
const SLACK_OF_DEVICE: u64 = 64;

impl Store {
    /// Opens the store in `dir`; creates it if there is none. Fails with `Locked` if another
    /// process has it open, and with `NewerFormat`, `NewerLevel`, `WrongStore` (a shard of a set, on
    /// files that keep changes, too), `Corrupt` or `Missing`, having changed nothing.
    pub fn open(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        dir: &Path,
        options: Options,
        replay: Replay,
    ) -> Result<(Self, Opened)> {
        options.validate()?;
        let lock = lock_alone(&vfs, dir)?;
        Self::open_locked(vfs, clock, dir, lock, options, replay)
    }

    /// Does the same as [`Store::open`] in a directory of which the caller holds the lock.
    pub(crate) fn open_locked(
        vfs: Arc<dyn Vfs>,
        clock: Arc<dyn Clock>,
        dir: &Path,
        lock: Box<dyn DirLock>,
        mut options: Options,
        replay: Replay,
    ) -> Result<(Self, Opened)> {
        options.validate()?;
        let vfs: Arc<dyn Vfs> = Arc::new(FrugalVfs::new(vfs, options.handles.clone()));
        let timer = options.timer.get_or_insert_with(|| DeviceTimer::new(clock.clone())).clone();
        let (id, level) = identity::open(&vfs, dir, options.store, replay)?;
        let set = options.clone();
        let options = options.within_device(vfs.total_bytes(dir)?);
        let reserve_size = ReserveSize::of(&set, &options);
        let reserve = Reserve::open(&vfs, dir, options.reserved_bytes)?;
        let (index_dir, log_dir) = (dir.join("index"), dir.join("log"));
        vfs.create_dir_all(&index_dir)?;
        vfs.create_dir_all(&log_dir)?;
        let place = Place::open(&vfs, dir, options.direct_io)?;
        let (index, known, rebuilt) = rebuild::open_index(&vfs, dir, id, &options, replay)?;
        let from = recover_from(&known, replay);
        let (log, recovery) = Log::open(vfs.clone(), &log_dir, options.log(id), from)?;
        let gc_options = of_device(&*vfs, dir, options.gc.clone())?;
        let values = ValueCache::new(options.value_cache_bytes_max);
        let shared = Arc::new(Shared {
            vfs,
            dir: dir.to_path_buf(),
            id,
            options,
            timer,
            replay,
            log: Arc::new(log),
            index: Arc::new(index),
            values,
            scans_in_memory: ScansInMemory::default(),
            continued: ContinuedScans::default(),
            apply: Mutex::new(ApplyState::resume(&known.checkpoint)),
            user_bytes: AtomicU64::new(0),
            disk_bytes: DiskBytes::default(),
            level: RecordedLevel::new(level),
            space: SpaceState::new(clock.clone(), reserve, reserve_size),
            lost_values: LostValues::new(replay),
            lost_blocks: LostBlocks::default(),
            old_values: super::OldValues::default(),
        });
        note_damaged(&shared, &known.damaged)?;
        check_not_older(&shared, &known.checkpoint)?;
        engine::repeat_start_marks(&shared, &known.checkpoint)?;
        let (replayed_entries, replayed_bytes) = catch_up(&shared, &known.checkpoint, replay)?;
        let scrub = Scrub::open(clock.clone(), &shared);
        let gc = Arc::new(start_gc(&shared, clock, gc_options, &known)?);
        gc.note_user_bytes(replayed_bytes);
        let damaged_runs = known.damaged.len();
        // As far as it fits; maintenance tries again.
        let _ = shared.refill_reserve();
        let opened = Opened { recovery, replayed_entries, rebuilt, damaged_runs };
        Ok((Self { shared, gc, scrub, lock: lock.into(), place }, opened))
    }
}

/// Takes the lock of a directory, which is created if it is missing.
pub(crate) fn lock(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Box<dyn DirLock>> {
    vfs.create_dir_all(dir)?;
    vfs.lock(&dir.join("LOCK"))
}

/// Takes the lock of a directory that is opened as a store by itself. Fails for a shard of a set.
pub(crate) fn lock_alone(vfs: &Arc<dyn Vfs>, dir: &Path) -> Result<Box<dyn DirLock>> {
    let lock = lock(vfs, dir)?;
    check_not_a_shard(vfs, dir)?;
    Ok(lock)
}

pub(super) fn recover_from(known: &KnownState, replay: Replay) -> RecoverFrom {
    let applied = known.checkpoint.applied.iter();
    let checkpointed = applied.map(|(region, (index, _))| (*region, *index)).collect();
    // bug engine.settled_without_replicas: `replay == Replay::Committed` is `true`
    RecoverFrom {
        checkpoint: known.checkpoint.replay_from,
        raft_from: known.raft_from,
        next_file: known.next_file,
        needed: known.needed.iter().copied().collect(),
        // Values lost with an entry are recorded when they are read, and requested by key.
        checkpointed: (replay == Replay::Committed).then_some(checkpointed),
        own_keys: Some(KeyRange::prefix(&[keyspace::LOCAL])),
    }
}

fn note_damaged(shared: &Shared, damaged: &[RunId]) -> Result<()> {
    // bug engine.damage_at_open_unnoted: return Ok(());
    for &run in damaged {
        let scrubbed = shared.index.scrub_run(run, 0, u64::MAX)?.unwrap_or_default();
        scrubbed.lost.into_iter().for_each(|lost| shared.lost_blocks.note(lost));
        shared.lost_blocks.schedule_rewrite(run);
    }
    Ok(())
}

pub(super) fn of_device(vfs: &dyn Vfs, dir: &Path, mut options: GcOptions) -> Result<GcOptions> {
    if options.space_slack_bytes > 0 {
        let share = vfs.total_bytes(dir)? / SLACK_OF_DEVICE;
        options.space_slack_bytes = options.space_slack_bytes.min(share);
    }
    Ok(options)
}

fn start_gc(
    shared: &Arc<Shared>,
    clock: Arc<dyn Clock>,
    options: GcOptions,
    known: &KnownState,
) -> Result<Gc> {
    let (log, index, hooks) = (shared.log.clone(), shared.index.clone(), shared.clone());
    let time_source = match shared.replay {
        Replay::All => TimeSource::Own,
        Replay::Committed => TimeSource::Cluster,
    };
    Gc::new(log, index, clock, options, hooks, time_source, &known.gc_state)
}

/// Checks that the index is not older than the log. Entries are truncated only after a checkpoint
/// holds their effects. An index with a checkpoint before the truncation has lost runs: opening it
/// would hide acknowledged writes.
fn check_not_older(shared: &Arc<Shared>, checkpoint: &Checkpoint) -> Result<()> {
    if shared.replay == Replay::Committed {
        // With replicas, a region may start at any entry and gets the others from its replicas.
        return Ok(());
    }
    for region in shared.log.regions() {
        let truncated = shared.log.region(region).map(|log| log.truncated.0).unwrap_or_default();
        let applied = checkpoint.applied.get(&region).map(|(index, _)| *index).unwrap_or_default();
        if applied < truncated {
            return Err(Error::Missing {
                path: shared.dir.join("index"),
                detail: format!("it ends at entry {applied}, the log begins after {truncated}"),
            });
        }
    }
    Ok(())
}

/// Applies the log's entries after the checkpoint. Returns the number of entries applied, and the bytes of
/// their keys and values.
fn catch_up(shared: &Arc<Shared>, checkpoint: &Checkpoint, replay: Replay) -> Result<(u64, u64)> {
    let mut limits = Vec::new();
    for region in shared.log.regions() {
        let Some(log) = shared.log.region(region) else { continue };
        let limit = match replay {
            Replay::All => log.last,
            Replay::Committed => log.hard_state.commit,
        };
        limits.push((region, limit));
        if !log.destroyed {
            shared.apply.lock().start_after(region, log.truncated);
        }
    }
    let mut state = shared.apply.lock();
    // In log order over all regions, so that writes to keys that moved between regions keep their
    // order.
    // bug engine.replay_by_region: for one in limits.chunks(1) { redo(shared, checkpoint, &mut state, one)?; }
    // bug engine.replay_by_region: let limits = Vec::new();
    let (entries, bytes) = redo(shared, checkpoint, &mut state, &limits)?;
    state.publish(shared);
    Ok((entries, bytes))
}

/// Applies the entries after the checkpoint up to a limit for each region; none of a region without one.
/// Memory stays bounded: full memtables are flushed in between, with a checkpoint that still replays from
/// where this replay started. Returns the number of entries applied, and the bytes of their keys and values.
fn redo(
    shared: &Shared,
    checkpoint: &Checkpoint,
    state: &mut ApplyState,
    limits: &[(RegionId, LogIndex)],
) -> Result<(u64, u64)> {
    let limits: BTreeMap<RegionId, LogIndex> = limits.iter().copied().collect();
    let limit = |region: RegionId| limits.get(&region).copied().unwrap_or_default();
    let applied = |region: RegionId| {
        checkpoint.applied.get(&region).map(|(index, _)| *index).unwrap_or_default()
    };
    let (mut entries, mut bytes) = (0, 0);
    shared.log.replay(&applied, &mut |entry| {
        if entry.index > limit(entry.region) {
            return Ok(());
        }
        replay_entry(shared, state, &entry);
        entries += 1;
        bytes += user_bytes(entry.ops);
        if shared.index.memtable_bytes() >= shared.options.memtable_bytes_max {
            flush_replayed(shared, state, checkpoint)?;
        }
        Ok(())
    })?;
    Ok((entries, bytes))
}

fn replay_entry(shared: &Shared, state: &mut ApplyState, entry: &ReplayEntry<'_>) {
    for op in entry.ops {
        let seq = state.next_seq();
        match op {
            ReplayOp::Put { key, value, expires_at_s } => {
                shared.index.put(seq, key, value.clone(), *expires_at_s);
            }
            ReplayOp::Delete { key } => shared.index.delete(seq, key),
            ReplayOp::DeleteRange { start, end } => shared.index.delete_range(seq, start, end),
        }
    }
    state.finish_entry(entry.region, entry.index, entry.term);
    state.note_replayed(user_bytes(entry.ops));
}

/// Returns the bytes of keys and values, as [`ApplyState::apply`] counts them.
fn user_bytes(ops: &[ReplayOp<'_>]) -> u64 {
    let bytes = |op: &ReplayOp<'_>| match op {
        ReplayOp::Put { key, value, .. } => key.len() as u64 + u64::from(value.len()),
        ReplayOp::Delete { key } => key.len() as u64,
        ReplayOp::DeleteRange { start, end } => (start.len() + end.len()) as u64,
    };
    ops.iter().map(bytes).sum()
}

fn flush_replayed(shared: &Shared, state: &ApplyState, from: &Checkpoint) -> Result<()> {
    state.publish(shared);
    shared.index.freeze(state.checkpoint_at(from.replay_from));
    flush_frozen(&shared.index)
}

pub(super) fn flush_frozen(index: &Index) -> Result<()> {
    const SLICE_BYTES: u64 = 4 << 20;
    while let Some(mut job) = index.start_flush() {
        let done = loop {
            match job.step(SLICE_BYTES)? {
                stele_index::JobStep::More { .. } => {}
                stele_index::JobStep::Done(done) => break done,
            }
        };
        index.commit(done)?;
    }
    Ok(())
}
