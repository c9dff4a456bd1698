//! Exclusive right to run a flush or a merge, and ownership of the files it writes.

use crate::index::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{Error, Result, RunId, mutant};

/// Kinds of jobs. At most one flush and one merge run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Flush,
    Merge,
    /// An ingest; any number at a time. The manifest's lock orders their commits.
    Install,
}

/// Claim held by a job until it is committed or dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    pub shared: Arc<Shared>,
    slot: Slot,
    /// Files written so far. Discarded when the claim is dropped, unless [`Claim::release_files`]
    /// was called or the manifest keeps them to resume a merge.
    outputs: Vec<RunId>,
}

impl Claim {
    pub fn new(shared: &Arc<Shared>, slot: Slot) -> Result<Self> {
        let running = match slot {
            Slot::Flush => Some(&shared.flushing),
            Slot::Merge => Some(&shared.merging),
            Slot::Install => None,
        };
        if running.is_some_and(|running| running.swap(true, Ordering::AcqRel)) {
            return Err(Error::Busy(
                "a job of this kind is running; try again after it".to_owned(),
            ));
        }
        Ok(Self { shared: shared.clone(), slot, outputs: Vec::new() })
    }

    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Allocates the id of a new run; the claim owns its file.
    pub fn new_run(&mut self) -> RunId {
        let run = self.shared.allocate_run();
        self.outputs.push(run);
        run
    }

    /// Gives up the ownership of the files, because they are current.
    pub fn release_files(&mut self) {
        self.outputs.clear();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let outputs = std::mem::take(&mut self.outputs);
        let is_left = self.slot == Slot::Install && mutant::active("index.incoming_left");
        if !outputs.is_empty() && !is_left {
            self.shared.discard(&outputs);
        }
        match self.slot {
            Slot::Flush => {
                self.shared.flush_age.store(u64::MAX, Ordering::Release);
                self.shared.flushing.store(false, Ordering::Release);
            }
            Slot::Merge => self.shared.merging.store(false, Ordering::Release),
            // No commit may follow that would remove the discarded files. A later purge repeats
            // what fails.
            Slot::Install => drop(self.shared.purge()),
        }
    }
}
