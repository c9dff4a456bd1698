//! Rewrites of single runs of the oldest tier without what newer tiers hide, where the device has no
//! room for a merge of all tiers.

use crate::gc::Shared;
use crate::mover::Moved;
use crate::work::Work;
use bytes::Bytes;
use std::sync::Arc;
use stele_index::{MergeInputs, MergeSpec, Run, Version};
use stele_types::{Cause, Result};

/// Position in the oldest tier.
#[derive(Debug, Default)]
pub(crate) struct Trim {
    /// Last key of the run that was rewritten last.
    after: Option<Bytes>,
    /// Age of the newest tier for which `left` was set.
    newest_age: u64,
    /// Runs not rewritten since that tier exists.
    left: usize,
}

impl Trim {
    /// Returns the next run to rewrite, if the newer tiers changed since it was.
    ///
    /// Invariant: the runs take turns, also if new tiers come all the time.
    pub fn next(&mut self, version: &Version) -> Option<Arc<Run>> {
        let (oldest, newer) = version.tiers().split_last()?;
        let newest_age = newer.first()?.age;
        if newest_age != self.newest_age {
            (self.newest_age, self.left) = (newest_age, oldest.runs.len());
        }
        if self.left == 0 {
            return None;
        }
        let keyed = || oldest.runs.iter().filter(|run| run.meta().entries > 0);
        let is_after =
            |run: &&Arc<Run>| self.after.as_ref().is_none_or(|after| run.meta().first_key > *after);
        keyed().find(is_after).or_else(|| keyed().next()).cloned()
    }

    fn note(&mut self, run: &Run) {
        self.after = Some(run.meta().last_key.clone());
        self.left = self.left.saturating_sub(1);
    }
}

impl Work {
    /// Starts the rewrite of the next run; returns whether there is one.
    pub fn start_trim(&mut self, shared: &Shared) -> Result<bool> {
        let version = shared.index.version();
        let Some(run) = self.trim.next(&version) else { return Ok(false) };
        let age = version.tiers().last().map_or(0, |tier| tier.age);
        let inputs = MergeInputs::Runs { age, runs: vec![run.id()] };
        let spec = MergeSpec { inputs, cause: Cause::Merge };
        shared.hooks.open_reserve(0);
        let drop_s = self.drop_s(shared);
        let job = shared.index.start_trim(run.id(), drop_s)?;
        self.trim.note(&run);
        self.merge = Some(self.running(&version, job, &spec, None, Arc::<Moved>::default()));
        Ok(true)
    }
}
