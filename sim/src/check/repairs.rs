//! Checks value and block repair: a reply holds only the requested value, and a range is installed
//! only after the store applied as much as the sender had.

use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeSet;
use stele_engine::Store as Engine;
use stele_replica::{Body, PeerMessage};
use stele_storage::{LogStore, Repair};
use stele_types::checksum::crc32c;
use stele_types::{KeyRange, LogIndex, RegionId, StoreId};

/// From this length on an engine's list of lost ranges may be incomplete.
const LISTED_MAX: usize = 16;

#[derive(Default)]
pub(crate) struct Repairs {
    /// Values that stores requested: key, length and checksum.
    asked: BTreeSet<(StoreId, Bytes, u32, u32)>,
    /// Range repair replies that were received and not installed yet.
    ranges: Vec<RepairReply>,
    /// Replicas that received such replies since their store was last polled. The next poll
    /// installs or drops all their replies that are due.
    answered: BTreeSet<(u64, RegionId)>,
}

#[derive(Clone)]
struct RepairReply {
    slot: u64,
    incarnation: u64,
    region: RegionId,
    range: KeyRange,
    at: LogIndex,
    /// The store applied up to the reply's index: its replica installs or drops the reply at its
    /// next step.
    is_due: bool,
    /// Part of the range was lost when the store's turn began.
    was_lost: bool,
}

impl Repairs {
    /// Drops the replies of a replica after its ranges were replaced.
    pub(crate) fn replaced(&mut self, slot: u64, region: RegionId) {
        self.ranges.retain(|answer| (answer.slot, answer.region) != (slot, region));
    }

    /// Records the ranges that are lost when a store's turn begins. Between two turns a merge may
    /// replace a run with a lost block, because it passed the block's keys before they were lost.
    fn begin_turn(&mut self, slot: u64, lost: &[KeyRange]) {
        for reply in self.ranges.iter_mut().filter(|it| it.slot == slot) {
            reply.was_lost = lost.iter().any(|lost| lost.overlaps(&reply.range));
        }
    }

    /// Checks a store that was polled, with the index it applied of each region and the ranges it
    /// lost. Returns a reply that it installed too early: the range is no longer lost, and no due
    /// reply covers it. Invariant: a due reply stays until its replica surely processed it. That
    /// may be several polls later, after later replies arrived. A reply that is not due stays even
    /// if its range is intact: its replica keeps it too, and installs it if part of the range is
    /// lost again.
    fn polled(
        &mut self,
        (slot, incarnation): (u64, u64),
        applied: impl Fn(RegionId) -> LogIndex,
        lost: &[KeyRange],
    ) -> Option<RepairReply> {
        self.ranges.retain(|it| it.slot != slot || it.incarnation == incarnation);
        let (mut here, others): (Vec<RepairReply>, Vec<RepairReply>) =
            std::mem::take(&mut self.ranges).into_iter().partition(|it| it.slot == slot);
        self.ranges = others;
        let is_done = |it: &RepairReply| it.is_due && self.answered.contains(&(slot, it.region));
        let done: Vec<RepairReply> = here.extract_if(.., |it| is_done(it)).collect();
        self.answered.retain(|(other, _)| *other != slot);
        here.iter_mut().for_each(|it| it.is_due |= it.at <= applied(it.region));
        let (due, later): (Vec<RepairReply>, Vec<RepairReply>) =
            here.into_iter().partition(|it| it.is_due);
        let is_covered =
            |it: &RepairReply| due.iter().chain(&done).any(|other| other.range.overlaps(&it.range));
        let knows_all = lost.len() < LISTED_MAX;
        let is_lost = |it: &RepairReply| lost.iter().any(|lost| lost.overlaps(&it.range));
        let is_early =
            |it: &&RepairReply| it.was_lost && knows_all && !is_lost(it) && !is_covered(it);
        let early = later.iter().find(is_early).cloned();
        self.ranges.extend(due.into_iter().chain(later));
        early
    }
}

impl World {
    pub(super) fn check_repair_message(&mut self, from: u64, message: &PeerMessage) {
        match &message.body {
            Body::ValueRepairRequest(lost) => {
                let store = message.from_store;
                let asked = lost.iter().map(|it| (store, it.key.clone(), it.length, it.crc));
                self.checks.repairs.asked.extend(asked);
            }
            Body::ValueRepairReply(pairs) => {
                let asked = &self.checks.repairs.asked;
                let other = pairs.iter().find(|(key, value)| {
                    let length = value.len() as u32;
                    !asked.contains(&(message.to_store, key.clone(), length, crc32c(value)))
                });
                if let Some((key, value)) = other {
                    let (to, bytes) = (message.to_store, value.len());
                    self.fail(format!(
                        "store {from} sends store {to} {bytes} bytes as the value of {key:?}, \
                         which store {to} did not request"
                    ));
                }
            }
            _ => {}
        }
    }

    pub(crate) fn note_range_repair(&mut self, slot: u64, message: &PeerMessage) {
        let Body::RangeRepairReply(found) = &message.body else { return };
        let region = message.region;
        let Some(it) = self.slots.get_mut(&slot) else { return };
        let here = it.core().and_then(|core| core.region(region));
        // No other replica processes it.
        if here.is_none_or(|here| here.peer.id != message.to.id) {
            return;
        }
        let (incarnation, Some(engine)) = (it.incarnation, it.engine()) else { return };
        let repairs = &mut self.checks.repairs;
        repairs.answered.insert((slot, region));
        let is_due = found.at <= applied(engine, region);
        let (range, at, was_lost) = (found.range.clone(), found.at, false);
        repairs.ranges.push(RepairReply { slot, incarnation, region, range, at, is_due, was_lost });
    }

    /// Records what a store has lost before its loop takes its turn.
    pub(crate) fn note_lost_ranges(&mut self, number: u64) {
        if !self.checks.repairs.ranges.is_empty()
            && let Some(engine) = self.engine(number)
        {
            self.checks.repairs.begin_turn(number, &engine.lost_ranges());
        }
    }

    /// Checks a store that was polled: no reply ahead of its applied index was installed.
    pub(crate) fn check_range_repairs(&mut self, number: u64) {
        if self.checks.repairs.ranges.is_empty() {
            return;
        }
        let Some(incarnation) = self.slots.get(&number).map(|slot| slot.incarnation) else {
            return;
        };
        let Some(engine) = self.engine(number) else { return };
        let applied = |region| applied(&engine, region);
        let early =
            self.checks.repairs.polled((number, incarnation), applied, &engine.lost_ranges());
        if let Some(RepairReply { region, range, at, .. }) = early {
            let applied = applied(region);
            self.fail(format!(
                "store {number} installs range {range:?} of region {region} as of {at}, with only \
                 {applied} applied"
            ));
        }
    }
}

fn applied(engine: &Engine, region: RegionId) -> LogIndex {
    engine.progress(region).map_or(LogIndex(0), |it| it.applied)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: (u64, u64) = (3, 1);
    const REGION: RegionId = RegionId(2);

    fn receive_answer(repairs: &mut Repairs, range: &KeyRange, at: u64, applied: u64) {
        let ((slot, incarnation), range) = (HERE, range.clone());
        let is_due = at <= applied;
        repairs.answered.insert((slot, REGION));
        let at = LogIndex(at);
        let region = REGION;
        repairs.ranges.push(RepairReply {
            slot,
            incarnation,
            region,
            range,
            at,
            is_due,
            was_lost: false,
        });
    }

    /// Checks a turn that found the ranges `before` lost and leaves `after`.
    fn turn(
        repairs: &mut Repairs,
        applied: u64,
        before: &[KeyRange],
        after: &[KeyRange],
    ) -> Option<LogIndex> {
        repairs.begin_turn(HERE.0, before);
        repairs.polled(HERE, |_| LogIndex(applied), after).map(|early| early.at)
    }

    #[test]
    fn an_answer_that_fell_due_is_taken_when_one_ahead_of_it_comes() {
        let range = KeyRange::new(b"a".to_vec(), b"c".to_vec());
        let lost = [range.clone()];
        let mut repairs = Repairs::default();
        receive_answer(&mut repairs, &range, 790, 780);
        assert_eq!(turn(&mut repairs, 780, &lost, &lost), None);
        // The replica applies the entry at the end of its step.
        assert_eq!(turn(&mut repairs, 790, &lost, &lost), None);
        receive_answer(&mut repairs, &range, 804, 790);
        assert_eq!(turn(&mut repairs, 790, &lost, &[]), None);
    }

    #[test]
    fn an_answer_ahead_of_what_is_applied_is_not_excused_by_one_that_was_dropped() {
        let range = KeyRange::new(b"a".to_vec(), b"c".to_vec());
        let lost = [range.clone()];
        for (at, polls) in [(790, 1), (795, 2)] {
            let mut repairs = Repairs::default();
            receive_answer(&mut repairs, &range, at, 790);
            (0..polls).for_each(|_| assert_eq!(turn(&mut repairs, 795, &lost, &lost), None));
            receive_answer(&mut repairs, &range, 804, 795);
            // A reply that was due before its replica's step is done.
            let after = turn(&mut repairs, 795, &lost, &lost);
            assert_eq!((after, turn(&mut repairs, 795, &lost, &[])), (None, Some(LogIndex(804))));
        }
    }

    #[test]
    fn a_reply_is_kept_while_its_range_is_intact_and_installed_when_part_is_lost_again() {
        let range = |start: &str, end: &str| KeyRange::new(start.to_owned(), end.to_owned());
        let mut repairs = Repairs::default();
        receive_answer(&mut repairs, &range("a", "d"), 513, 509);
        let (whole, part) = ([range("a", "d")], [range("b", "c")]);
        assert_eq!(turn(&mut repairs, 509, &whole, &whole), None);
        receive_answer(&mut repairs, &range("a", "d"), 509, 509);
        assert_eq!(turn(&mut repairs, 509, &whole, &[]), None);
        assert_eq!(turn(&mut repairs, 509, &part, &part), None);
        receive_answer(&mut repairs, &range("b", "c"), 551, 509);
        assert_eq!(turn(&mut repairs, 509, &part, &part), None);
        // The first reply is due now.
        assert_eq!(turn(&mut repairs, 549, &part, &[]), None);
    }

    #[test]
    fn a_reply_is_early_if_no_due_reply_covers_its_range() {
        let range = |start: &str, end: &str| KeyRange::new(start.to_owned(), end.to_owned());
        let mut repairs = Repairs::default();
        receive_answer(&mut repairs, &range("a", "c"), 804, 790);
        receive_answer(&mut repairs, &range("c", "d"), 780, 790);
        assert_eq!(turn(&mut repairs, 790, &[range("a", "d")], &[]), Some(LogIndex(804)));
    }

    #[test]
    fn a_range_that_a_merge_replaces_between_two_turns_was_not_installed() {
        let range = KeyRange::new(b"a".to_vec(), b"c".to_vec());
        let lost = [range.clone()];
        let mut repairs = Repairs::default();
        receive_answer(&mut repairs, &range, 804, 790);
        assert_eq!(turn(&mut repairs, 790, &lost, &lost), None);
        assert_eq!(turn(&mut repairs, 790, &[], &[]), None);
        assert_eq!(turn(&mut repairs, 790, &lost, &[]), Some(LogIndex(804)));
    }
}
