//! Round of a sweeper: one walk over all Redis keys of a store, step by step.

use super::{SweepProgram, sweep};
use crate::key::whole_groups;
use bytes::Bytes;
use stele_storage::{EngineView, ScanOptions};
use stele_types::{ColumnFamily, KeyRange, Region, RegionId, Result};

/// Pairs as which a search for the next region counts.
const SEARCH_PAIRS: usize = 8;

/// Region that a store leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweptRegion {
    region: RegionId,
    version: u64,
    range: KeyRange,
}

impl SweptRegion {
    /// Creates the part of a region that is swept: the names of which the region has all pairs. `None` if
    /// there is none.
    ///
    /// Invariant: no member is swept without a search for its header. The header of a name in two regions, which
    /// older versions may have split there, can be in the other one.
    /// Test: `only_whole_names_of_regions_that_the_store_leads_are_swept`.
    pub fn of(region: &Region) -> Option<Self> {
        let range = whole_groups(&region.range);
        // bug redis.sweeps_parted_names: let range = region.range.clone();
        let range = ColumnFamily::Redis.engine_range(&range);
        (!range.is_empty()).then_some(Self {
            region: region.id,
            version: region.epoch.version,
            range,
        })
    }
}

/// What a step has found in one region.
#[derive(Debug)]
pub struct FoundSweep {
    /// Region.
    pub region: RegionId,
    /// `epoch.version` of the region when the walk began: that of the request.
    pub version: u64,
    /// What to propose.
    pub program: SweepProgram,
}

/// Place of a walk over all Redis keys of a store.
#[derive(Debug)]
pub struct SweepRound {
    /// Engine key at which the next step begins; `None` at the end.
    next: Option<Bytes>,
    /// Regions in the order of their keys; `None` before the first Redis key is found.
    regions: Option<Vec<SweptRegion>>,
}

impl Default for SweepRound {
    fn default() -> Self {
        Self { next: Some(all_keys().start), regions: None }
    }
}

impl SweepRound {
    /// Whether all keys were read.
    pub fn is_over(&self) -> bool {
        self.next.is_none()
    }

    /// Walks on until it has found something, has read about `pairs_max` pairs, or is at the end. `regions`
    /// returns those that the store leads; it is called once in a round, if the store has a Redis key.
    /// `expired_until_s` is that of [`sweep`]. A region of which pairs cannot be read is left out.
    pub fn step(
        &mut self,
        view: &impl EngineView,
        regions: impl FnOnce() -> Vec<SweptRegion>,
        expired_until_s: u64,
        pairs_max: usize,
    ) -> Result<Option<FoundSweep>> {
        let (mut pairs, mut regions) = (0, Some(regions));
        while pairs < pairs_max
            && let Some(start) = self.next.take()
        {
            let Some(key) = first_key(view, start)? else { break };
            if let Some(regions) = regions.take() {
                self.regions.get_or_insert_with(|| ordered(regions()));
            }
            let led = self.regions.as_deref().unwrap_or_default();
            let place = led.partition_point(|it| it.range.end <= key);
            let Some(led) = led.get(place) else { break };
            pairs += SEARCH_PAIRS;
            if key < led.range.start {
                self.next = Some(led.range.start.clone());
                continue;
            }
            let end = led.range.end.clone();
            let range = KeyRange { start: key, end: end.clone() };
            // The engine has noted what cannot be read.
            let Ok(found) = sweep(view, range, expired_until_s, pairs_max) else {
                self.next = Some(end);
                continue;
            };
            pairs += found.pairs;
            self.next = Some(found.next.unwrap_or(end));
            if let Some(program) = found.program {
                let (region, version) = (led.region, led.version);
                return Ok(Some(FoundSweep { region, version, program }));
            }
        }
        Ok(None)
    }
}

fn ordered(mut regions: Vec<SweptRegion>) -> Vec<SweptRegion> {
    regions.sort_by(|one, two| one.range.start.cmp(&two.range.start));
    regions
}

fn all_keys() -> KeyRange {
    ColumnFamily::Redis.engine_range(&KeyRange::all())
}

/// Returns the first Redis key from `start` on.
fn first_key(view: &impl EngineView, start: Bytes) -> Result<Option<Bytes>> {
    let range = KeyRange { start, end: all_keys().end };
    let options = ScanOptions { keys_only: true, ..ScanOptions::new(range, 1) };
    Ok(view.scan(&options)?.pop().map(|pair| pair.key))
}
