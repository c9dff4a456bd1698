//! State that results from all frames of a manifest.

use super::Change;
use crate::checkpoint::Checkpoint;
use crate::merge::MergeProgress;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_types::{FileId, RunId};

/// State of the index that the manifest stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestState {
    /// Current runs and the ages of their tiers.
    pub runs: BTreeMap<RunId, u64>,
    /// Copies of the footers of current runs.
    pub footers: BTreeMap<RunId, Bytes>,
    pub checkpoint: Checkpoint,
    pub raft_from: FileId,
    pub next_file: FileId,
    pub next_run: RunId,
    pub gc_state: Bytes,
    pub pending: Option<MergeProgress>,
}

impl ManifestState {
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::AddRun(run, age) => {
                self.runs.insert(*run, *age);
                self.next_run = self.next_run.max(run.next());
            }
            Change::RemoveRun(run) => {
                self.runs.remove(run);
                self.footers.remove(run);
            }
            Change::Checkpoint(checkpoint) => self.checkpoint = checkpoint.clone(),
            Change::RaftFrom(file) => self.raft_from = *file,
            Change::NextFile(file) => self.next_file = self.next_file.max(*file),
            Change::GcState(state) => self.gc_state = state.clone(),
            Change::NextRun(run) => self.next_run = self.next_run.max(*run),
            Change::MergeProgress(progress) => {
                for run in &progress.outputs {
                    self.next_run = self.next_run.max(run.next());
                }
                self.pending = Some(progress.clone());
            }
            Change::MergeDone => self.pending = None,
            Change::Footer(run, copy) => {
                self.footers.insert(*run, copy.clone());
            }
        }
    }

    /// Returns the changes that produce this state from the empty state.
    pub fn snapshot(&self) -> Vec<Change> {
        let mut changes = vec![
            Change::Checkpoint(self.checkpoint.clone()),
            Change::RaftFrom(self.raft_from),
            Change::NextFile(self.next_file),
            Change::GcState(self.gc_state.clone()),
            Change::NextRun(self.next_run),
        ];
        changes.extend(self.runs.iter().map(|(&run, &age)| Change::AddRun(run, age)));
        changes.extend(self.footers.iter().map(|(&run, copy)| Change::Footer(run, copy.clone())));
        changes.extend(self.pending.iter().map(|p| Change::MergeProgress(p.clone())));
        changes
    }

    /// Returns whether a run is current or an output of the pending merge.
    pub fn refers_to(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
            || self.pending.as_ref().is_some_and(|pending| pending.outputs.contains(&run))
    }
}
