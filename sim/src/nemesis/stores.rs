//! Faults of one store, while the other stores of its node go on.

use super::Undo;
use crate::faults::Fault;
use crate::plan::MS;
use crate::world::{DIR, World};
use std::path::PathBuf;
use stele_engine::Store as Engine;
use stele_log::FileKind;
use stele_replica::Item;
use stele_simulated_disk::{Fault as DiskFault, SimVfs};
use stele_types::{Error, Prng};

/// Limit of the bytes that a disk refuses to read.
const REFUSED_BYTES_MAX: u64 = 6_000;

impl World {
    pub(super) fn trouble_store(&mut self, fault: Fault) {
        let leading = match self.nemesis.prng.coin() {
            true => self.leading_slot_of_data(),
            false => None,
        };
        let Some(number) = leading.or_else(|| self.any_slot()) else { return };
        let node = self.slots.get(&number).map_or(0, |slot| slot.node);
        self.trace.note(self.now, node, number, || fault.name().into());
        match fault {
            Fault::StoreHangs => self.hang_store(number),
            Fault::StoreFails => self.fail_store(number),
            _ => self.refuse_reads(number),
        }
    }

    /// Stops all operations of a store's disk for a while, in half of the cases with the loop.
    fn hang_store(&mut self, number: u64) {
        let prng = &mut self.nemesis.prng;
        let millis_max = if prng.below(6) == 0 { 12_000 } else { 4_000 };
        let nanos = (100 + prng.below(millis_max)) * MS;
        let loop_hangs = prng.coin();
        self.counts.disk_faults += 1;
        if let Some(slot) = self.slots.get_mut(&number) {
            self.trace.span(self.now, nanos, slot.node, number, || "hangs".into());
            slot.hangs_until = slot.hangs_until.max(self.now + nanos);
            slot.loop_hangs |= loop_hangs;
        }
    }

    /// Lets a store stop: its disk fails a sync, or its loop meets an error. It is restarted with its
    /// node after a while, or its disk is replaced if every region has enough other replicas.
    fn fail_store(&mut self, number: u64) {
        let prng = &mut self.nemesis.prng;
        let nanos = prng.below(8_000) * MS;
        let (by_sync, may_replace) = (prng.coin(), prng.below(3) == 0);
        let is_replaced = may_replace && self.may_lose(number);
        self.counts.disk_faults += 1;
        let Some(slot) = self.slots.get_mut(&number) else { return };
        slot.is_troubled = true;
        slot.fails_until = self.now + nanos;
        slot.is_replaced_on_failure = is_replaced;
        if by_sync {
            let sync = DiskFault::SyncFails { path_contains: String::new(), nth: 1 };
            if let Err(error) = slot.disk.inject(sync) {
                self.fail(format!("a fault was not injected: {error}"));
            }
            return;
        }
        self.push_item(number, |queue| {
            let error = Error::Poisoned("the simulation ends this loop".into());
            // A loop that has ended takes nothing.
            queue.push(Item::Stopped(error)) == Some(true)
        });
    }

    /// Makes a disk refuse to read values that runs refer to, if every region has enough other
    /// replicas. The disk may be replaced later.
    fn refuse_reads(&mut self, number: u64) {
        if !self.may_lose(number) {
            return;
        }
        let Some(engine) = self.engine(number) else { return };
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(refused) = refused_part(&engine, &slot.disk, &mut self.nemesis.prng) else {
            return;
        };
        self.trace.note(self.now, slot.node, number, || format!("{refused:?}"));
        if slot.disk.inject(refused).is_err() {
            return;
        }
        slot.is_unreadable = true;
        self.counts.corruptions += 1;
        if self.nemesis.prng.below(3) == 0 {
            slot.is_to_be_replaced = true;
            self.undo_later(Undo::Exchange(number), 6_000);
        }
    }
}

/// Draws a part of a value file that neither a region's log nor a replay needs.
fn refused_part(engine: &Engine, disk: &SimVfs, prng: &mut Prng) -> Option<DiskFault> {
    let from = engine.index().checkpoint().replay_from.file;
    let files = engine.log().files().into_iter().filter_map(|info| {
        let kind = match info.kind {
            FileKind::Sorted => "val",
            FileKind::Segment { sealed: true, .. } if !info.wanted_by_raft && info.file < from => {
                "seg"
            }
            _ => return None,
        };
        Some(PathBuf::from(DIR).join(format!("log/{:08x}.{kind}", info.file.0)))
    });
    let files: Vec<PathBuf> = files.collect();
    let path = files.get(prng.below(files.len().max(1) as u64) as usize)?.clone();
    let offset = prng.below(disk.file_bytes(&path)?.max(1));
    Some(DiskFault::Unreadable { path, offset, bytes: 1 + prng.below(REFUSED_BYTES_MAX) })
}
