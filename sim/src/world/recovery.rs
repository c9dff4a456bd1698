//! Log entry recovery of a store before it opens: it requests copies of lost entries from other
//! stores.

use super::{Happening, World};
use crate::plan::SECOND;
use stele_engine::RecoveringStore;
use stele_node::members::Table;
use stele_replica::{EntryRecovery, PeerMessage};
use stele_types::StoreIdent;

/// Time after which an operator replaces the disk: no store has the missing entries.
const GIVE_UP_NANOS: u64 = 5 * SECOND;

impl World {
    pub(super) fn begin_recovery(
        &mut self,
        number: u64,
        ident: StoreIdent,
        recovery: EntryRecovery<RecoveringStore>,
    ) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let ((lost, _), node, incarnation) = (recovery.lost(), slot.node, slot.incarnation);
        let is_sound = !slot.is_damaged && !slot.is_unreadable && !slot.may_not_open;
        slot.recovery = Some(recovery);
        slot.id = Some(ident.store);
        self.homes.insert(ident.store, number);
        self.trace.note(self.now, node, number, || format!("lost {lost} entries"));
        if is_sound {
            self.fail(format!(
                "store {number} reports {lost} lost entries, but nothing was damaged"
            ));
        }
        self.after(0, Happening::Recover { slot: number, incarnation });
    }

    /// Repeats the requests, or gives up.
    pub(super) fn continue_recovery(&mut self, number: u64, incarnation: u64) {
        let is_it =
            |slot: &&super::Slot| slot.incarnation == incarnation && slot.recovery.is_some();
        if self.slots.get(&number).filter(is_it).is_none() {
            return;
        }
        self.request_entries(number);
        let Some(slot) = self.slots.get(&number) else { return };
        let Some(recovery) = &slot.recovery else { return };
        if recovery.waited_nanos(self.now) > GIVE_UP_NANOS && !self.plan.is_helix {
            self.trace.note(self.now, slot.node, number, || "no store has its lost entries".into());
            return self.exchange_disk(number);
        }
        let pause = recovery.asks_at().saturating_sub(self.now).max(1);
        self.after(pause, Happening::Recover { slot: number, incarnation });
    }

    pub(super) fn receive_recovery_message(&mut self, number: u64, message: PeerMessage) {
        let Some(recovery) = self.slots.get_mut(&number).and_then(|slot| slot.recovery.as_mut())
        else {
            return;
        };
        let before = recovery.lost().0;
        let received = recovery.receive(message);
        self.counts.entries_recovered += (before - recovery.lost().0) as u64;
        match received {
            Ok(answers) => answers.iter().for_each(|answer| self.send(number, answer)),
            Err(error) => return self.store_failed(number, &error),
        }
        self.request_entries(number);
    }

    fn request_entries(&mut self, number: u64) {
        let node = self.slots.get(&number).map_or(0, |slot| slot.node);
        let others = self.table(node).map(Table::stores).unwrap_or_default();
        let now = self.now;
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let Some(recovery) = slot.recovery.as_mut() else { return };
        if recovery.is_recovered() {
            // Dropping it releases the directory.
            let (nanos, (lost, _)) = (recovery.waited_nanos(now), recovery.lost());
            slot.recovery = None;
            let node = slot.node;
            if lost > 0 {
                return self
                    .fail(format!("store {number} opens without {lost} of its lost entries"));
            }
            self.trace.span(now - nanos, nanos, node, number, || "waited for entries".into());
            return self.open_slot(number);
        }
        for message in recovery.poll(now, &others) {
            self.send(number, &message);
        }
    }
}
