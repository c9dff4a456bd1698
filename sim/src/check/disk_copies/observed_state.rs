//! State of a store, for comparison with a copy of its disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_engine::Store;
use stele_index::Run;
use stele_storage::{EngineView, LogStore, Pair, Progress, ScanOptions, StateMachine};
use stele_types::{KeyRange, LogIndex, Region, RegionId, RegionPhase, Result, keyspace};

/// Limit of bytes read together.
const READ_BYTES: usize = 1 << 20;

pub(super) struct ObservedState {
    pub regions: BTreeMap<RegionId, Progress>,
    runs: BTreeMap<u64, String>,
    pub pairs: Vec<Pair>,
    merged_regions: BTreeSet<RegionId>,
}

pub(super) fn pairs(engine: &Store) -> Result<Vec<Pair>> {
    engine.view()?.scan(&ScanOptions::new(KeyRange::new(Vec::new(), Vec::new()), usize::MAX))
}

pub(super) fn applied(engine: &Store) -> BTreeMap<RegionId, LogIndex> {
    let regions = engine.log().regions().into_iter();
    let present = regions.filter_map(|id| Some((id, engine.progress(id)?)));
    present.filter(|(_, it)| !it.destroyed).map(|(id, it)| (id, it.applied)).collect()
}

impl ObservedState {
    pub(super) fn of(engine: &Store) -> Result<Self> {
        let mut state = Self::without_pairs(engine);
        state.pairs = pairs(engine)?;
        let range = keyspace::region_keys();
        for pair in state.pairs.iter().filter(|pair| range.contains(&pair.key)) {
            let region = Region::decode(&pair.value)?;
            if region.phase == RegionPhase::Tombstone {
                state.merged_regions.insert(region.id);
            }
        }
        Ok(state)
    }

    pub(super) fn without_pairs(engine: &Store) -> Self {
        let regions = engine.log().regions().into_iter();
        let regions = regions.filter_map(|id| Some((id, engine.progress(id)?))).collect();
        let version = engine.index().version();
        // The checkpoint stored in a run is unknown if the run is damaged.
        let known = |run: &Arc<Run>| {
            let mut meta = run.meta().clone();
            meta.extra.checkpoint.clear();
            (run.id().0, format!("{meta:?}"))
        };
        let runs = version.runs().map(known).collect();
        Self { regions, runs, pairs: Vec::new(), merged_regions: BTreeSet::new() }
    }

    pub(super) fn applied(&self) -> BTreeMap<RegionId, LogIndex> {
        let present = self.regions.iter().filter(|(_, it)| !it.destroyed);
        present.map(|(id, it)| (*id, it.applied)).collect()
    }

    pub(super) fn missing_in(&self, copy: &Self) -> Option<String> {
        if let Some(text) = self.logs_missing_in(copy) {
            return Some(text);
        }
        let differs = |(id, meta): &(&u64, &String)| copy.runs.get(id) != Some(meta);
        if let Some((id, meta)) = self.runs.iter().find(differs) {
            return Some(format!("run {id} is {:?}, but was {meta}", copy.runs.get(id)));
        }
        let new = copy.merged_regions.difference(&self.merged_regions).next();
        new.map(|region| format!("region {region} is merged away, which was not applied before"))
    }

    pub(super) fn logs_missing_in(&self, copy: &Self) -> Option<String> {
        self.regions.iter().find_map(|(id, was)| {
            let now = copy.regions.get(id).copied().unwrap_or_default();
            let same = match was.destroyed {
                true => now.destroyed || !copy.regions.contains_key(id),
                false => {
                    !now.destroyed
                        && (now.persisted, now.truncated) == (was.persisted, was.truncated)
                        && now.hard_state == was.hard_state
                        && now.checkpointed >= was.checkpointed
                }
            };
            (!same).then(|| format!("region {id} is {now:?}, but was {was:?}"))
        })
    }
}

/// Applies the entries of each region up to an index, in log order. Returns false if the store
/// already applied more, or lacks entries.
pub(super) fn catch_up(engine: &Store, upto: &BTreeMap<RegionId, LogIndex>) -> Result<bool> {
    let mut entries = Vec::new();
    for (id, upto) in upto {
        let Some(here) = engine.progress(*id).filter(|it| !it.destroyed) else { continue };
        if here.applied > *upto {
            return Ok(false);
        }
        let mut from = here.applied.next();
        while from <= *upto {
            let found = engine.entries(*id, from, upto.next(), READ_BYTES)?;
            let Some(last) = found.last() else { return Ok(false) };
            from = last.index.next();
            let places = engine.log().positions(*id, &found)?;
            entries.extend(places.into_iter().zip(found).map(|(at, entry)| (at, *id, entry)));
        }
    }
    entries.sort_by_key(|(at, ..)| *at);
    entries.into_iter().try_for_each(|(_, id, entry)| engine.apply(id, &[entry]))?;
    Ok(true)
}

pub(super) fn difference(one: &[Pair], other: &[Pair]) -> Option<String> {
    if one == other {
        return None;
    }
    let at = one.iter().zip(other).position(|(a, b)| a != b);
    let at = at.unwrap_or(one.len().min(other.len()));
    let show = |pair: Option<&Pair>| {
        pair.map_or("nothing".to_owned(), |pair| {
            let value = String::from_utf8_lossy(pair.value.get(..8).unwrap_or(&pair.value));
            format!("{:?}={value} ({} bytes)", pair.key, pair.value.len())
        })
    };
    Some(format!("{} became {}", show(one.get(at)), show(other.get(at))))
}
