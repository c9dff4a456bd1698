//! Opening of a store. Afterwards every region with a descriptor has its log, its peer and its
//! pairs; no other pairs remain.

use super::RaftStore;
use super::absent_replica::Elsewhere;
use super::destroy::{Leaving, unowned};
use super::poll::{Dirty, HibernationProbe, Truncations};
use super::repair::Repair;
use super::snapshot::OrphanedRanges;
use crate::context::Context;
use crate::input::Now;
use crate::journal::{Journal, write_now};
use crate::log::Start;
use crate::options::Options;
use crate::peer::{CHILD_STARTS_AFTER, Replica};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_storage::{Progress, StorageEngine, read_ident, read_regions};
use stele_types::{
    Error, HardState, LogBatch, Mark, Record, Region, RegionPhase, Result, StoreIdent, keyspace,
};

impl<E: StorageEngine> RaftStore<E> {
    /// Opens a store from the engine's state. Fails with `Invalid` if the store's identity is not
    /// written or differs from the options.
    pub fn open(engine: Arc<E>, options: Options, now: Now) -> Result<Self> {
        Self::open_with_logger(engine, options, now, slog::Logger::root(slog::Discard, slog::o!()))
    }

    /// Opens a store like [`RaftStore::open`] and passes `logger` to Raft.
    pub(crate) fn open_with_logger(
        engine: Arc<E>,
        options: Options,
        now: Now,
        logger: slog::Logger,
    ) -> Result<Self> {
        options.validate()?;
        let ident = check_ident(&*engine, &options)?;
        Journal::open(&*engine)?;
        let regions = read_regions(&engine.view()?)?.into_iter();
        let (live, mut tombstones): (Vec<Region>, Vec<Region>) =
            regions.partition(|region| region.phase != RegionPhase::Tombstone);
        // Invariant: a log that ended begins no more, or its replica would have forgotten its votes. A
        // crash may leave the descriptor that a split wrote over the tombstone of its child.
        // Test: `a_descriptor_that_a_split_wrote_over_a_tombstone_begins_no_log_at_open`.
        let has_ended = |region: &Region| {
            let progress = engine.progress(region.id);
            // bug replica.ended_log_begins_at_open: return false;
            progress.is_some_and(|progress| progress.destroyed)
        };
        let (live, left): (Vec<Region>, Vec<Region>) = live
            .into_iter()
            .partition(|region| region.peer_on(options.store).is_some() && !has_ended(region));
        tombstones.extend(write_tombstones(&*engine, left)?);
        let journal = Journal::open(&*engine)?;
        start_logs(&*engine, &live)?;
        end_logs(&*engine, &tombstones)?;
        let gaps = unowned(&*engine, &live)?;
        // bug replica.unowned_kept: never
        if !gaps.is_empty() {
            engine.drop_ranges(&gaps)?;
        }
        let mut ctx = Context::new(engine, options, logger, now);
        ctx.journal = journal;
        ctx.tick = ident.tick;
        super::snapshot::read_installed(&mut ctx)?;
        let mut store = Self {
            next_tick_nanos: now.monotonic_nanos + ctx.options.tick_nanos,
            ctx,
            replicas: BTreeMap::new(),
            tombstones: tombstones.into_iter().map(|region| (region.id, region)).collect(),
            dirty: Dirty::default(),
            ticking: BTreeSet::new(),
            truncations: Truncations::default(),
            stale: Vec::new(),
            early_votes: BTreeMap::new(),
            elsewhere: Elsewhere::default(),
            arrived: Vec::new(),
            appended: None,
            leaving: Leaving::default(),
            repair: Repair::default(),
            hibernation_probe: HibernationProbe::default(),
            orphaned_ranges: OrphanedRanges::default(),
            report_changes: super::ReportChanges::default(),
        };
        live.into_iter().try_for_each(|region| store.open_replica(region))?;
        store.leave_merged()?;
        Ok(store)
    }

    fn open_replica(&mut self, region: Region) -> Result<()> {
        let id = region.id;
        let progress = self.ctx.engine.progress(id).unwrap_or_default();
        let start = Start::of(&progress);
        let is_empty = start.truncated == start.last;
        if is_empty && is_of_snapshot(&progress) && start.truncated != CHILD_STARTS_AFTER {
            self.note_installed_at_open(&region)?;
        }
        let mut replica = Replica::new(&mut self.ctx, region, &start)?;
        replica.campaign_if_alone();
        self.replicas.insert(id, replica);
        self.schedule(id);
        Ok(())
    }

    /// Destroys sources merged into an installed snapshot's region, after a crash before their
    /// tombstones were durable. Invariant: this comes before everything else, because no key has
    /// two owners here.
    fn leave_merged(&mut self) -> Result<()> {
        // bug replica.merged_stay_at_open: return Ok(());
        self.replicas.values_mut().for_each(|replica| replica.destroy_if_merged(&mut self.ctx));
        self.run_store_requests()
    }
}

/// Returns whether an empty log may begin at a snapshot of which the record is not durable.
///
/// Invariant: the hard state of an installation follows its record, and a truncation comes with a commit
/// index that covers it. A sole replica keeps no entry, and what it applied is proof of a refused merge.
fn is_of_snapshot(progress: &Progress) -> bool {
    // bug replica.empty_log_is_of_snapshot: `progress.hard_state.commit < progress.truncated.0` is `true`
    progress.hard_state.commit < progress.truncated.0
}

/// Returns the identity of a store, which is that of the options.
///
/// Invariant: a store runs with the tick that it records. Its promises of an earlier run last as long.
/// Test: `a_store_does_not_open_with_another_tick_than_it_records`.
fn check_ident<E: StorageEngine>(engine: &E, options: &Options) -> Result<StoreIdent> {
    let expected = StoreIdent::new(options.cluster, options.store);
    match RaftStore::<E>::ident(engine)? {
        Some(found) if StoreIdent { tick: None, ..found } == expected => {
            let other = found.tick.filter(|tick| tick.nanos() != options.tick_nanos);
            // bug replica.opens_with_any_tick: `other` is `None`
            match other {
                None => Ok(found),
                Some(tick) => Err(Error::invalid(format!(
                    "store {} records a tick of {} ms, and is opened with one of {} ms",
                    found.store,
                    tick.get(),
                    options.tick_nanos / 1_000_000
                ))),
            }
        }
        Some(found) => Err(Error::invalid(format!(
            "this is store {} of cluster {:x}, not store {} of cluster {:x}",
            found.store, found.cluster.0, expected.store, expected.cluster.0
        ))),
        None => {
            Err(Error::invalid("this store has no identity: bootstrap a cluster or join one first"))
        }
    }
}

/// Writes the tombstones of replicas that applied their own removal, after a crash before their
/// tombstones were durable.
fn write_tombstones<E: StorageEngine>(engine: &E, left: Vec<Region>) -> Result<Vec<Region>> {
    // Invariant: the epoch of a tombstone is one that was applied here.
    let tombstone = |region| Region { phase: RegionPhase::Tombstone, ..region };
    let tombstones: Vec<Region> = left.into_iter().map(tombstone).collect();
    let pair = |region: &Region| (keyspace::region_key(region.id), region.encode());
    let pairs: Vec<_> = tombstones.iter().map(pair).collect();
    let ends = tombstones.iter().map(|region| Record::Mark(region.id, Mark::Destroy));
    if !pairs.is_empty() {
        write_now(engine, &pairs, ends.collect())?;
    }
    Ok(tombstones)
}

/// Starts the logs of regions with applied descriptors, after a crash before their first records
/// were durable.
fn start_logs<E: StorageEngine>(engine: &E, live: &[Region]) -> Result<()> {
    let begun =
        |region: &&Region| engine.progress(region.id).is_some_and(|progress| !progress.destroyed);
    let mut records = Vec::new();
    for region in live.iter().filter(|region| !begun(region)) {
        records.extend(first_records(region));
    }
    if !records.is_empty() {
        engine.append(&LogBatch { records })?;
    }
    Ok(())
}

/// Ends the logs of regions with tombstones: after a crash before the end was durable, or after a
/// manifest was rebuilt from runs, which name regions removed since.
fn end_logs<E: StorageEngine>(engine: &E, tombstones: &[Region]) -> Result<()> {
    let goes_on =
        |region: &&Region| engine.progress(region.id).is_some_and(|progress| !progress.destroyed);
    let ended = tombstones.iter().filter(goes_on);
    let records: Vec<_> = ended.map(|region| Record::Mark(region.id, Mark::Destroy)).collect();
    match records.is_empty() {
        true => Ok(()),
        false => engine.append(&LogBatch { records }).map(|_| ()),
    }
}

/// Returns the first records of a region's log on a store that gets it by a split or by the
/// cluster's bootstrap.
pub(super) fn first_records(region: &Region) -> [Record; 2] {
    let (index, term) = CHILD_STARTS_AFTER;
    let hard_state = HardState { term, vote: 0, commit: index };
    [Record::Mark(region.id, Mark::Start(index, term)), Record::HardState(region.id, hard_state)]
}

// Identity of a store (its cluster, store id and tick), and bootstrap of a cluster.

impl<E: StorageEngine> RaftStore<E> {
    /// Bootstraps the first store of a cluster: writes its identity and its regions in one batch.
    /// The regions start when the store opens.
    pub fn bootstrap(engine: &E, ident: &StoreIdent, regions: &[Region]) -> Result<()> {
        let descriptors = regions.iter().map(|it| (keyspace::region_key(it.id), it.encode()));
        let pairs: Vec<_> = ident.pairs().into_iter().chain(descriptors).collect();
        write_now(engine, &pairs, Vec::new())
    }

    /// Reads the store's identity; `None` before it is written.
    pub fn ident(engine: &E) -> Result<Option<StoreIdent>> {
        read_ident(&engine.view()?)
    }

    /// Writes the identity of a store that joins a cluster.
    pub fn write_ident(engine: &E, ident: &StoreIdent) -> Result<()> {
        write_now(engine, &ident.pairs(), Vec::new())
    }
}
