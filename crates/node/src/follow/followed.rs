//! Regions that the streams of one node follow, each with the entry that the slowest of them needs next.

use std::collections::{BTreeMap, VecDeque};
use stele_types::{LogIndex, RegionId};

/// Time for which the entries of a stream that ended stay needed: its reader may come back, also at another
/// node. Five minutes.
pub const KEPT_NANOS: u64 = 300_000_000_000;

/// Streams of one region that ended and are remembered. A reader that comes back again and again leaves
/// many of them, all but one of which it no longer needs.
const ENDED_MAX: usize = 16;

/// Number of a stream of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(u64);

/// Regions that the streams of a node follow.
#[derive(Debug, Default)]
pub struct FollowedRegions {
    regions: BTreeMap<RegionId, Streams>,
    last: u64,
}

#[derive(Debug, Default)]
struct Streams {
    open: BTreeMap<StreamId, LogIndex>,
    /// Next entries of streams that ended, and the monotonic nanoseconds until which these are needed.
    ended: VecDeque<(LogIndex, u64)>,
}

impl FollowedRegions {
    /// Counts a stream that needs the region's entries from `next` on.
    pub fn begin(&mut self, region: RegionId, next: LogIndex) -> StreamId {
        self.last += 1;
        let id = StreamId(self.last);
        self.regions.entry(region).or_default().open.insert(id, next);
        id
    }

    /// Notes the entry that a stream needs next.
    pub fn advance(&mut self, region: RegionId, id: StreamId, next: LogIndex) {
        let streams = self.regions.get_mut(&region);
        if let Some(of) = streams.and_then(|streams| streams.open.get_mut(&id)) {
            *of = next;
        }
    }

    /// Notes that a stream ended. What it needs stays needed for [`KEPT_NANOS`].
    pub fn end(&mut self, region: RegionId, id: StreamId, now_nanos: u64) {
        let Some(streams) = self.regions.get_mut(&region) else { return };
        if let Some(next) = streams.open.remove(&id) {
            // bug node.ended_streams_forgotten: skip
            self.keep(region, next, now_nanos);
        }
    }

    /// Notes that a reader will need the entries of a region from `next` on, for [`KEPT_NANOS`]: of a region
    /// that another one was split into.
    pub fn keep(&mut self, region: RegionId, next: LogIndex, now_nanos: u64) {
        let ended = &mut self.regions.entry(region).or_default().ended;
        if ended.len() >= ENDED_MAX {
            ended.pop_front();
        }
        ended.push_back((next, now_nanos.saturating_add(KEPT_NANOS)));
    }

    /// Returns the first entry of each region that a stream needs, and forgets streams that ended long ago.
    ///
    /// Invariant: a region's entries are needed from the one on that the slowest of its streams sends next.
    /// Test: `a_region_needs_what_its_slowest_stream_needs`.
    pub fn needed(&mut self, now_nanos: u64) -> BTreeMap<RegionId, LogIndex> {
        self.regions.retain(|_, streams| {
            streams.ended.retain(|(_, until)| now_nanos < *until);
            !streams.open.is_empty() || !streams.ended.is_empty()
        });
        let first = |streams: &Streams| {
            let ended = streams.ended.iter().map(|(next, _)| next);
            streams.open.values().chain(ended).min().copied()
        };
        let of = |(region, streams): (&RegionId, &Streams)| Some((*region, first(streams)?));
        self.regions.iter().filter_map(of).collect()
    }

    /// Returns the number of open streams.
    pub fn open(&self) -> usize {
        self.regions.values().map(|streams| streams.open.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: RegionId = RegionId(7);

    fn needed(regions: &mut FollowedRegions, now_nanos: u64) -> Option<u64> {
        regions.needed(now_nanos).get(&REGION).map(|next| next.0)
    }

    #[test]
    fn a_region_needs_what_its_slowest_stream_needs() {
        let mut regions = FollowedRegions::default();
        assert_eq!(needed(&mut regions, 0), None);
        let slow = regions.begin(REGION, LogIndex(10));
        let fast = regions.begin(REGION, LogIndex(30));
        regions.begin(RegionId(8), LogIndex(2));
        assert_eq!((needed(&mut regions, 0), regions.open()), (Some(10), 3));
        regions.advance(REGION, slow, LogIndex(40));
        assert_eq!(needed(&mut regions, 0), Some(30));
        regions.end(REGION, fast, 5);
        assert_eq!((needed(&mut regions, 5), regions.open()), (Some(30), 2));
        assert_eq!(needed(&mut regions, KEPT_NANOS + 4), Some(30), "its reader may come back");
        assert_eq!(needed(&mut regions, KEPT_NANOS + 5), Some(40));
        regions.end(REGION, slow, KEPT_NANOS + 5);
        assert_eq!(needed(&mut regions, 2 * KEPT_NANOS + 5), None);
        assert_eq!(regions.open(), 1);
    }

    #[test]
    fn a_reader_that_comes_back_again_and_again_leaves_a_bounded_number_of_streams() {
        let mut regions = FollowedRegions::default();
        for next in 1..1000 {
            let stream = regions.begin(REGION, LogIndex(next));
            regions.end(REGION, stream, next);
        }
        assert_eq!(regions.regions[&REGION].ended.len(), ENDED_MAX);
        assert_eq!(needed(&mut regions, 1000), Some(1000 - ENDED_MAX as u64));
    }
}
