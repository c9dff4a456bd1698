//! Checks a store that opens on a full device after a manifest failed to sync: what only the page
//! cache holds must not count as durable, or a later power cut loses it.

use super::DiskCopy;
use super::observed_state::{ObservedState, catch_up};
use super::power::{cut_at_last, maintain, work};
use crate::world::DIR;
use std::path::Path;
use stele_simulated_disk::Fault;
use stele_types::Prng;
use stele_vfs::Vfs;

/// Syncs of a manifest of which one fails.
const SYNCS: u64 = 4;

pub(super) fn check(copy: &DiskCopy, live: &ObservedState, prng: &mut Prng) -> Option<String> {
    let unsynced = copy.killed();
    let engine = unsynced.open_store().ok()?;
    catch_up(&engine, &live.applied()).ok().filter(|is_done| *is_done)?;
    let nth = 1 + prng.below(SYNCS);
    unsynced.disk.inject(Fault::SyncFails { path_contains: "manifest-".into(), nth }).ok()?;
    work(&engine, prng);
    drop(engine);

    let full = unsynced.killed();
    let capacity_bytes = full.disk.total_bytes(Path::new(DIR)).ok()?;
    let free_bytes = full.disk.free_bytes(Path::new(DIR)).ok()?;
    full.disk.set_capacity(Some(capacity_bytes.saturating_sub(free_bytes)));
    // A store may refuse to open without room.
    let engine = full.open_store().ok()?;
    maintain(&engine);
    drop(engine);

    full.disk.set_capacity(Some(capacity_bytes));
    let found = cut_at_last(&full, &live.applied(), live, prng);
    found.map(|text| format!("opened on a full device, then a power cut: {text}"))
}
