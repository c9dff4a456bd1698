//! Prepared pairs replacing a key range, and a range dropped.

use super::Shared;
use super::commit::{additions, prepare};
use crate::cursor::Cursor;
use crate::manifest::rebuild::FooterFacts;
use crate::manifest::{Change, Manifest};
use crate::memtable::{Memtable, RangeSet};
use crate::merge::{Claim, Output, Slot};
use crate::run::RunExtra;
use crate::slot::Found;
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{Cause, Error, KeyRange, LogIndex, RegionId, Result, Seq, Term, ValueRef};

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
    let claim = Claim::new(shared, Slot::Install)?;
    let mut manifest = shared.manifest.lock();
    let done = write_and_commit(shared, &mut manifest, claim, range, region, pairs);
    drop(manifest);
    // A claim left over from a failure discards its files here, with the lock free.
    done.map_err(|(error, claim)| {
        drop(claim);
        error
    })
}

type Failed = (Error, Option<Claim>);

fn write_and_commit(
    shared: &Arc<Shared>,
    manifest: &mut Manifest,
    claim: Claim,
    range: &KeyRange,
    region: Option<Applied>,
    pairs: Pairs<'_>,
) -> std::result::Result<(), Failed> {
    let early = check(shared, manifest, range);
    if let Err(error) = early {
        return Err((error, Some(claim)));
    }
    let mut output = output_for(shared, manifest, claim, range);
    match fill(shared, manifest, &mut output, range, region, pairs) {
        Ok(()) => {
            output.claim.settle();
            Ok(())
        }
        Err(error) => Err((error, Some(output.into_claim()))),
    }
}
