//! A store whose log lost entries: it asks the others for copies until it is whole, and then opens.

use super::{Happening, World};
use crate::plan::SECOND;
use std::path::Path;
use std::sync::Arc;
use stele_engine::RecoveringStore;
use stele_raftstore::{EntryRecovery, PeerMessage};
use stele_types::{Result, StoreId};

/// After so long without an end an operator replaces the disk: nobody has what is missing.
const GIVE_UP_NANOS: u64 = 5 * SECOND;

impl World {
    /// Whether a store that did not open waits for copies of entries; from now on it asks for them.
    pub(super) fn begins_mending(&mut self, number: u64) -> Result<bool> {
        let Some((disk, _, options)) = self.parts_of(number) else { return Ok(false) };
        let mending = RecoveringStore::begin(Arc::new(disk), Path::new(super::DIR), &options)?;
        let Some(mending) = mending else { return Ok(false) };
        let Some(ident) = mending.ident() else { return Ok(false) };
        let Some(slot) = self.slots.get_mut(&number) else { return Ok(false) };
        let mender = EntryRecovery::new(ident.store, mending);
        let ((lost, _), node, life) = (mender.lost(), slot.node, slot.life);
        let is_sound = !slot.is_damaged && !slot.may_not_open;
        slot.mending = Some(mender);
        slot.id = Some(ident.store);
        self.homes.insert(ident.store, number);
        self.trace.note(self.now, node, number, || format!("lost {lost} entries"));
        if is_sound {
            self.fail(format!(
                "store {number} says it lost {lost} entries, but nothing was damaged"
            ));
        }
        self.after(0, Happening::Recover { slot: number, life });
        Ok(true)
    }

    /// The time has come to ask again.
    pub(super) fn mend_on(&mut self, number: u64, life: u64) {
        let is_it = |slot: &&super::Slot| slot.life == life && slot.mending.is_some();
        if self.slots.get(&number).filter(is_it).is_none() {
            return;
        }
        self.ask_for_entries(number);
        let Some(slot) = self.slots.get(&number) else { return };
        let Some(mender) = &slot.mending else { return };
        if mender.waited_nanos(self.now) > GIVE_UP_NANOS && !self.plan.is_helix {
            self.trace.note(self.now, slot.node, number, || "nobody has what it lost".into());
            return self.exchange_disk(number);
        }
        let pause = mender.asks_at().saturating_sub(self.now).max(1);
        self.after(pause, Happening::Recover { slot: number, life });
    }

    pub(super) fn receive_mending(&mut self, number: u64, message: PeerMessage) {
        let Some(mender) = self.slots.get_mut(&number).and_then(|slot| slot.mending.as_mut())
        else {
            return;
        };
        let before = mender.lost().0;
        let received = mender.receive(message);
        self.counts.entries_mended += (before - mender.lost().0) as u64;
        match received {
            Ok(answers) => answers.iter().for_each(|answer| self.send(number, answer)),
            Err(error) => return self.store_failed(number, &error),
        }
        self.ask_for_entries(number);
    }

    fn ask_for_entries(&mut self, number: u64) {
        let others: Vec<StoreId> = self.homes.keys().copied().collect();
        let now = self.now;
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(mender) = slot.mending.as_mut() else { return };
        if mender.is_recovered() {
            // The directory is free.
            let (nanos, (lost, _)) = (mender.waited_nanos(now), mender.lost());
            slot.mending = None;
            let node = slot.node;
            if lost > 0 {
                return self.fail(format!("store {number} opens without {lost} entries it lost"));
            }
            self.trace.span(now - nanos, nanos, node, number, || "waited for entries".into());
            return self.open_slot(number);
        }
        for message in mender.poll(now, &others) {
            self.send(number, &message);
        }
    }
}
