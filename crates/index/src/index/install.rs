//! Ingestion of prepared pairs that replace key ranges, and removal of key ranges.

use super::Shared;
use super::jobs::{additions, prepare};
use crate::cursor::{Cursor, Found};
use crate::manifest::rebuild::FooterState;
use crate::manifest::{Change, Manifest};
use crate::memtable::{Memtable, RangeSet};
use crate::merge::{Claim, Slot};
use crate::run::{ClosedRun, RunExtra, RunOptions, RunWriter};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{Cause, Error, KeyRange, LogIndex, RegionId, Result, RunId, Seq, Term, ValueRef};

pub(super) type Applied = (RegionId, (LogIndex, Term));

/// Size at which a run of an ingest ends, even if `run_bytes_max` is larger: the keys of an open
/// run are held in memory.
const RUN_BYTES_MAX: u64 = 16 << 20;

/// Staged pairs, not yet readable. Staging holds no lock and does not involve the manifest.
/// Dropping an ingest removes its files; after a crash the next open removes them.
#[derive(Debug)]
pub struct Ingest {
    ranges: Vec<KeyRange>,
    /// Index of the range in which the next key may lie; earlier ranges are complete.
    range_at: usize,
    last_key: Vec<u8>,
    has_keys: bool,
    writer: Option<RunWriter>,
    closed: Vec<(RunId, ClosedRun)>,
    /// A pair was refused or a write failed: the ingest cannot be installed.
    is_broken: bool,
    // Dropped last: the files are unlinked after they are closed.
    claim: Claim,
}

impl Ingest {
    pub(super) fn new(shared: &Arc<Shared>, ranges: Vec<KeyRange>) -> Result<Self> {
        Ok(Self {
            ranges,
            range_at: 0,
            last_key: Vec::new(),
            has_keys: false,
            writer: None,
            closed: Vec::new(),
            is_broken: false,
            claim: Claim::new(shared, Slot::Install)?,
        })
    }

    /// Returns the ranges to replace.
    pub fn ranges(&self) -> &[KeyRange] {
        &self.ranges
    }

    /// Fails with `Invalid` unless `key` is above all earlier keys and in a range. The failure is
    /// permanent.
    pub fn check(&mut self, key: &[u8]) -> Result<()> {
        while self.ranges.get(self.range_at).is_some_and(|range| !range.is_below_end(key)) {
            self.range_at += 1;
        }
        let inside = self.ranges.get(self.range_at).is_some_and(|range| range.contains(key));
        let ascends = !self.has_keys || self.last_key.as_slice() < key;
        if inside && ascends && !self.is_broken {
            return Ok(());
        }
        self.is_broken = true;
        Err(Error::invalid("pairs to install must ascend and lie in the ranges"))
    }

    /// Adds a pair. After an error the ingest cannot be installed.
    pub fn add(&mut self, key: &[u8], value: ValueRef, expires_at_s: u64) -> Result<()> {
        self.check(key)?;
        let added = self.write(key, &Found::Value { value, expires_at_s });
        self.is_broken |= added.is_err();
        added
    }

    fn write(&mut self, key: &[u8], found: &Found) -> Result<()> {
        let bytes_max = self.claim.shared.options.run_bytes_max.min(RUN_BYTES_MAX);
        if self.writer.as_ref().is_some_and(|writer| writer.estimated_bytes() >= bytes_max) {
            self.close_run()?;
        }
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(begin(&mut self.claim)?),
        };
        writer.add(key, found)?;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.has_keys = true;
        Ok(())
    }

    /// Makes the added pairs durable, except for the footers, which need the tier's age.
    pub fn finish(&mut self) -> Result<()> {
        let closed = self.close_run();
        self.is_broken |= closed.is_err();
        closed
    }

    fn close_run(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let id = writer.id();
        let mut run = writer.close()?;
        run.sync()?;
        self.closed.push((id, run));
        Ok(())
    }

    /// Writes the runs' footers and gives the runs their names.
    fn finish_runs(&mut self, extra: &RunExtra) -> Result<Vec<RunId>> {
        self.finish()?;
        if self.closed.is_empty() {
            // Range tombstones without entries form a run of their own.
            let writer = begin(&mut self.claim)?;
            self.closed.push((writer.id(), writer.close()?));
        }
        let parts = self.closed.len();
        let mut finished = Vec::with_capacity(parts);
        for (part, (id, run)) in self.closed.drain(..).enumerate() {
            let mut extra =
                RunExtra { part: part as u32, last_part: part + 1 == parts, ..extra.clone() };
            if part > 0 {
                extra.ranges = RangeSet::default();
            }
            run.finish(extra)?;
            finished.push(id);
        }
        Ok(finished)
    }
}

fn begin(claim: &mut Claim) -> Result<RunWriter> {
    let id = claim.new_run();
    let shared = &claim.shared;
    let options: &RunOptions = &shared.run_options;
    RunWriter::create(&shared.vfs, &shared.dir, id, options, Cause::Snapshot)
}

/// Forms a tier from the staged runs. It deletes the ranges from all older tiers, and one manifest
/// edit makes it current. While the manifest's lock is held, a running flush has a greater age and
/// nothing else commits.
pub(super) fn install(
    shared: &Arc<Shared>,
    mut ingest: Ingest,
    region: Option<Applied>,
) -> Result<()> {
    if ingest.is_broken {
        return Err(Error::invalid(
            "an ingest with a refused pair cannot be installed; begin a new one",
        ));
    }
    if ingest.ranges.iter().all(KeyRange::is_empty) {
        return Ok(());
    }
    ingest.finish()?;
    // Locked after `ingest` is bound, and thus released before `ingest` is dropped: its drop takes
    // the lock.
    let mut manifest = shared.manifest.lock();
    manifest.check()?;
    // bug index.install_below_memtable: never
    if touches_memtables(shared, &ingest.ranges)? {
        return Err(Error::Busy("memtables hold keys of the ranges: flush first".to_owned()));
    }
    let extra = extra_for(shared, &manifest, &ingest.ranges, region)?;
    let finished = ingest.finish_runs(&extra)?;
    let added = prepare(shared, &mut manifest, &finished)?;
    let mut changes = additions(&added);
    if let Some((region, at)) = region {
        let mut checkpoint = manifest.state().checkpoint.clone();
        checkpoint.applied.insert(region, at);
        changes.push(Change::Checkpoint(checkpoint));
    }
    manifest.append(&changes)?;
    shared.publish_checkpoint(&manifest);
    let tables = shared.tables.read().clone();
    if let Some((region, at)) = region {
        // Invariant: later checkpoints, of memtables already frozen, include the installed region.
        for frozen in &tables.frozen {
            frozen.checkpoint.lock().applied.insert(region, at);
        }
    }
    shared.publish_version(tables.version.replace(&[], added), None);
    ingest.claim.release_files();
    Ok(())
}

/// Returns whether a memtable holds keys of the ranges: it is newer than any run.
pub(super) fn touches_memtables(shared: &Shared, ranges: &[KeyRange]) -> Result<bool> {
    let tables = shared.tables.read().clone();
    for memtable in tables.memtables() {
        for range in ranges {
            if touches(memtable, range)? {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn touches(memtable: &Arc<Memtable>, range: &KeyRange) -> Result<bool> {
    const EVERYTHING: Seq = Seq(u64::MAX);
    if memtable.ranges(EVERYTHING).overlaps(range) {
        return Ok(true);
    }
    let mut cursor = memtable.cursor(EVERYTHING);
    cursor.seek(&range.start)?;
    Ok(cursor.valid() && range.is_below_end(cursor.key()))
}

fn extra_for(
    shared: &Shared,
    manifest: &Manifest,
    ranges: &[KeyRange],
    region: Option<Applied>,
) -> Result<RunExtra> {
    let age = shared.tables.read().version.newest_age() + 1;
    if age >= shared.flush_age.load(Ordering::Acquire) {
        return Err(Error::Busy(
            "too many installs while one flush runs; try again after it".to_owned(),
        ));
    }
    let mut footer = FooterState::new(manifest.state(), None);
    if let Some((region, at)) = region {
        footer.checkpoint.applied.insert(region, at);
    }
    Ok(RunExtra {
        age,
        job: shared.allocate_run().0,
        checkpoint: footer.encode(),
        ranges: RangeSet::from_ranges(ranges.iter().cloned()),
        ..RunExtra::default()
    })
}

pub(super) fn forget_region(shared: &Shared, region: RegionId) -> Result<()> {
    let mut manifest = shared.manifest.lock();
    for frozen in &shared.tables.read().frozen {
        frozen.checkpoint.lock().applied.remove(&region);
    }
    let mut checkpoint = manifest.state().checkpoint.clone();
    if checkpoint.applied.remove(&region).is_some() {
        manifest.append(&[Change::Checkpoint(checkpoint)])?;
        shared.publish_checkpoint(&manifest);
    }
    Ok(())
}
