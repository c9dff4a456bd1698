//! What a store holds, to be held against a copy of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use stele_engine::Store;
use stele_index::Run;
use stele_storage::{EngineView, Pair, Progress, ScanOptions, StorageEngine};
use stele_types::{KeyRange, LogIndex, Region, RegionId, RegionPhase, Result, keyspace};

/// Bytes of entries read at a time.
const LOOK_BYTES: usize = 1 << 20;

/// See the module.
pub struct Facts {
    pub regions: BTreeMap<RegionId, Progress>,
    runs: BTreeMap<u64, String>,
    pub pairs: Vec<Pair>,
    buried: BTreeSet<RegionId>,
}

/// All pairs of a store.
pub fn pairs(engine: &Store) -> Result<Vec<Pair>> {
    engine.view()?.scan(&ScanOptions::new(KeyRange::new(Vec::new(), Vec::new()), usize::MAX))
}

/// How far each region is applied.
pub fn applied(engine: &Store) -> BTreeMap<RegionId, LogIndex> {
    let regions = engine.log().regions().into_iter();
    let alive = regions.filter_map(|id| Some((id, engine.progress(id)?)));
    alive.filter(|(_, it)| !it.destroyed).map(|(id, it)| (id, it.applied)).collect()
}

impl Facts {
    pub fn of(engine: &Store) -> Result<Self> {
        let mut facts = Self::without_pairs(engine);
        facts.pairs = pairs(engine)?;
        let range = keyspace::region_keys();
        for pair in facts.pairs.iter().filter(|pair| range.contains(&pair.key)) {
            let region = Region::decode(&pair.value)?;
            if region.phase == RegionPhase::Tombstone {
                facts.buried.insert(region.id);
            }
        }
        Ok(facts)
    }

    pub fn without_pairs(engine: &Store) -> Self {
        let regions = engine.log().regions().into_iter();
        let regions = regions.filter_map(|id| Some((id, engine.progress(id)?))).collect();
        let version = engine.index().version();
        // Of a damaged run all is known but the checkpoint of its time.
        let known = |run: &Arc<Run>| {
            let mut meta = run.meta().clone();
            meta.extra.checkpoint.clear();
            (run.id().0, format!("{meta:?}"))
        };
        let runs = version.runs().map(known).collect();
        Self { regions, runs, pairs: Vec::new(), buried: BTreeSet::new() }
    }

    pub fn applied(&self) -> BTreeMap<RegionId, LogIndex> {
        let alive = self.regions.iter().filter(|(_, it)| !it.destroyed);
        alive.map(|(id, it)| (*id, it.applied)).collect()
    }

    /// What of this a copy lacks, or has otherwise.
    pub fn missing_in(&self, copy: &Self) -> Option<String> {
        if let Some(text) = self.logs_missing_in(copy) {
            return Some(text);
        }
        let differs = |(id, meta): &(&u64, &String)| copy.runs.get(id) != Some(meta);
        if let Some((id, meta)) = self.runs.iter().find(differs) {
            return Some(format!("run {id} is {:?} and was {meta}", copy.runs.get(id)));
        }
        let new = copy.buried.difference(&self.buried).next();
        new.map(|region| format!("region {region} is merged away, which was not applied before"))
    }

    /// The same of logs alone.
    pub fn logs_missing_in(&self, copy: &Self) -> Option<String> {
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
            (!same).then(|| format!("region {id} is {now:?} and was {was:?}"))
        })
    }
}

/// Applies what a copy has of each region up to an entry, in the order of the log. `false`: it is
/// ahead of that, or does not have all of it.
pub fn catch_up(engine: &Store, upto: &BTreeMap<RegionId, LogIndex>) -> Result<bool> {
    let mut entries = Vec::new();
    for (id, upto) in upto {
        let Some(here) = engine.progress(*id).filter(|it| !it.destroyed) else { continue };
        if here.applied > *upto {
            return Ok(false);
        }
        let mut from = here.applied.next();
        while from <= *upto {
            let found = engine.entries(*id, from, upto.next(), LOOK_BYTES)?;
            let Some(last) = found.last() else { return Ok(false) };
            from = last.index.next();
            entries.extend(found.into_iter().map(|entry| (entry.at, *id, entry)));
        }
    }
    entries.sort_by_key(|(at, ..)| *at);
    entries.into_iter().try_for_each(|(_, id, entry)| engine.apply(id, &[entry]))?;
    Ok(true)
}

/// Where two stores differ first.
pub fn difference(one: &[Pair], other: &[Pair]) -> Option<String> {
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
