//! Values that one replica can't read and another one can.

use super::Peer;
use super::snapshot::snapshot_ranges;
use crate::messages::{Body, PeerMessage, RangeRepairReply};
use crate::store::Context;
use crate::wire::VALUES_MAX;
use bytes::Bytes;
use stele_storage::{EngineView, LostValue, ScanOptions, StorageEngine};
use stele_types::{
    Command, CommittedEntry, Error, KeyRange, LogIndex, Op, Peer as PeerName, Prng, Region, Result,
    keyspace, mutant,
};

/// Bytes of values in one answer, save that one value always fits.
const FOUND_BYTES_MAX: usize = 1 << 20;
/// Answers kept that are ahead of what is applied here.
const RANGES_KEPT_MAX: usize = 8;
/// Values read for one question, whether they are there or not.
const LOOKS_MAX: usize = 256;

impl<E: StorageEngine> Peer<E> {
    /// Whether an engine's key is this region's.
    pub fn owns(&self, key: &Bytes) -> bool {
        self.owned_ranges().iter().any(|range| range.contains(key))
    }

    /// What every replica of the region holds.
    pub fn owned_ranges(&self) -> Vec<KeyRange> {
        ranges_of(&self.region)
    }

    /// Asks another replica; with each round the next one.
    pub fn ask(&self, ctx: &mut Context<E>, round: usize, question: Body) {
        if let Some(to) = self.other(round) {
            self.send(ctx, to, question);
        }
    }

    /// Sends what the first part of a range holds.
    pub(super) fn look_for_range(&self, ctx: &mut Context<E>, to: PeerName, range: &KeyRange) {
        if !self.owned_ranges().iter().any(|own| range.without(own).is_empty()) {
            return;
        }
        let Ok(view) = ctx.engine.view() else { return };
        let mut options = ScanOptions::new(range.clone(), VALUES_MAX);
        options.bytes_max = FOUND_BYTES_MAX;
        // What can't be read here either is noted by the engine, and asked for in turn.
        let Ok(pairs) = view.scan(&options) else { return };
        let mut range = range.clone();
        if let Some(last) = pairs.last() {
            let mut next = last.key.to_vec();
            next.push(0);
            let rest = KeyRange { start: next.into(), end: range.end.clone() };
            let mut options = ScanOptions::new(rest.clone(), 1);
            options.keys_only = true;
            let Ok(more) = view.scan(&options) else { return };
            if !more.is_empty() {
                range.end = rest.start;
            }
        }
        // The view holds what is applied at this moment, no more and no less.
        let found = RangeRepairReply { range, at: LogIndex(self.applied), pairs };
        self.send(ctx, to, Body::RangeRepairReply(found));
    }

    /// Keeps an answer until it can be taken over; what is too much is asked for again.
    pub(super) fn keep_found_range(&mut self, found: RangeRepairReply) {
        if self.found_ranges.len() < RANGES_KEPT_MAX {
            self.found_ranges.push(found);
        }
    }

    /// Takes over what other replicas said of ranges. Rule: only once that is what the range holds
    /// here too: all up to the answer's entry is applied, and nothing applied after it touches the
    /// range.
    pub(super) fn take_found_ranges(&mut self, ctx: &mut Context<E>) -> Result<()> {
        let early = mutant::active("raftstore.cover_with_the_future");
        let applied = self.applied;
        let is_ready = |found: &mut RangeRepairReply| found.at.0 <= applied || early;
        let ready: Vec<RangeRepairReply> = self.found_ranges.extract_if(.., is_ready).collect();
        ready.into_iter().try_for_each(|found| self.take_found_range(ctx, found))
    }

    fn take_found_range(&self, ctx: &mut Context<E>, found: RangeRepairReply) -> Result<()> {
        let is_owned = |own: &KeyRange| found.range.without(own).is_empty();
        let is_lost = ctx.engine.lost_ranges().iter().any(|lost| lost.overlaps(&found.range));
        if !is_lost
            || !self.owned_ranges().iter().any(is_owned)
            || !self.is_untouched_since(ctx, &found)?
        {
            return Ok(());
        }
        match ctx.engine.repair_range(&found.range, found.pairs) {
            // Asked for again.
            Err(Error::NoSpace(_) | Error::Busy(_)) => Ok(()),
            Err(error) if error.is_damage() => Ok(()),
            done => done,
        }
    }

    /// Whether no entry applied here after those the answer knows of changes the range. `false` also
    /// where they are not in the log any more.
    fn is_untouched_since(&self, ctx: &Context<E>, found: &RangeRepairReply) -> Result<bool> {
        if mutant::active("raftstore.cover_with_the_past") {
            return Ok(true);
        }
        let mut next = found.at.next();
        if next.0 <= self.log().truncated().0 {
            return Ok(found.at.0 == self.applied);
        }
        while next.0 <= self.applied {
            let to = LogIndex(self.applied + 1);
            let entries = match ctx.engine.entries(self.region.id, next, to, FOUND_BYTES_MAX) {
                Ok(entries) => entries,
                Err(error) if error.is_damage() => return Ok(false),
                Err(error) => return Err(error),
            };
            let Some(last) = entries.last() else { return Ok(false) };
            next = last.index.next();
            let touches = |entry: &CommittedEntry| touches(&entry.payload, &found.range);
            if entries.iter().filter(|entry| entry.is_command).any(touches) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn other(&self, round: usize) -> Option<PeerName> {
        let others = self.region.peers.iter().filter(|peer| peer.id != self.name.id);
        let others: Vec<PeerName> = others.copied().collect();
        others.get(turn(round, others.len())).copied()
    }

    /// Hands the engine what another replica found.
    pub(super) fn take_found(&self, ctx: &mut Context<E>, pairs: Vec<(Bytes, Bytes)>) {
        for (key, value) in pairs.into_iter().filter(|(key, _)| self.owns(key)) {
            ctx.engine.repair_value(&key, value);
        }
    }
}

/// What every replica of a region holds: its pairs, its descriptor and its last change.
fn ranges_of(region: &Region) -> Vec<KeyRange> {
    let change = keyspace::admin_key(region.id);
    let end = [&change[..], &[0]].concat();
    let mut ranges = snapshot_ranges(region);
    ranges.push(KeyRange::new(change, end));
    ranges
}

/// What is here of values that another replica lost. The range is the one that it knows: what is here
/// may be another region's, behind a split or a merge, or nobody's.
pub(crate) fn find_values<E: StorageEngine>(
    engine: &E,
    message: &PeerMessage,
    lost: &[LostValue],
) -> Vec<(Bytes, Bytes)> {
    let (id, kind, range) = (message.region, message.kind, message.range.clone());
    let ranges = ranges_of(&Region { id, kind, range, ..Region::default() });
    let (mut found, mut bytes) = (Vec::new(), 0);
    let Ok(view) = engine.view() else { return found };
    let is_asked = |lost: &&LostValue| ranges.iter().any(|range| range.contains(&lost.key));
    for lost in lost.iter().take(LOOKS_MAX).filter(is_asked) {
        // What can't be read here either is noted by the engine, and asked for in turn.
        let Ok(Some(pair)) = view.get(&lost.key) else { continue };
        // Rule: only the very value. What is here may be ahead, or behind.
        if !lost.is(&pair.value) && !mutant::active("raftstore.finds_another_version") {
            continue;
        }
        bytes += pair.value.len();
        found.push((pair.key, pair.value));
        if bytes >= FOUND_BYTES_MAX {
            break;
        }
    }
    found
}

/// Which of the others is asked in a round. Rule: not one after the other, for what is asked for goes
/// round as well, and the same part of it would come to the same replica each time.
fn turn(round: usize, others: usize) -> usize {
    if mutant::active("raftstore.asks_in_step") {
        return round.checked_rem(others).unwrap_or_default();
    }
    Prng::new(round as u64).below(others.max(1) as u64) as usize
}

/// Whether a command changes something of a range.
fn touches(payload: &Bytes, range: &KeyRange) -> bool {
    let mut found = false;
    Command::each_op_of(payload, |op| {
        found |= match op {
            Op::Put { key, .. } | Op::Delete { key } => range.contains(key),
            Op::DeleteRange { start, end } => {
                KeyRange::new(start.to_vec(), end.to_vec()).overlaps(range)
            }
        };
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_part_of_what_is_lost_is_asked_of_each_replica() {
        for (parts, others) in (1..=16).flat_map(|parts| (1..=6).map(move |it| (parts, it))) {
            let asked: BTreeSet<(usize, usize)> =
                (0..64 * parts).map(|round| (round % parts, turn(round, others))).collect();
            assert_eq!(asked.len(), parts * others, "{parts} parts, {others} others");
        }
    }
}
