//! Verification of all files of the index.

use super::Shared;
use crate::cursor::Found;
use crate::run::{Live, Run};
use crate::version::{Tier, Version};
use std::collections::BTreeMap;
use stele_types::{Error, FileId, Result, ValueRef};

/// Counts of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Runs read.
    pub runs: u64,
    /// Sum of their file lengths.
    pub bytes: u64,
    /// Entries, tombstones included.
    pub entries: u64,
    /// Reported damages.
    pub damaged: u64,
}

pub(super) fn verify(shared: &Shared, f: &mut dyn FnMut(&Error)) -> Result<VerifyReport> {
    let mut report = VerifyReport::default();
    let mut damage = |error: &Error, report: &mut VerifyReport| {
        report.damaged += 1;
        f(error);
    };
    if let Err(error) = shared.manifest.lock().verify() {
        damage(&error, &mut report);
    }
    let version = shared.tables.read().version.clone();
    for run in version.runs() {
        report.runs += 1;
        report.bytes += run.meta().bytes;
        report.entries += run.meta().entries;
        let mut found = Vec::new();
        let read = run.verify(&mut |error| found.push(error.duplicate()));
        found.extend(read.err());
        if found.is_empty() {
            found.extend(check_references(run).err());
        }
        found.iter().for_each(|error| damage(error, &mut report));
    }
    for error in version.tiers().iter().flat_map(overlaps) {
        damage(&error, &mut report);
    }
    if let Some(error) = check_live(&version, shared) {
        damage(&error, &mut report);
    }
    Ok(report)
}

fn check_references(run: &std::sync::Arc<Run>) -> Result<()> {
    use crate::cursor::Cursor;
    let mut counted: BTreeMap<FileId, Live> = BTreeMap::new();
    let mut cursor = run.cursor_ahead();
    cursor.seek(&[])?;
    while cursor.valid() {
        if let Found::Value { value: ValueRef::At(at), .. } = cursor.found()? {
            counted.entry(at.file).or_default().add(cursor.key().len(), &at);
        }
        cursor.next()?;
    }
    if counted == run.meta().refs {
        return Ok(());
    }
    Err(Error::corrupt(
        run.path(),
        0,
        "the footer's references differ from the entries' references",
    ))
}

fn overlaps(tier: &Tier) -> Vec<Error> {
    let pairs = tier.keyed().windows(2);
    pairs
        .filter_map(|pair| match pair {
            [left, right] if left.meta().last_key >= right.meta().first_key => {
                Some(Error::corrupt(right.path(), 0, "keys overlap those of a run of the same age"))
            }
            _ => None,
        })
        .collect()
}

fn check_live(version: &Version, shared: &Shared) -> Option<Error> {
    let mut sum: BTreeMap<FileId, Live> = BTreeMap::new();
    for run in version.runs() {
        for (&file, refs) in &run.meta().refs {
            sum.entry(file).or_default().add_all(refs);
        }
    }
    let same = sum == *version.live();
    (!same).then(|| Error::corrupt(&shared.dir, 0, "live bytes differ from the sum over runs"))
}
