//! Traffic of a region, decayed: what happened a minute ago counts half.
//!
//! All numbers are integers, so that two leaders with the same reports decide alike.

use crate::Millis;
use crate::region_info::Traffic;
use stele_types::{Peer, PeerId};

/// Traffic of a region in each second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rates {
    /// Bytes of keys and values written.
    pub written_bytes: u64,
    /// Bytes of keys and values read.
    pub read_bytes: u64,
    /// Writing operations.
    pub writes: u64,
    /// Reading operations.
    pub reads: u64,
}

impl Rates {
    /// Returns all operations.
    pub fn ops(self) -> u64 {
        self.writes.saturating_add(self.reads)
    }

    /// Returns all bytes.
    pub fn bytes(self) -> u64 {
        self.written_bytes.saturating_add(self.read_bytes)
    }
}

/// Decayed traffic of a region, and the totals from which the next report is counted.
///
/// After a split the new region starts cold, and its own traffic shows within ten seconds. The old
/// one keeps the heat of both, of which half is gone after a minute. After a region merge the target
/// keeps its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heat {
    /// Decayed sums at `at`, in units of 2^-`FRACTION_BITS`.
    sums: Sums,
    at: Millis,
    /// Time of the first report; `None` before it.
    since: Option<Millis>,
    /// Last totals of the replicas that have reported. At most one for each member.
    counters: Vec<Counter>,
}

/// The counts of [`Traffic`]: bytes written and read, writes and reads.
type Sums = [u64; 4];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counter {
    peer: PeerId,
    counted_since: u64,
    totals: Sums,
}

const HALF_LIFE_MILLIS: u64 = 60_000;
/// A region that is known for a shorter time counts as known for this: a single second of traffic
/// says little about the next minute.
const KNOWN_MILLIS_MIN: u64 = 10_000;
const FRACTION_BITS: u32 = 16;
/// Limit for the counts of one report: more cannot be true, and the sums do not overflow.
const COUNT_MAX: u64 = 1 << 44;

/// One, in the fixed-point numbers of `KEPT`.
const ONE: u64 = 1 << 62;
/// Part of a count that is left after 0 to 60 seconds: 2^(-seconds / 60).
const KEPT: [u64; 61] = kept_by_second();

const fn kept_by_second() -> [u64; 61] {
    /// 2^(-1/60), rounded.
    const SECOND: u64 = 4_558_716_286_680_897_468;
    let mut out = [ONE; 61];
    let mut second = 1;
    while second < out.len() {
        out[second] = ((out[second - 1] as u128 * SECOND as u128) >> 62) as u64;
        second += 1;
    }
    out
}

/// Returns the part of a count that is left after `millis`, out of `ONE`. Between two seconds it is
/// interpolated.
fn kept(millis: u64) -> u64 {
    // bug placement.heat_never_cools: return ONE;
    let half_lives = millis / HALF_LIFE_MILLIS;
    let rest = millis % HALF_LIFE_MILLIS;
    let second = (rest / 1000) as usize;
    let (Some(high), Some(low)) = (KEPT.get(second), KEPT.get(second + 1)) else { return 0 };
    let kept = high - (high - low) / 1000 * (rest % 1000);
    kept.checked_shr(u32::try_from(half_lives).unwrap_or(u32::MAX)).unwrap_or(0)
}

fn scaled(sum: u64, part: u64) -> u64 {
    ((u128::from(sum) * u128::from(part)) >> 62) as u64
}

impl Heat {
    /// Returns the traffic in each second, as of `now`. A region without reports cools.
    pub fn at(&self, now: Millis) -> Rates {
        let Some(since) = self.since.filter(|_| self.sums != Sums::default()) else {
            return Rates::default();
        };
        let kept_now = kept(now.since(self.at));
        // A constant rate that has lasted `known` sums up to rate × half-life / ln 2 × (1 - kept).
        let known = now.since(since).max(KNOWN_MILLIS_MIN);
        let weight = u128::from(ONE - kept(known).min(ONE - 1));
        let rate = |sum: u64| {
            let sum = u128::from(scaled(sum, kept_now)) * 693_147 / 1_000_000;
            // Divided by the half-life in seconds, by `weight`, and by the unit of the sums.
            let per_second = sum * 1000 / u128::from(HALF_LIFE_MILLIS);
            let shifted = per_second << (62 - FRACTION_BITS);
            u64::try_from(shifted / weight).unwrap_or(u64::MAX)
        };
        let [written_bytes, read_bytes, writes, reads] = self.sums.map(rate);
        Rates { written_bytes, read_bytes, writes, reads }
    }

    /// Counts a report of the replica `leader`. Forgets the totals of replicas outside `members`.
    ///
    /// Invariant: traffic counts once. A report that is lost is contained in the next one, and one
    /// that comes twice adds nothing.
    /// Test: `random_losses_and_repetitions_change_no_sum`.
    pub(crate) fn note(
        &mut self,
        leader: PeerId,
        traffic: &Traffic,
        members: &[Peer],
        now: Millis,
    ) {
        let kept = kept(now.since(self.at));
        self.sums = self.sums.map(|sum| scaled(sum, kept));
        self.at = self.at.max(now);
        self.since.get_or_insert(now);
        self.counters.retain(|counter| members.iter().any(|peer| peer.id == counter.peer));
        let counts = self.counted(leader, traffic);
        for (sum, count) in self.sums.iter_mut().zip(counts) {
            *sum = sum.saturating_add(count.min(COUNT_MAX) << FRACTION_BITS);
        }
    }

    /// Returns what the report adds to the last totals of its replica, and keeps its own.
    fn counted(&mut self, leader: PeerId, traffic: &Traffic) -> Sums {
        let totals = [traffic.written_bytes, traffic.read_bytes, traffic.writes, traffic.reads];
        let counted_since = traffic.counted_since;
        // A node of an earlier version reports the counts since its last report.
        // bug placement.heat_counts_totals: always
        if counted_since == 0 {
            return totals;
        }
        let new = Counter { peer: leader, counted_since, totals };
        let Some(counter) = self.counters.iter_mut().find(|counter| counter.peer == leader) else {
            // What the replica counted before this leader knew it has no time.
            self.counters.push(new);
            return Sums::default();
        };
        let last = std::mem::replace(counter, new);
        let grew = || totals.iter().zip(last.totals).all(|(now, before)| *now >= before);
        // Another process counts from zero, all of it after the last report.
        let base = match last.counted_since == counted_since && grew() {
            true => last.totals,
            false => Sums::default(),
        };
        let mut out = totals;
        out.iter_mut().zip(base).for_each(|(count, base)| *count = count.saturating_sub(base));
        out
    }
}

#[cfg(test)]
mod tests;
