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
}

struct Answer {
    slot: u64,
    life: u64,
    region: RegionId,
    range: KeyRange,
    at: LogIndex,
}

impl Repairs {
    /// A replica's ranges hold something else from now on.
    pub fn replaced(&mut self, slot: u64, region: RegionId) {
        self.ranges.retain(|answer| (answer.slot, answer.region) != (slot, region));
    }
}

impl World {
    /// A message leaves a store.
    pub(super) fn check_found(&mut self, from: u64, message: &PeerMessage) {
        match &message.body {
            Body::Lost(lost) => {
                let store = message.from_store;
                let asked = lost.iter().map(|it| (store, it.key.clone(), it.length, it.crc));
                self.checks.repairs.asked.extend(asked);
            }
            Body::Found(pairs) => {
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
        let Body::FoundRange(found) = &message.body else { return };
        let Some(it) = self.slots.get(&slot) else { return };
        let is_lost = |lost: &KeyRange| lost.overlaps(&found.range);
        let lost = it.engine().map(|engine| engine.lost_ranges()).unwrap_or_default();
        if lost.iter().any(is_lost) {
            self.checks.repairs.ranges.push(Answer {
                slot,
                life: it.life,
                region: message.region,
                range: found.range.clone(),
                at: found.at,
            });
        }
    }

    /// A store was polled: what is ahead of what it applied it must not have taken over.
    pub(crate) fn check_covered(&mut self, number: u64) {
        if self.checks.repairs.ranges.is_empty() {
            return;
        }
        let Some(life) = self.slots.get(&number).map(|slot| slot.life) else { return };
        let Some(engine) = self.engine(number) else { return };
        let ranges = &mut self.checks.repairs.ranges;
        ranges.retain(|answer| answer.slot != number || answer.life == life);
        let applied = |region| engine.progress(region).map_or(LogIndex(0), |it| it.applied);
        // What these say may be what is there now.
        let reached = |it: &mut Answer| it.slot == number && it.at <= applied(it.region);
        let reached: Vec<Answer> = ranges.extract_if(.., reached).collect();
        let concerns = |it: &Answer| reached.iter().any(|other| other.range.overlaps(&it.range));
        ranges.retain(|it| it.slot != number || !concerns(it));
        let lost = engine.lost_ranges();
        if lost.len() >= LISTED_MAX {
            return;
        }
        let is_lost = |it: &Answer| lost.iter().any(|lost| lost.overlaps(&it.range));
        if let Some(early) = ranges.iter().find(|it| it.slot == number && !is_lost(it)) {
            let (region, at, range) = (early.region, early.at, early.range.clone());
            let applied = applied(region);
            self.fail(format!(
                "store {number} takes over what {range:?} of region {region} holds as of {at}, with \
                 {applied} applied"
            ));
        }
    }
}
