//! Repair of values that one replica cannot read and another one can.

use super::Replica;
use super::snapshot::snapshot_ranges;
use crate::context::Context;
use crate::messages::{Body, PeerMessage, RangeRepairReply};
use crate::wire::VALUES_MAX;
use bytes::Bytes;
use stele_storage::{EngineView, LostValue, ScanOptions, StorageEngine};
use stele_types::{
    Command, CommittedEntry, Error, KeyRange, Op, Peer, Prng, Region, Result, key_after, keyspace,
};

/// Most bytes of values in one reply; one value always fits.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Most values read for one request, found or not.
const READS_MAX: usize = 256;

impl<E: StorageEngine> Replica<E> {
    pub(crate) fn is_owner_of(&self, key: &Bytes) -> bool {
        self.owned_ranges().iter().any(|range| range.contains(key))
    }

    /// Returns the ranges of engine keys that every replica of the region holds.
    pub(crate) fn owned_ranges(&self) -> Vec<KeyRange> {
        ranges_of(&self.region)
    }

    pub(crate) fn ask(&self, ctx: &mut Context<E>, round: usize, question: Body) {
        if let Some(to) = self.other_replica(round) {
            self.send(ctx, to, question);
        }
    }

    pub(super) fn answer_range_repair(&self, ctx: &mut Context<E>, to: Peer, range: &KeyRange) {
        if !self.owned_ranges().iter().any(|own| range.without(own).is_empty()) {
            return;
        }
        let Ok(view) = ctx.engine.view() else { return };
        let mut options = ScanOptions::new(range.clone(), VALUES_MAX);
        options.bytes_max = REPLY_BYTES_MAX;
        // The engine records damage found here, and this store requests copies in turn.
        let Ok(pairs) = view.scan(&options) else { return };
        let mut range = range.clone();
        if let Some(last) = pairs.last() {
            let rest = KeyRange { start: key_after(&last.key), end: range.end.clone() };
            let mut options = ScanOptions::new(rest.clone(), 1);
            options.keys_only = true;
            let Ok(more) = view.scan(&options) else { return };
            if !more.is_empty() {
                range.end = rest.start;
            }
        }
        // The view holds exactly what is applied now.
        let found = RangeRepairReply { range, at: self.applied(), pairs };
        self.send(ctx, to, Body::RangeRepairReply(found));
    }

    /// Applies range repairs from other replicas. Invariant: a repair is applied only if the range
    /// holds the same here: everything up to the repair's entry is applied, and no entry applied
    /// after it changes the range.
    pub(super) fn apply_range_repairs(&mut self, ctx: &mut Context<E>) -> Result<()> {
        let ready = self.repairs.take_applied(self.applied());
        ready.into_iter().try_for_each(|found| self.apply_range_repair(ctx, found))
    }

    fn apply_range_repair(&self, ctx: &mut Context<E>, found: RangeRepairReply) -> Result<()> {
        let is_owned = |own: &KeyRange| found.range.without(own).is_empty();
        let is_lost = ctx.engine.lost_ranges().iter().any(|lost| lost.overlaps(&found.range));
        if !is_lost
            || !self.owned_ranges().iter().any(is_owned)
            || !self.is_untouched_since(ctx, &found)?
        {
            return Ok(());
        }
        match ctx.engine.repair_range(&found.range, found.pairs) {
            // The range is requested again.
            Err(Error::NoSpace(_) | Error::Busy(_)) => Ok(()),
            Err(error) if error.is_damage() => Ok(()),
            done => done,
        }
    }

    /// Returns whether no entry applied here after the repair's entry changes the range. Returns
    /// `false` also if these entries are no longer in the log.
    fn is_untouched_since(&self, ctx: &Context<E>, found: &RangeRepairReply) -> Result<bool> {
        // bug replica.cover_with_the_past: return Ok(true);
        let mut next = found.at.next();
        if next.0 <= self.log().truncated().0 {
            return Ok(found.at == self.applied());
        }
        while next <= self.applied() {
            let to = self.applied().next();
            let entries = match ctx.engine.entries(self.region.id, next, to, REPLY_BYTES_MAX) {
                Ok(entries) => entries,
                Err(error) if error.is_damage() => return Ok(false),
                Err(error) => return Err(error),
            };
            let Some(last) = entries.last() else { return Ok(false) };
            next = last.index.next();
            let touches = |entry: &CommittedEntry| has_op_in(&entry.payload, &found.range);
            if entries.iter().filter(|entry| entry.is_command).any(touches) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn other_replica(&self, round: usize) -> Option<Peer> {
        let others: Vec<Peer> = self.others().copied().collect();
        others.get(replica_of_round(round, others.len())).copied()
    }

    pub(super) fn apply_value_repairs(&self, ctx: &mut Context<E>, pairs: Vec<(Bytes, Bytes)>) {
        for (key, value) in pairs.into_iter().filter(|(key, _)| self.is_owner_of(key)) {
            ctx.engine.repair_value(&key, value);
        }
    }
}

/// Returns the ranges that every replica of a region holds: its pairs, its descriptor and its last
/// change.
fn ranges_of(region: &Region) -> Vec<KeyRange> {
    let mut ranges = snapshot_ranges(region);
    ranges.push(KeyRange::of_key(keyspace::admin_key(region.id)));
    ranges
}

/// Returns the values that another replica lost and this store can read. The range is the sender's:
/// the keys may belong to another region here after a split or a merge, or to none.
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
    for lost in lost.iter().take(READS_MAX).filter(is_asked) {
        // The engine records damage found here, and this store requests copies in turn.
        let Ok(Some(pair)) = view.get(&lost.key) else { continue };
        // Invariant: only the requested value is sent; the local one may be newer or older.
        // bug replica.finds_another_version: never
        if !lost.is_copy(&pair.value) {
            continue;
        }
        bytes += pair.value.len();
        found.push((pair.key, pair.value));
        if bytes >= REPLY_BYTES_MAX {
            break;
        }
    }
    found
}

/// Returns the position of the replica to which a round's request is sent. Invariant: not round
/// robin. The requested parts cycle as well, so the same part would reach the same replica each
/// time.
fn replica_of_round(round: usize, others: usize) -> usize {
    // bug replica.asks_in_step: return round.checked_rem(others).unwrap_or_default();
    Prng::new(round as u64).below(others.max(1) as u64) as usize
}

fn has_op_in(payload: &Bytes, range: &KeyRange) -> bool {
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
            let asked: BTreeSet<(usize, usize)> = (0..64 * parts)
                .map(|round| (round % parts, replica_of_round(round, others)))
                .collect();
            assert_eq!(asked.len(), parts * others, "{parts} parts, {others} others");
        }
    }
}
