//! Versions: the current runs as one immutable value that readers hold.
//!
//! Versions pinned by readers.

use crate::cursor::{Found, Lookup};
use crate::run::{Live, Run, key_hash};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use stele_types::lock::{Mutex, rank};
use stele_types::{FileId, Result, RunId};
pub use tier::Tier;
pub(crate) use tier::TierCursor;
pub(crate) use tier::union_of;

mod tier;

/// Number of a version, counted since the index was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionId(pub u64);

/// The current runs at one moment.
#[derive(Debug)]
pub struct Version {
    id: VersionId,
    tiers: Vec<Tier>,
    live: BTreeMap<FileId, Live>,
}

impl Version {
    pub(crate) fn new(id: VersionId, runs: impl IntoIterator<Item = Arc<Run>>) -> Self {
        let mut by_age: BTreeMap<u64, Vec<Arc<Run>>> = BTreeMap::new();
        for run in runs {
            by_age.entry(run.meta().extra.age).or_default().push(run);
        }
        let tiers: Vec<Tier> =
            by_age.into_iter().rev().map(|(age, runs)| Tier::new(age, runs)).collect();
        let mut live: BTreeMap<FileId, Live> = BTreeMap::new();
        for run in tiers.iter().flat_map(|tier| &tier.runs) {
            for (&file, refs) in &run.meta().refs {
                live.entry(file).or_default().add_all(refs);
            }
        }
        Self { id, tiers, live }
    }

    pub(crate) fn replace(&self, removed: &[RunId], added: Vec<Arc<Run>>) -> Self {
        let kept = self.runs().filter(|run| !removed.contains(&run.id())).cloned();
        Self::new(VersionId(self.id.0 + 1), kept.chain(added).collect::<Vec<_>>())
    }

    /// Returns the version's number.
    pub fn id(&self) -> VersionId {
        self.id
    }

    /// Returns the tiers, newest first.
    pub fn tiers(&self) -> &[Tier] {
        &self.tiers
    }

    /// Returns what the current runs reference, by value file. Exact: no run of this version
    /// references a file that is not here.
    pub fn live(&self) -> &BTreeMap<FileId, Live> {
        &self.live
    }

    /// Returns all runs, newest tier first.
    pub fn runs(&self) -> impl Iterator<Item = &Arc<Run>> {
        self.tiers.iter().flat_map(|tier| &tier.runs)
    }

    /// Returns the tier with this age.
    pub fn tier(&self, age: u64) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.age == age)
    }

    /// Returns the newest entry of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Found>> {
        if self.tiers.is_empty() {
            return Ok(None);
        }
        let hash = key_hash(key);
        for tier in &self.tiers {
            if let Some(found) = tier.get(key, hash)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Does what [`Version::get`] does, without waiting for the device.
    pub fn get_cached(&self, key: &[u8]) -> Result<Lookup> {
        let hash = key_hash(key);
        for tier in &self.tiers {
            match tier.get_cached(key, hash)? {
                Lookup::Known(None) => {}
                found => return Ok(found),
            }
        }
        Ok(Lookup::Known(None))
    }

    /// Returns the age of the newest tier, 0 when there is none.
    pub(crate) fn newest_age(&self) -> u64 {
        self.tiers.first().map_or(0, |tier| tier.age)
    }
}

/// Versions that readers may still hold, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    versions: Mutex<VecDeque<(VersionId, Weak<Version>)>, { rank::PINS }>,
}

impl Pins {
    /// Adds a version; called before it is published.
    pub(crate) fn add(&self, version: &Arc<Version>) {
        self.versions.lock().push_back((version.id(), Arc::downgrade(version)));
    }

    /// Returns the oldest version that a reader holds, or else the current one.
    pub(crate) fn oldest(&self) -> VersionId {
        let mut versions = self.versions.lock();
        while let Some((id, version)) = versions.front() {
            if version.strong_count() > 0 {
                return *id;
            }
            versions.pop_front();
        }
        VersionId::default()
    }

    /// Returns the versions that readers hold, and the current one, in ascending order.
    pub(crate) fn all(&self) -> Vec<VersionId> {
        let mut versions = self.versions.lock();
        versions.retain(|(_, version)| version.strong_count() > 0);
        versions.iter().map(|(id, _)| *id).collect()
    }
}
