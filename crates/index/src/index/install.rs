//! Prepared pairs replacing a key range, and a range dropped.

use super::Shared;
use super::commit::{additions, prepare};
use super::jobs::AGE_STEP;
use crate::cursor::Cursor;
use crate::manifest::rebuild::FooterFacts;
use crate::manifest::{Change, Manifest};
use crate::memtable::{Memtable, RangeSet};
use crate::merge::{Claim, Output, Slot};
use crate::run::RunExtra;
use crate::slot::Found;
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{
    Cause, Error, KeyRange, LogIndex, RegionId, Result, Seq, Term, ValueRef, mutant,
};

/// A region and how far it is applied.
type Applied = (RegionId, (LogIndex, Term));
type Pairs<'a> = &'a mut dyn Iterator<Item = Result<(Bytes, ValueRef, u64)>>;

/// Writes a tier that deletes `range` from all older ones and holds `pairs`. One manifest edit
/// makes it current. The manifest's lock is held all along: a flush that runs has a greater age, and
/// nothing commits in between.
pub(super) fn install(
    shared: &Arc<Shared>,
    range: &KeyRange,
    region: Option<Applied>,
    pairs: Pairs<'_>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    // Declared before the lock: dropping it after a failure takes that lock to discard its files.
    let claim = Claim::new(shared, Slot::Install)?;
    let mut output = Output::new(claim, Cause::Snapshot, RunExtra::default(), Vec::new());
    let mut manifest = shared.manifest.lock();
    manifest.check()?;
    check_memtables(shared, range)?;
    output.describe(extra_for(shared, &manifest, range, region)?);
    write_pairs(&mut output, range, pairs)?;
    let added = prepare(shared, &mut manifest, &output)?;
    let mut changes = additions(&added);
    if let Some((region, at)) = region {
        let mut checkpoint = manifest.facts().checkpoint.clone();
        checkpoint.applied.insert(region, at);
        changes.push(Change::Checkpoint(checkpoint));
    }
    manifest.append(&changes)?;
    let tables = shared.tables.read().clone();
    if let Some((region, at)) = region {
        // Checkpoints still to be established come later, and must not take this back.
        for frozen in &tables.frozen {
            frozen.checkpoint.lock().applied.insert(region, at);
        }
    }
    shared.publish_version(tables.version.replace(&[], added), None);
    output.claim.settle();
    Ok(())
}

/// What memtables hold is newer than any run, so nothing in the range may still be there.
fn check_memtables(shared: &Shared, range: &KeyRange) -> Result<()> {
    let tables = shared.tables.read().clone();
    for memtable in tables.memtables() {
        if touches(memtable, range)? && !mutant::active("index.install_below_memtable") {
            return Err(Error::Busy("memtables hold keys of the range: flush first".to_owned()));
        }
    }
    Ok(())
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
    range: &KeyRange,
    region: Option<Applied>,
) -> Result<RunExtra> {
    let age = shared.tables.read().version.newest_age() + 1;
    if age.is_multiple_of(AGE_STEP) {
        return Err(Error::Busy("too many installs since the last flush: flush first".to_owned()));
    }
    let mut footer = FooterFacts::new(manifest.facts(), None);
    if let Some((region, at)) = region {
        footer.checkpoint.applied.insert(region, at);
    }
    Ok(RunExtra {
        age,
        job: shared.allocate_run().0,
        checkpoint: footer.encode(),
        ranges: RangeSet::from_ranges([range.clone()]),
        ..RunExtra::default()
    })
}

fn write_pairs(output: &mut Output, range: &KeyRange, pairs: Pairs<'_>) -> Result<()> {
    let mut last: Option<Bytes> = None;
    for pair in pairs {
        let (key, value, expires_at_s) = pair?;
        if !range.contains(&key) || last.as_ref().is_some_and(|last| *last >= key) {
            return Err(Error::invalid("pairs to install must ascend and lie in the range"));
        }
        if output.is_full(&key) {
            output.finish_run(false)?;
        }
        output.add(&key, &Found::Value { value, expires_at_s })?;
        last = Some(key);
    }
    output.finish()
}
