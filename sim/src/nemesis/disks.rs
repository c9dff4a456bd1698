//! Disks that fail, lose writes, are full or slow.

use super::Undo;
use crate::faults::Fault;
use crate::plan::MS;
use crate::segments::payloads;
use crate::world::{Happening, Stop, World};
use std::path::PathBuf;
use stele_simulated_disk::{CrashAt, CrashPoint, Fault as DiskFault, SimVfs};
use stele_types::Prng;
use stele_vfs::Vfs;

/// Number of entries at a log's end from which damage is drawn.
const LAST_ENTRIES: usize = 40;

impl World {
    pub(super) fn trouble_disk(&mut self, fault: Fault) {
        let Some(number) = self.any_slot() else { return };
        // A leader's disk alone is slow: writes are answered and read before they are durable there.
        let leading = match fault {
            Fault::SlowDisk if self.nemesis.prng.coin() => self.leading_slot_of_data(),
            _ => None,
        };
        let number = leading.unwrap_or(number);
        let node = self.slots.get(&number).map_or(0, |slot| slot.node);
        self.trace.note(self.now, node, number, || format!("disk: {}", fault.name()));
        let prng = &mut self.nemesis.prng;
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let path_contains =
            ["", "log", "index", "manifest", ".run"][prng.below(5) as usize].to_owned();
        let nth = 1 + prng.below(if path_contains.len() > 3 { 3 } else { 20 });
        let injected = match fault {
            Fault::CrashPoint => {
                let operation = slot.disk.operations() + prng.below(40);
                let at = CrashAt::ALL[prng.below(3) as usize];
                slot.disk.crash_at(CrashPoint { operation, at });
                return;
            }
            Fault::SlowDisk => {
                slot.append_nanos = (MS, (2 + prng.below(150)) * MS);
                let millis_max = if leading.is_some() { 8_000 } else { 2_000 };
                return self.undo_later(Undo::Speed(number), millis_max);
            }
            Fault::Stall => {
                slot.stalled_until = self.now + (100 + prng.below(4_000)) * MS;
                return;
            }
            Fault::NoSpace => return self.fill_disk(number),
            Fault::BitFlip | Fault::ReplaceDisk | Fault::LoseFile => {
                return self.lose(number, fault);
            }
            Fault::ReadFails => DiskFault::ReadFails { path_contains, nth },
            Fault::ReadFlips => DiskFault::ReadFlipsOnce { path_contains, nth },
            Fault::WriteFails => DiskFault::WriteFails { path_contains, nth },
            Fault::SyncFails => DiskFault::SyncFails { path_contains, nth },
            Fault::SyncDirFails => DiskFault::SyncDirFails { path_contains, nth },
            Fault::Misdirect => DiskFault::MisdirectWrite { nth },
            Fault::LoseWrite => DiskFault::LoseWrite { nth },
            _ => return,
        };
        let lies = matches!(fault, Fault::Misdirect | Fault::LoseWrite);
        if lies && !self.may_lose(number) {
            return;
        }
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.is_troubled = true;
        if lies {
            self.restart_soon(number);
        }
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.is_damaged |= lies;
        slot.has_lied |= lies;
        self.counts.disk_faults += 1;
        if let Err(error) = slot.disk.inject(injected) {
            self.fail(format!("a fault was not injected: {error}"));
        }
    }

    fn fill_disk(&mut self, number: u64) {
        self.counts.disk_faults += 1;
        let Some(slot) = self.slots.get(&number) else { return };
        let dir = PathBuf::from(crate::world::DIR);
        let (Ok(free), Ok(total)) = (slot.disk.free_bytes(&dir), slot.disk.total_bytes(&dir))
        else {
            return;
        };
        let room = self.nemesis.prng.below(6) * 40_000;
        slot.disk.set_capacity(Some((total - free + room).min(total)));
        self.check_reserve(number);
        self.undo_later(Undo::Space(number), 2_000);
    }

    /// Fills the device after some operations, possibly in the middle of a step.
    fn fill_disk_soon(&mut self, number: u64) {
        let Some(slot) = self.slots.get(&number) else { return };
        let from_operation = slot.disk.operations() + self.nemesis.prng.below(24);
        if slot.disk.inject(DiskFault::NoSpace { from_operation }).is_ok() {
            self.counts.disk_faults += 1;
            self.undo_later(Undo::Room(number), 2_000);
        }
    }

    pub(super) fn restore_capacity(&mut self, number: u64) {
        if let Some(slot) = self.slots.get(&number) {
            slot.disk.set_capacity(Some(self.capacity_bytes(number)));
        }
    }

    /// Damages or removes stored data, if every region has enough other replicas.
    fn lose(&mut self, number: u64, fault: Fault) {
        if !self.may_lose(number) {
            return;
        }
        match fault {
            Fault::ReplaceDisk => return self.exchange_disk(number),
            Fault::LoseFile => return self.lose_file(number),
            _ => {}
        }
        let Some(slot) = self.slots.get(&number) else { return };
        let flip = match self.nemesis.prng.below(3) {
            0 => in_entry(&slot.disk, &mut self.nemesis.prng),
            _ => in_file(&slot.disk, &mut self.nemesis.prng),
        };
        let Some(flip) = flip else { return };
        self.trace.note(self.now, slot.node, number, || format!("{flip:?}"));
        if slot.disk.inject(flip).is_err() {
            return;
        }
        self.counts.corruptions += 1;
        self.restart_soon(number);
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.is_damaged = true;
        }
    }
}

impl World {
    /// Schedules a power cut or a full device for the middle of a critical operation, with
    /// probability 1 / `one_in`.
    pub(crate) fn trouble_near(&mut self, number: u64, one_in: u64) {
        if !self.nemesis.is_active || self.nemesis.prng.below(one_in) > 0 {
            return;
        }
        let (cuts, fills) = (Fault::CrashPoint, Fault::NoSpace);
        if self.plan.faults.has(fills) && self.nemesis.prng.below(3) == 0 {
            return match self.nemesis.prng.coin() {
                true => self.fill_disk(number),
                false => self.fill_disk_soon(number),
            };
        }
        let Some(slot) = self.slots.get(&number).filter(|_| self.plan.faults.has(cuts)) else {
            return;
        };
        let operation = slot.disk.operations() + self.nemesis.prng.below(24);
        let at = CrashAt::ALL[self.nemesis.prng.below(3) as usize];
        slot.disk.crash_at(CrashPoint { operation, at });
    }

    /// Restarts the node soon, mostly, so that opening finds the damage.
    fn restart_soon(&mut self, number: u64) {
        let Some(node) = self.slots.get(&number).map(|slot| slot.node) else { return };
        if self.nemesis.prng.below(3) > 0 {
            let pause = self.nemesis.prng.below(2_000) * MS;
            self.after(pause, Happening::Undo(Undo::Cut(node)));
        }
    }

    /// Removes a file of a store, or all manifests of its index, while the node is down. The store
    /// rebuilds the index or reports what is missing.
    fn lose_file(&mut self, number: u64) {
        let Some(node) = self.slots.get(&number).map(|slot| slot.node) else { return };
        self.stop_node(node, Stop::Power);
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let is_manifest = |path: &PathBuf| path.to_string_lossy().contains("manifest-");
        let lost: Vec<PathBuf> = match self.nemesis.prng.coin() {
            true => slot.disk.paths().into_iter().filter(is_manifest).collect(),
            false if self.nemesis.prng.coin() => newest_segments(&slot.disk.paths(), 1),
            false => flippable(slot.disk.paths(), &mut self.nemesis.prng).into_iter().collect(),
        };
        slot.may_not_open = true;
        // A lost end of the log looks like data that was never written.
        slot.has_lied |= lost == newest_segments(&slot.disk.paths(), 1);
        // A missing value may be found only by a read.
        slot.is_damaged = !lost.iter().all(is_manifest);
        let done = lost.iter().try_for_each(|path| slot.disk.unlink(path));
        let dir = PathBuf::from(crate::world::DIR);
        let synced =
            ["index", "log"].iter().try_for_each(|name| slot.disk.sync_dir(&dir.join(name)));
        self.counts.corruptions += 1;
        self.trace
            .note(self.now, node, number, || format!("removed {lost:?}: {done:?} {synced:?}"));
        let pause = self.nemesis.down_nanos();
        self.after(pause, Happening::Undo(Undo::Start(node)));
    }
}

/// Returns the newest segments of a log, oldest first.
fn newest_segments(paths: &[PathBuf], count: usize) -> Vec<PathBuf> {
    let is_segment = |path: &&PathBuf| path.extension().is_some_and(|kind| kind == "seg");
    let mut segments: Vec<PathBuf> = paths.iter().filter(is_segment).cloned().collect();
    segments.sort();
    segments.split_off(segments.len().saturating_sub(count))
}

/// Returns a flip of a bit in one of a log's last entries. The entry has two frames after it: the
/// second is written when the first is durable, which tells its damage from a write cut by power.
fn in_entry(disk: &SimVfs, prng: &mut Prng) -> Option<DiskFault> {
    let mut payloads = payloads(disk);
    payloads.retain(|payload| payload.frames_after > 1);
    let back = 1 + prng.below(payloads.len().min(LAST_ENTRIES) as u64) as usize;
    payloads.iter().nth_back(back - 1).map(|payload| payload.flip(prng))
}

/// Returns a flip of a bit in any file except the newest segment.
fn in_file(disk: &SimVfs, prng: &mut Prng) -> Option<DiskFault> {
    let path = flippable(disk.paths(), prng)?;
    let bytes = disk.file_bytes(&path).unwrap_or(0);
    // The end of a file holds short parts that others depend on; the last third of a run, its filter.
    let offset = match prng.below(4) {
        0 => bytes.saturating_sub(1 + prng.below(64)),
        1 => bytes.saturating_sub(1 + prng.below(bytes / 3 + 1)),
        _ => prng.below(bytes),
    };
    Some(DiskFault::FlipBit { path, offset, bit: prng.below(8) as u8 })
}

/// Draws a file except the newest segment: its damage cannot look like a write cut by power.
/// Often it is the segment before that one, which a replay reads, or a run.
fn flippable(paths: Vec<PathBuf>, prng: &mut Prng) -> Option<PathBuf> {
    let last = newest_segments(&paths, 2);
    let newest = last.last().cloned();
    if last.len() == 2 && prng.below(3) == 0 {
        return last.into_iter().next();
    }
    let name = |path: &PathBuf| path.to_string_lossy().into_owned();
    let kinds: &[&str] = match prng.below(3) {
        0 => &[".run"],
        1 => &["manifest-"],
        _ => &[".seg", ".val", ".side", ".run"],
    };
    let may = |path: &PathBuf| {
        kinds.iter().any(|kind| name(path).contains(kind)) && Some(path) != newest.as_ref()
    };
    let chosen: Vec<PathBuf> = paths.into_iter().filter(may).collect();
    let at = prng.below(chosen.len() as u64) as usize;
    chosen.get(at).cloned()
}
