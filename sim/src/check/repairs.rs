//! What replicas send each other of what one of them lost: the very value that was asked for, and what a
//! range holds only where as much is applied.

use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeSet;
use stele_engine::Store as Engine;
use stele_raftstore::{Body, Input, PeerMessage};
use stele_storage::StorageEngine;
use stele_types::checksum::crc32c;
use stele_types::{KeyRange, LogIndex, RegionId, StoreId};

/// Of more ranges than this an engine lists some only.
const LISTED_MAX: usize = 16;

/// What was said.
#[derive(Default)]
pub struct Repairs {
    /// Values that stores asked for, by length and checksum.
    asked: BTreeSet<(StoreId, Bytes, u32, u32)>,
    /// Answers about ranges that their receivers do not know what they hold.
    ranges: Vec<Answer>,
    /// Replicas that such answers came for since their store was polled: the next poll takes or drops all
    /// their answers that are due by then.
    heard: BTreeSet<(u64, RegionId)>,
}

#[derive(Clone)]
struct Answer {
    slot: u64,
    life: u64,
    region: RegionId,
    range: KeyRange,
    at: LogIndex,
    /// All up to its entry is applied: it is taken, or dropped, when its replica works next.
    is_due: bool,
    /// The store surely lacked some of the range when this was looked at last.
    was_lost: bool,
}

impl Repairs {
    /// A replica's ranges hold something else from now on.
    pub fn replaced(&mut self, slot: u64, region: RegionId) {
        self.ranges.retain(|answer| (answer.slot, answer.region) != (slot, region));
    }

    /// A store in one of its lives was polled, applied so much of each region, and lacks these ranges.
    /// Returns an answer that it took over although that was not due: the range is not lost any more, and
    /// none that was due says anything of it. Rule: one that fell due stays so until its replica surely
    /// worked, for that may be polls later, when answers ahead of it came as well. One that is not due is
    /// kept although its range is whole again: its replica keeps it too, and takes it when some of the range
    /// was lost anew.
    fn polled(
        &mut self,
        (slot, life): (u64, u64),
        applied: impl Fn(RegionId) -> LogIndex,
        lost: &[KeyRange],
    ) -> Option<Answer> {
        self.ranges.retain(|it| it.slot != slot || it.life == life);
        let (mut here, others): (Vec<Answer>, Vec<Answer>) =
            std::mem::take(&mut self.ranges).into_iter().partition(|it| it.slot == slot);
        self.ranges = others;
        let is_done = |it: &Answer| it.is_due && self.heard.contains(&(slot, it.region));
        let done: Vec<Answer> = here.extract_if(.., |it| is_done(it)).collect();
        self.heard.retain(|(other, _)| *other != slot);
        here.iter_mut().for_each(|it| it.is_due |= it.at <= applied(it.region));
        let (due, mut ahead): (Vec<Answer>, Vec<Answer>) =
            here.into_iter().partition(|it| it.is_due);
        let is_said =
            |it: &Answer| due.iter().chain(&done).any(|other| other.range.overlaps(&it.range));
        let knows_all = lost.len() < LISTED_MAX;
        let is_lost = |it: &Answer| lost.iter().any(|lost| lost.overlaps(&it.range));
        let is_early = |it: &&Answer| it.was_lost && knows_all && !is_lost(it) && !is_said(it);
        let early = ahead.iter().find(is_early).cloned();
        ahead.iter_mut().for_each(|it| it.was_lost = is_lost(it));
        self.ranges.extend(due.into_iter().chain(ahead));
        early
    }
}

impl World {
    /// A message leaves a store.
    pub(super) fn check_found(&mut self, from: u64, message: &PeerMessage) {
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
                        "store {from} sends store {to} {bytes} bytes as the value of {key:?}, for \
                         which it did not ask"
                    ));
                }
            }
            _ => {}
        }
    }

    /// A store's loop takes an input.
    pub(crate) fn note_found_range(&mut self, slot: u64, input: &Input<Engine>) {
        let Input::Message(message) = input else { return };
        let Body::RangeRepairReply(found) = &message.body else { return };
        let region = message.region;
        let Some(it) = self.slots.get_mut(&slot) else { return };
        let here = it.core().and_then(|core| core.region(region));
        // No other replica looks at it.
        if here.is_none_or(|here| here.peer.id != message.to.id) {
            return;
        }
        let (life, Some(engine)) = (it.life, it.engine()) else { return };
        let repairs = &mut self.checks.repairs;
        repairs.heard.insert((slot, region));
        let is_due = found.at <= applied(engine, region);
        let (range, at) = (found.range.clone(), found.at);
        let was_lost = engine.lost_ranges().iter().any(|lost| lost.overlaps(&range));
        repairs.ranges.push(Answer { slot, life, region, range, at, is_due, was_lost });
    }

    /// A store was polled: what is ahead of what it applied it must not have taken over.
    pub(crate) fn check_covered(&mut self, number: u64) {
        if self.checks.repairs.ranges.is_empty() {
            return;
        }
        let Some(life) = self.slots.get(&number).map(|slot| slot.life) else { return };
        let Some(engine) = self.engine(number) else { return };
        let applied = |region| applied(&engine, region);
        let early = self.checks.repairs.polled((number, life), applied, &engine.lost_ranges());
        if let Some(Answer { region, range, at, .. }) = early {
            let applied = applied(region);
            self.fail(format!(
                "store {number} takes over what {range:?} of region {region} holds as of {at}, with \
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

    fn hears(repairs: &mut Repairs, range: &KeyRange, at: u64, applied: u64) {
        let ((slot, life), range) = (HERE, range.clone());
        let is_due = at <= applied;
        repairs.heard.insert((slot, REGION));
        let at = LogIndex(at);
        let region = REGION;
        repairs.ranges.push(Answer { slot, life, region, range, at, is_due, was_lost: true });
    }

    fn polled(repairs: &mut Repairs, applied: u64, lost: &[KeyRange]) -> Option<LogIndex> {
        repairs.polled(HERE, |_| LogIndex(applied), lost).map(|early| early.at)
    }

    #[test]
    fn an_answer_that_fell_due_is_taken_when_one_ahead_of_it_comes() {
        let range = KeyRange::new(b"a".to_vec(), b"c".to_vec());
        let lost = [range.clone()];
        let mut repairs = Repairs::default();
        hears(&mut repairs, &range, 790, 780);
        assert_eq!(polled(&mut repairs, 780, &lost), None);
        // It applies the entry at the end of its work.
        assert_eq!(polled(&mut repairs, 790, &lost), None);
        hears(&mut repairs, &range, 804, 790);
        assert_eq!(polled(&mut repairs, 790, &[]), None);
    }

    #[test]
    fn an_answer_ahead_of_what_is_applied_is_not_excused_by_one_that_was_dropped() {
        let range = KeyRange::new(b"a".to_vec(), b"c".to_vec());
        let lost = [range.clone()];
        for (at, polls) in [(790, 1), (795, 2)] {
            let mut repairs = Repairs::default();
            hears(&mut repairs, &range, at, 790);
            (0..polls).for_each(|_| assert_eq!(polled(&mut repairs, 795, &lost), None));
            hears(&mut repairs, &range, 804, 795);
            // What was due when its replica was to work again is done with.
            let after = polled(&mut repairs, 795, &lost);
            assert_eq!((after, polled(&mut repairs, 795, &[])), (None, Some(LogIndex(804))));
        }
    }

    #[test]
    fn an_answer_is_kept_while_its_range_is_whole_and_taken_when_some_is_lost_anew() {
        let range = |start: &str, end: &str| KeyRange::new(start.to_owned(), end.to_owned());
        let mut repairs = Repairs::default();
        hears(&mut repairs, &range("a", "d"), 513, 509);
        assert_eq!(polled(&mut repairs, 509, &[range("a", "d")]), None);
        hears(&mut repairs, &range("a", "d"), 509, 509);
        assert_eq!(polled(&mut repairs, 509, &[]), None);
        assert_eq!(polled(&mut repairs, 509, &[range("b", "c")]), None);
        hears(&mut repairs, &range("b", "c"), 551, 509);
        assert_eq!(polled(&mut repairs, 509, &[range("b", "c")]), None);
        // The first one is due now.
        assert_eq!(polled(&mut repairs, 549, &[]), None);
    }

    #[test]
    fn what_nobody_said_anything_due_of_is_taken_early() {
        let range = |start: &str, end: &str| KeyRange::new(start.to_owned(), end.to_owned());
        let mut repairs = Repairs::default();
        hears(&mut repairs, &range("a", "c"), 804, 790);
        hears(&mut repairs, &range("c", "d"), 780, 790);
        assert_eq!(polled(&mut repairs, 790, &[]), Some(LogIndex(804)));
    }
}
