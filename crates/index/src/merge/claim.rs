//! The right to run the one flush or the one merge, and the files made under it.

use crate::index::Shared;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{Error, Result, RunId, mutant};

/// What there is at most one of at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    Flush,
    Merge,
    /// Prepared runs, any number at a time; the manifest's lock puts them in order.
    Install,
}

/// Held by a job until it is committed or dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    pub shared: Arc<Shared>,
    slot: Slot,
    /// Files made so far. Dropped with the claim unless [`Claim::settle`] was called, or a manifest
    /// edit keeps them for a later continuation.
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
            return Err(Error::Busy("a job of this kind is running".to_owned()));
        }
        Ok(Self { shared: shared.clone(), slot, outputs: Vec::new() })
    }

    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// A new run's id; the file is this claim's from here on.
    pub fn new_run(&mut self) -> RunId {
        let run = self.shared.allocate_run();
        self.outputs.push(run);
        run
    }

    /// The files are current: they are no longer this claim's.
    pub fn settle(&mut self) {
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
            // Nothing else may come by to remove what was given up. What fails is tried again later.
            Slot::Install => drop(self.shared.purge()),
        }
    }
}
