//! Splits of regions that are too large or too busy. Each leader measures and decides for its
//! regions; no other component does. Sizes are estimates from the index; no value is read.

use super::steps::Obstacle;
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;
use stele_replica::{NewRegion, RegionReport, Role};
use stele_storage::{RangeSize, StorageEngine};
use stele_types::redis_key::{self, NamedGroup};
use stele_types::{
    ColumnFamily, KeyRange, LogIndex, PeerId, Region, RegionId, RegionKind, RegionPhase, Result,
    keyspace,
};

/// Divisor of the split size that gives the smallest part: a smaller part would be a region for
/// almost nothing, and the other part would still be too large.
const PART_DIVISOR: u64 = 4;
/// Factor by which the parts together may differ from the whole; beyond it the estimates are wrong.
const ESTIMATE_FACTOR_MAX: u64 = 2;
/// Pause after a refused split; doubles each time.
const PAUSE: Duration = Duration::from_secs(20);
const PAUSE_MAX: Duration = Duration::from_secs(1280);

/// Time after which an unchanged region is measured again; doubles each time. Merges still discover what
/// its last writes replaced.
const UNCHANGED: Duration = Duration::from_secs(20);
const UNCHANGED_MAX: Duration = Duration::from_secs(1280);

/// Reports in a row above the limit after which a region is busy.
const BUSY_REPORTS: u32 = 3;

/// Size of a region when it was last measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Version of the measured range.
    pub version: u64,
    /// Estimated size.
    pub size: RangeSize,
}

/// Sizes of regions led on a node.
pub type Sizes = HashMap<RegionId, Measured>;

/// Reason for a split, and what its key halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitBy {
    /// Halves of the bytes.
    Size,
    /// Halves of the requests.
    Load,
}

#[derive(Clone, Copy, Debug)]
struct Checked {
    version: u64,
    applied: LogIndex,
    at: Duration,
    counts_for: Duration,
}

/// Limits of regions before they are split.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest size in bytes.
    pub bytes_max: u64,
    /// Most operations a second; 0 disables splits by load.
    pub ops_max: u64,
}

/// Sizes of regions led on a node, refused splits, and regions above the limit of operations. Times
/// are relative to one arbitrary moment.
#[derive(Debug, Default)]
pub struct Splitter {
    sizes: Sizes,
    checked: HashMap<RegionId, Checked>,
    refusals: Refusals,
    /// Reports in a row in which a region was above the limit.
    busy: HashMap<RegionId, u32>,
    /// Operations of a region's peer until the report before.
    counted: HashMap<RegionId, (PeerId, u64)>,
    changed: BTreeSet<RegionId>,
}

impl Splitter {
    /// Returns the sizes of the last measurement.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Returns the regions of which the size changed since the last call.
    pub fn take_changed(&mut self) -> BTreeSet<RegionId> {
        std::mem::take(&mut self.changed)
    }

    /// Counts the regions above the limit of operations in a report over `interval_s`. `regions`: all
    /// that may have changed since the report before.
    pub fn count_busy<'a>(
        &mut self,
        regions: impl Iterator<Item = &'a RegionReport>,
        interval_s: f64,
        limits: Limits,
    ) {
        if limits.ops_max == 0 {
            return;
        }
        // One that is not listed served nothing.
        let before = std::mem::take(&mut self.busy);
        for report in regions.filter(|report| report.role == Role::Leader) {
            let total = report.traffic.write_ops + report.traffic.read_ops;
            let counted = self.counted.insert(report.region.id, (report.peer.id, total));
            // Totals of a peer that was not seen before are of an unknown time.
            let counted = counted.filter(|(peer, _)| *peer == report.peer.id);
            let ops = counted.map_or(0, |(_, counted)| total.saturating_sub(counted));
            if ops as f64 / interval_s > limits.ops_max as f64 {
                let reports = before.get(&report.region.id).copied().unwrap_or_default();
                self.busy.insert(report.region.id, reports + 1);
            }
        }
    }

    /// Returns the size of a region as last measured, if it need not be measured now. `applied` is its
    /// last applied entry: a measurement sees no later one, which reads may see before.
    ///
    /// Invariant: a region that has changed is measured, and one that has not ever more rarely. A store
    /// with ten thousand idle regions would otherwise read blocks all the time.
    pub fn size_without_measuring(
        &self,
        region: &Region,
        applied: LogIndex,
        now: Duration,
    ) -> Option<RangeSize> {
        let checked = self.checked.get(&region.id)?;
        let is_same = checked.version == region.epoch.version && checked.applied == applied;
        let counts = is_same && now.saturating_sub(checked.at) < checked.counts_for;
        // bug node.idle_regions_measured: return None;
        self.sizes.get(&region.id).filter(|_| counts).map(|known| known.size)
    }

    /// Records that a region is measured now. `applied` was read before.
    pub fn note_measuring(&mut self, region: &Region, applied: LogIndex, now: Duration) {
        let version = region.epoch.version;
        let before = self.checked.get(&region.id);
        let before = before.filter(|it| it.version == version && it.applied == applied);
        let counts_for = before.map_or(UNCHANGED, |it| (2 * it.counts_for).min(UNCHANGED_MAX));
        self.checked.insert(region.id, Checked { version, applied, at: now, counts_for });
    }

    /// Records the size of a region led here. Returns how it must be split now, if it must.
    pub fn measured(
        &mut self,
        region: &Region,
        size: RangeSize,
        limits: Limits,
        now: Duration,
    ) -> Option<SplitBy> {
        let version = region.epoch.version;
        let now_measured = Measured { version, size };
        if self.sizes.insert(region.id, now_measured) != Some(now_measured) {
            self.changed.insert(region.id);
        }
        let is_busy = self.busy.get(&region.id).is_some_and(|reports| *reports >= BUSY_REPORTS);
        if is_busy {
            self.busy.remove(&region.id);
        }
        let split_by = match is_too_large(&size, limits.bytes_max) {
            true => SplitBy::Size,
            false if is_busy && size.keys >= 2 => SplitBy::Load,
            false => return None,
        };
        let may_split = region.kind == RegionKind::Data
            && self.refusals.may_split(region.id, version, size.bytes, now);
        may_split.then_some(split_by)
    }

    /// Records that a region of this version was not split: the next attempt follows after a pause.
    pub fn refused(&mut self, id: RegionId, version: u64, now: Duration) {
        let bytes = self.sizes.get(&id).map_or(0, |measured| measured.size.bytes);
        self.refusals.record(id, version, bytes, now);
    }

    /// Ends a measurement: drops the regions that are no longer led here.
    pub fn retain(&mut self, is_led: impl Fn(RegionId) -> bool) {
        let gone = self.sizes.extract_if(|id, _| !is_led(*id));
        self.changed.extend(gone.map(|(id, _)| id));
        self.checked.retain(|id, _| is_led(*id));
        self.refusals.of.retain(|id, _| is_led(*id));
        self.busy.retain(|id, _| is_led(*id));
        self.counted.retain(|id, _| is_led(*id));
    }
}

/// Returns the total size of `ranges`.
pub fn size_of(engine: &impl StorageEngine, ranges: &[KeyRange]) -> Result<RangeSize> {
    let mut total = RangeSize::default();
    for range in ranges {
        let size = engine.range_size(range)?;
        total.bytes += size.bytes;
        total.keys += size.keys;
    }
    Ok(total)
}

/// Returns a user key that halves the largest family of a region; the border of the Redis key or tag in which
/// it lies, if it lies in one.
pub fn middle_key(engine: &impl StorageEngine, region: &Region) -> Result<Bytes, Obstacle> {
    let mut ranges = region.engine_ranges();
    ranges.sort_by_key(|range| engine.range_size(range).map_or(0, |size| size.bytes));
    let middle = ranges.last().map(|largest| engine.split_key(largest)).transpose();
    let middle = middle.map_err(|error| Obstacle::now(error.to_string()))?.flatten();
    border_inside(region, middle.and_then(|key| keyspace::user_key(&key)))
}

/// Returns the border of the Redis key or tag in which a key lies, or the key itself, if that divides the region.
fn border_inside(region: &Region, key: Option<Bytes>) -> Result<Bytes, Obstacle> {
    let border = key.as_ref().map(redis_key::border);
    // bug node.split_inside_a_redis_key: let border = key.clone();
    if let Some(border) = border.clone().filter(|border| *border > region.range.start) {
        return Ok(border);
    }
    let (id, is_parted) = (region.id, border != key);
    let reason = match is_parted {
        true => {
            format!(
                "most of region {id} are the pairs of one Redis key or tag, which stay together"
            )
        }
        false => format!("region {id} holds fewer than two keys: nothing to split"),
    };
    Err(Obstacle { reason, is_final: !is_parted })
}

/// Redis key or tag of a region of which the pairs alone are larger than a region may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OversizedGroup {
    /// The key or tag.
    pub group: NamedGroup,
    /// Estimated size of its pairs.
    pub bytes: u64,
}

/// Returns the Redis key or tag of which the pairs in a region alone exceed `bytes_max`: no split makes the
/// region that has them smaller. `None` while the region also has so many others that it is split between them.
pub fn oversized_group(
    engine: &impl StorageEngine,
    region: &Region,
    bytes_max: u64,
) -> Result<Option<OversizedGroup>> {
    if region.kind != RegionKind::Data {
        return Ok(None);
    }
    let range = ColumnFamily::Redis.engine_range(&region.range);
    if engine.range_size(&range)?.bytes <= bytes_max {
        return Ok(None);
    }
    let middle = engine.split_key(&range)?.and_then(|key| keyspace::user_key(&key));
    let Some(border) = middle.as_ref().and_then(|key| redis_key::group(key)) else {
        return Ok(None);
    };
    let pairs = ColumnFamily::Redis.engine_range(&KeyRange::prefix(border));
    let bytes = engine.range_size(&pairs)?.bytes;
    let group = redis_key::named_group(border).filter(|_| bytes > bytes_max);
    Ok(group.map(|group| OversizedGroup { group, bytes }))
}

/// Returns a key that leaves both sides enough to be a region.
pub fn balanced_key(
    engine: &impl StorageEngine,
    region: &Region,
    size: &RangeSize,
    limits: Limits,
) -> Result<Bytes, Obstacle> {
    let key = middle_key(engine, region)?;
    let part = |start: &Bytes, end: &Bytes| {
        let range = KeyRange { start: start.clone(), end: end.clone() };
        size_of(engine, &Region { range, ..region.clone() }.engine_ranges())
    };
    let range = &region.range;
    let (Ok(left), Ok(right)) = (part(&range.start, &key), part(&key, &range.end)) else {
        return Err(Obstacle::now("its parts cannot be measured"));
    };
    check_parts(size, [&left, &right], limits.bytes_max).map_err(Obstacle::now)?;
    Ok(key)
}

/// Returns how many ids a split of a region at so many keys needs. Fails while the region changes
/// otherwise.
pub fn ids_wanted(region: &Region, keys: usize) -> Result<u64, Obstacle> {
    match region.phase == RegionPhase::Normal && !region.is_joint() {
        true => Ok((1 + region.peers.len() as u64) * keys as u64),
        false => Err(Obstacle::now("another change of the region is in progress")),
    }
}

pub(super) fn new_regions(first: u64, peers: usize, keys: usize) -> Vec<NewRegion> {
    let each = 1 + peers as u64;
    let region = |nth: u64| {
        let base = first + nth * each;
        let peers = (1..each).map(|peer| PeerId(base + peer)).collect();
        NewRegion { region: RegionId(base), peers }
    };
    (0..keys as u64).map(region).collect()
}

/// Returns whether a region of that size must be split. A single key cannot be split.
fn is_too_large(size: &RangeSize, bytes_max: u64) -> bool {
    size.keys >= 2 && size.bytes > bytes_max
}

fn check_parts(
    whole: &RangeSize,
    [left, right]: [&RangeSize; 2],
    bytes_max: u64,
) -> Result<(), String> {
    let parts = format!("{} bytes and {} bytes", left.bytes, right.bytes);
    let sum = left.bytes.saturating_add(right.bytes);
    let is_off = |a: u64, b: u64| a > b.saturating_mul(ESTIMATE_FACTOR_MAX);
    if is_off(sum, whole.bytes) || is_off(whole.bytes, sum) {
        return Err(format!("{parts} do not add up to {} bytes", whole.bytes));
    }
    if left.bytes.min(right.bytes) < bytes_max / PART_DIVISOR {
        return Err(format!("no key halves the region: the parts would hold {parts}"));
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    version: u64,
    bytes: u64,
    until: Duration,
    times: u32,
}

/// Refused splits. Times are relative to one arbitrary moment.
#[derive(Debug, Default)]
struct Refusals {
    of: HashMap<RegionId, Refused>,
}

impl Refusals {
    /// Returns whether a region with this range (`version`) and size may be split now. Another
    /// range, or twice the bytes, allows it at once.
    fn may_split(&self, id: RegionId, version: u64, bytes: u64, now: Duration) -> bool {
        self.of.get(&id).is_none_or(|refused| {
            refused.version != version || bytes / 2 >= refused.bytes.max(1) || now >= refused.until
        })
    }

    fn record(&mut self, id: RegionId, version: u64, bytes: u64, now: Duration) {
        let before = self.of.get(&id).filter(|refused| refused.version == version);
        let times = before.map_or(0, |refused| refused.times + 1);
        let pause = PAUSE.saturating_mul(1 << times.min(16)).min(PAUSE_MAX);
        self.of.insert(id, Refused { version, bytes, until: now + pause, times });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(bytes: u64, keys: u64) -> RangeSize {
        RangeSize { bytes, keys }
    }

    #[test]
    fn a_region_of_one_key_is_never_too_large() {
        assert!(!is_too_large(&size(1 << 40, 1), 1 << 20));
        assert!(is_too_large(&size((1 << 20) + 1, 2), 1 << 20));
        assert!(!is_too_large(&size(1 << 20, 2), 1 << 20));
    }

    #[test]
    fn both_parts_must_be_worth_a_region_and_add_up() {
        let check = |whole, left, right| {
            check_parts(&size(whole, 9), [&size(left, 4), &size(right, 5)], 1000)
        };
        assert!(check(1001, 400, 601).is_ok());
        assert!(check(1001, 250, 751).is_ok());
        assert!(check(1001, 249, 752).unwrap_err().contains("no key halves"));
        assert!(check(1001, 900, 0).is_err());
        assert!(check(8000, 1000, 1000).unwrap_err().contains("do not add up"));
        assert!(check(1001, 4000, 4000).is_err());
    }

    #[test]
    fn a_split_that_came_to_nothing_waits_longer_each_time() {
        let (id, seconds) = (RegionId(2), Duration::from_secs);
        let mut refusals = Refusals::default();
        let mut tried = Vec::new();
        for now in 0..400 {
            if refusals.may_split(id, 7, 1000, seconds(now)) {
                tried.push(now);
                refusals.record(id, 7, 1000, seconds(now));
            }
        }
        assert_eq!(tried, [0, 20, 60, 140, 300]);
        assert!(!refusals.may_split(id, 7, 1999, seconds(400)));
        assert!(refusals.may_split(id, 8, 1000, seconds(400)), "the range changed");
        assert!(refusals.may_split(id, 7, 2000, seconds(400)), "it has grown");
        refusals.of.clear();
        assert!(refusals.may_split(id, 7, 1000, seconds(400)));
    }

    #[test]
    fn an_unchanged_region_is_measured_ever_more_rarely_and_a_changed_one_at_once() {
        let limits = Limits { bytes_max: 1000, ops_max: 0 };
        let (seconds, mut splitter) = (Duration::from_secs, Splitter::default());
        let region = Region { id: RegionId(2), ..Region::default() };
        let mut check = |region: &Region, applied, now| {
            let (applied, now) = (LogIndex(applied), seconds(now));
            if let Some(known) = splitter.size_without_measuring(region, applied, now) {
                assert_eq!(known, size(900, 2));
                return false;
            }
            splitter.note_measuring(region, applied, now);
            splitter.measured(region, size(900, 2), limits, now);
            true
        };
        let measured: Vec<u64> =
            (0..500).map(|i| i * 10).filter(|&i| check(&region, 7, i)).collect();
        assert_eq!(measured, [0, 20, 60, 140, 300, 620, 1260, 2540, 3820]);
        assert!(check(&region, 8, 5_000), "a write");
        assert!(!check(&region, 8, 5_010));
        let mut split = region.clone();
        split.epoch.version += 1;
        assert!(check(&split, 8, 5_020), "a split");
        assert!(check(&split, 8, 5_040), "what follows a change is measured soon");
    }

    #[test]
    fn a_region_is_split_at_the_border_of_a_redis_key_and_never_inside() {
        let header = |name: &[u8]| redis_key::header_key(0, name);
        let member = redis_key::member_key(&header(b"b"), 7, b"field").slice(1..);
        let border = redis_key::border(&member);
        let from = |start: &Bytes| {
            let range = KeyRange { start: start.clone(), end: Bytes::new() };
            Region { range, ..Region::default() }
        };
        let before = header(b"a").slice(1..);
        assert_eq!(border_inside(&from(&before), Some(member.clone())), Ok(border.clone()));
        let refused = border_inside(&from(&border), Some(member)).unwrap_err();
        assert!(!refused.is_final && refused.reason.contains("stay together"), "{refused:?}");
        let key = Bytes::from_static(&[0xe0]);
        assert_eq!(border_inside(&from(&border), Some(key.clone())), Ok(key.clone()));
        assert!(border_inside(&from(&key), Some(key)).unwrap_err().is_final);
        assert!(border_inside(&from(&border), None).unwrap_err().is_final);
    }

    #[test]
    fn a_region_is_split_by_size_then_by_load_and_not_while_a_refusal_counts() {
        let limits = Limits { bytes_max: 1000, ops_max: 10 };
        let (now, mut splitter) = (Duration::from_secs(1), Splitter::default());
        let region = Region { id: RegionId(2), ..Region::default() };
        let split = |splitter: &mut Splitter, bytes| {
            splitter.measured(&region, size(bytes, 2), limits, now)
        };
        assert_eq!(split(&mut splitter, 1001), Some(SplitBy::Size));
        splitter.refused(region.id, 0, now);
        assert_eq!(split(&mut splitter, 1002), None);
        assert_eq!(split(&mut splitter, 2002), Some(SplitBy::Size), "it has grown");
        assert_eq!(split(&mut splitter, 900), None);
        splitter.busy.insert(region.id, BUSY_REPORTS - 1);
        assert_eq!(split(&mut splitter, 900), None, "not for long");
        splitter.busy.insert(region.id, BUSY_REPORTS);
        splitter.retain(|_| true);
        assert_eq!(split(&mut splitter, 901), None, "the refusal still counts");
        splitter.refusals.of.clear();
        splitter.busy.insert(region.id, BUSY_REPORTS);
        assert_eq!(split(&mut splitter, 901), Some(SplitBy::Load));
        let system = Region { kind: RegionKind::System, ..region.clone() };
        assert_eq!(splitter.measured(&system, size(9000, 9), limits, now), None);
        splitter.retain(|_| false);
        assert!(splitter.sizes().is_empty());
    }

    #[test]
    fn a_region_is_busy_by_the_operations_since_the_report_before() {
        let mut splitter = Splitter::default();
        let limits = Limits { bytes_max: 1000, ops_max: 10 };
        let mut report = crate::report::tests::led(5);
        let mut is_busy = |splitter: &mut Splitter, peer: u64, total: u64| {
            report.1.peer.id = PeerId(peer);
            (report.1.traffic.write_ops, report.1.traffic.read_ops) =
                (total / 2, total - total / 2);
            splitter.count_busy([&report.1].into_iter(), 2.0, limits);
            splitter.busy.contains_key(&RegionId(5))
        };
        assert!(!is_busy(&mut splitter, 1, 1000), "operations of an unknown time");
        assert!(!is_busy(&mut splitter, 1, 1020), "ten a second");
        assert!(is_busy(&mut splitter, 1, 1041));
        assert!(!is_busy(&mut splitter, 1, 1041), "an idle one");
        assert!(!is_busy(&mut splitter, 2, 5000), "another peer counts by itself");
        assert!(is_busy(&mut splitter, 2, 5100));
        splitter.retain(|_| false);
        assert!(splitter.counted.is_empty());
    }

    /// Splits as the sizes say, until no region is split.
    fn regions_of(values: &[u64], bytes_max: u64) -> Vec<Vec<u64>> {
        let sum = |values: &[u64]| size(values.iter().sum(), values.len() as u64);
        let mut open = vec![values.to_vec()];
        let mut done = Vec::new();
        while let Some(region) = open.pop() {
            let whole = sum(&region);
            let mut before = 0;
            let middle = region.iter().position(|value| {
                before += value;
                before * 2 >= whole.bytes
            });
            let (left, right) = region.split_at(middle.unwrap_or(0).max(1).min(region.len()));
            let parts = [&sum(left), &sum(right)];
            match is_too_large(&whole, bytes_max) && check_parts(&whole, parts, bytes_max).is_ok() {
                true => open.extend([left.to_vec(), right.to_vec()]),
                false => done.push(region),
            }
        }
        done
    }

    #[test]
    fn few_large_values_are_split_to_the_size_and_no_further() {
        let regions = regions_of(&[64 << 20; 40], 1 << 30);
        assert_eq!(regions.len(), 4, "2.5 GiB at 1 GiB");
        assert_eq!(regions_of(&[64 << 20; 3], 1 << 20).len(), 3, "one value each");
        assert_eq!(
            regions_of(&[64 << 20, 10], 1 << 20).len(),
            1,
            "10 bytes do not justify a region"
        );
        for region in regions_of(&[1000; 1000], 100_000) {
            assert!((25..=100).contains(&region.len()), "{}", region.len());
        }
    }
}
