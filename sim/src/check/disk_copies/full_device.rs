//! Checks a store that opens on a full device after a manifest failed to sync: what only the page
//! cache holds must not count as durable, or a later power cut loses it.

use super::DiskCopy;
use super::observed_state::{ObservedState, catch_up};
use super::power::{maintain, open_undamaged, same, work};
use crate::world::DIR;
use std::path::Path;
use stele_types::Prng;
use stele_vfs::{Fault, Vfs};

/// Syncs of a manifest of which one fails.
const SYNCS: u64 = 4;

pub fn check(copy: &DiskCopy, live: &ObservedState, prng: &mut Prng) -> Option<String> {
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

    let cut = full.cut(prng);
    cut.disk.set_capacity(Some(capacity_bytes));
    let found = match open_undamaged(&cut) {
        Ok(engine) => match catch_up(&engine, &live.applied()) {
            Ok(true) => same(&engine, &live.pairs),
            Ok(false) => None,
            Err(error) => Some(format!("it cannot apply what it applied: {error}")),
        },
        Err(text) => Some(text),
    };
    found.map(|text| format!("opened on a full device, then a power cut: {text}"))
}
