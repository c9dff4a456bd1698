//! Damage that a store finds when it opens: parts of runs, whole runs, the manifest. A range lost
//! on one store is intact on all others. A store's local records stay intact: no other store has
//! them.

use crate::plan::fork;
use crate::world::{DIR, Stop, World};
use std::path::PathBuf;
use std::sync::Arc;
use stele_index::Run;
use stele_simulated_disk::Fault as DiskFault;
use stele_types::{KeyRange, Prng, keyspace};
use stele_vfs::Vfs;

/// Damaged places of one store, each in a different run.
const PLACES: u64 = 5;

/// Ranges lost so far, with the store.
type LostRanges = Vec<(u64, KeyRange)>;

impl World {
    /// Damages every store and restarts its node immediately. Returns the number of damaged places.
    pub(crate) fn damage_and_reopen(&mut self) -> u64 {
        let mut prng = fork(self.plan.seed, "reopened");
        let mut lost_ranges = LostRanges::new();
        let mut damaged = 0;
        for number in self.serving() {
            let Some(node) = self.slots.get(&number).map(|slot| slot.node) else { continue };
            let (flips, lost) = self.damage_open(number, &mut prng, &mut lost_ranges);
            let how = if prng.coin() { Stop::Power } else { Stop::Kill };
            self.stop_node(node, how);
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            slot.is_damaged = true;
            let index = PathBuf::from(DIR).join("index");
            let gone = lost.iter().filter(|path| slot.disk.unlink(path).is_ok()).count() as u64;
            let synced = slot.disk.sync_dir(&index);
            self.trace.note(self.now, node, number, || {
                format!("flipped {flips} bits, removed {lost:?}: {synced:?}")
            });
            damaged += flips + gone;
            self.start_node(node);
            if !self.serving().contains(&number) {
                let failed = self.slots.get(&number).and_then(|slot| slot.failed.clone());
                self.fail(format!("store {number} does not open because of damage: {failed:?}"));
            }
        }
        self.counts.corruptions += damaged;
        damaged
    }

    /// Flips bits. Returns their number, and the file to remove while the store is down.
    fn damage_open(
        &self,
        number: u64,
        prng: &mut Prng,
        lost_ranges: &mut LostRanges,
    ) -> (u64, Option<PathBuf>) {
        let Some(slot) = self.slots.get(&number) else { return (0, None) };
        let Some(engine) = self.engine(number) else { return (0, None) };
        let version = engine.index().version();
        let mut runs: Vec<Arc<Run>> = version.runs().cloned().collect();
        let mut flips = 0;
        for _ in 0..PLACES {
            let Some(run) = draw(&mut runs, prng) else { break };
            let (path, bytes) = (run.path().to_path_buf(), run.meta().bytes);
            // The parts after the blocks are small.
            let last = if prng.coin() { bytes / 3 } else { bytes };
            let (offset, bit) = (bytes.saturating_sub(1 + prng.below(last.max(1))), prng.below(8));
            let flip = || DiskFault::FlipBit { path: path.clone(), offset, bit: bit as u8 };
            let is_flipped = slot.disk.inject(flip()).is_ok();
            let lost =
                run.scrub_blocks(0, u64::MAX).map(|scrubbed| scrubbed.lost).unwrap_or_default();
            let ranges: Vec<KeyRange> = lost.into_iter().map(|lost| lost.range).collect();
            match ranges.iter().all(|range| may_lose(number, range, lost_ranges)) {
                true => {
                    flips += u64::from(is_flipped);
                    lost_ranges.extend(ranges.into_iter().map(|range| (number, range)));
                }
                // A second flip of the same bit undoes the first.
                false => drop(slot.disk.inject(flip())),
            }
        }
        let manifest = |path: &PathBuf| path.to_string_lossy().contains("manifest-");
        if let Some(path) = slot.disk.paths().into_iter().find(manifest) {
            let offset = prng.below(slot.disk.file_bytes(&path).unwrap_or(1));
            let bit = prng.below(8) as u8;
            flips += u64::from(slot.disk.inject(DiskFault::FlipBit { path, offset, bit }).is_ok());
        }
        runs.retain(|run| run.meta().entries > 0 && may_lose(number, &range_of(run), lost_ranges));
        let lost = draw(&mut runs, prng);
        lost_ranges.extend(lost.iter().map(|run| (number, range_of(run))));
        (flips, lost.map(|run| run.path().to_path_buf()))
    }
}

fn draw(runs: &mut Vec<Arc<Run>>, prng: &mut Prng) -> Option<Arc<Run>> {
    let count = runs.len() as u64;
    (count > 0).then(|| runs.swap_remove(prng.below(count) as usize))
}

fn range_of(run: &Run) -> KeyRange {
    let meta = run.meta();
    KeyRange::new(meta.first_key.to_vec(), stele_types::key_after(&meta.last_key))
}

fn may_lose(number: u64, range: &KeyRange, lost_ranges: &LostRanges) -> bool {
    range.start.first().is_some_and(|space| *space > keyspace::LOCAL)
        && !lost_ranges.iter().any(|(other, it)| *other != number && it.overlaps(range))
}
