//! Rewrites of single runs without what newer tiers hide, where the device has no room for a merge of
//! all tiers.

use crate::gc::Shared;
use crate::mover::Moved;
use crate::work::Work;
use bytes::Bytes;
use std::sync::Arc;
use stele_index::{MergeInputs, MergeSpec, Run, Tier, Version};
use stele_types::{Cause, Result};

/// Position in the tiers, from the oldest to the newest but one.
#[derive(Debug, Default)]
pub(crate) struct Trim {
    /// Age of the tier, and last key, of the run that was rewritten last.
    after: Option<(u64, Bytes)>,
    /// Age of the newest tier for which `left` was set.
    newest_age: u64,
    /// Runs not rewritten since that tier exists.
    left: usize,
}

impl Trim {
    /// Returns the next run to rewrite with the age of its tier, if newer tiers got tombstones since it
    /// was.
    ///
    /// Invariant: the runs take turns, also if new tiers come all the time.
    pub(crate) fn next(&mut self, version: &Version) -> Option<(u64, Arc<Run>)> {
        let (newest, older) = version.tiers().split_first()?;
        // bug gc.trims_the_oldest_tier_only: let older = &older[older.len().saturating_sub(1)..];
        let keyed = || {
            let runs = older.iter().rev().flat_map(runs_with_age);
            runs.filter(|(_, run)| run.meta().entries > 0)
        };
        let new = version.tiers().iter().take_while(|tier| tier.age > self.newest_age);
        if new.map(|tier| tier.tombstones).sum::<u64>() > 0 {
            self.left = keyed().count();
        }
        self.newest_age = newest.age;
        if self.left == 0 {
            return None;
        }
        let is_after = |(age, run): &(u64, &Arc<Run>)| {
            let after = self.after.as_ref();
            after.is_none_or(|(of, key)| (age, &run.meta().first_key) > (of, key))
        };
        let found = keyed().find(is_after).or_else(|| keyed().next());
        found.map(|(age, run)| (age, run.clone()))
    }

    fn note(&mut self, age: u64, run: &Run) {
        self.after = Some((age, run.meta().last_key.clone()));
        self.left = self.left.saturating_sub(1);
    }
}

fn runs_with_age(tier: &Tier) -> impl Iterator<Item = (u64, &Arc<Run>)> {
    tier.runs.iter().map(|run| (tier.age, run))
}

impl Work {
    /// Starts the rewrite of the next run; returns whether there is one.
    pub(crate) fn start_trim(&mut self, shared: &Shared) -> Result<bool> {
        let version = shared.index.version();
        let Some((age, run)) = self.trim.next(&version) else { return Ok(false) };
        let inputs = MergeInputs::Runs { age, runs: vec![run.id()] };
        let spec = MergeSpec { inputs, cause: Cause::Merge };
        shared.hooks.open_reserve(0);
        let drop_s = self.drop_s(shared);
        let job = shared.index.start_trim(run.id(), drop_s)?;
        self.trim.note(age, &run);
        self.merge = Some(self.running(&version, job, &spec, None, Arc::<Moved>::default()));
        Ok(true)
    }
}
