//! The queue itself: runs of entries of one region that wait, and their effects.

use std::collections::VecDeque;
use stele_storage::{Effects, Layer, Overlay, Progress};
use stele_types::{CommittedEntry, Error, LogIndex, RegionId, Result};

/// Consecutive committed entries of one region, all commands.
#[derive(Debug)]
pub struct Run {
    pub region: RegionId,
    pub entries: Vec<CommittedEntry>,
    payload_bytes: u64,
    queued_nanos: u64,
}

impl Run {
    pub fn new(region: RegionId, entries: Vec<CommittedEntry>, queued_nanos: u64) -> Self {
        let payload_bytes = entries.iter().map(|entry| entry.payload.len() as u64).sum();
        Self { region, entries, payload_bytes, queued_nanos }
    }
}

/// What a queue has applied: sums over its entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Entries that were applied.
    pub entries: u64,
    /// Nanoseconds in which they waited.
    pub waited_nanos: u64,
    /// Nanoseconds from the begin to the end of the apply of their runs.
    pub applying_nanos: u64,
}

#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<Run>,
    /// Bytes of payloads that wait or are being applied.
    payload_bytes: u64,
    is_applying: bool,
    /// Effects of what waits or is being applied.
    overlay: Overlay,
    /// Region of these entries, and the last one; of the last ones that did if none does.
    last: (RegionId, LogIndex),
    times: Applied,
    failure: Option<String>,
    is_stopped: bool,
}

impl Queue {
    /// Fails if applying failed.
    pub fn check(&self) -> Result<()> {
        match &self.failure {
            Some(reason) => Err(Error::Poisoned(reason.clone())),
            None => Ok(()),
        }
    }

    /// Fails unless the run follows what is applied and queued, and is persisted, as the inner engine
    /// would.
    pub fn check_next(&self, run: &Run, progress: Option<Progress>) -> Result<()> {
        let progress = progress.unwrap_or_default();
        let mut last = self.last_of(run.region).unwrap_or(progress.applied);
        for entry in &run.entries {
            if entry.index != last.next() || entry.index > progress.persisted.0 {
                return Err(Error::invalid(format!(
                    "entry {} of region {} after entry {last}, of which {} are persisted",
                    entry.index, run.region, progress.persisted.0
                )));
            }
            last = entry.index;
        }
        Ok(())
    }

    /// Returns whether a run may wait now. One that is larger than the limit waits alone. Invariant:
    /// entries of one region wait at a time, so that the order of their effects is that of its log.
    pub fn has_room(&self, run: &Run, bytes_max: u64) -> bool {
        let is_in_order = self.last.0 == run.region;
        let fits = self.payload_bytes + run.payload_bytes <= bytes_max;
        self.is_empty() || is_in_order && fits
    }

    /// Adds a run and its effects. Fails and adds nothing if a command is not readable.
    pub fn push(&mut self, run: Run) -> Result<()> {
        self.check()?;
        let Some(last) = run.entries.last() else { return Ok(()) };
        let effects = run.entries.iter().map(|entry| (entry.index, entry.payload.clone()));
        self.overlay.add(Layer::of(effects)?)?;
        while let Some(due) = self.overlay.due_merge() {
            self.overlay.replace(due.merge());
        }
        self.last = (run.region, last.index);
        self.payload_bytes += run.payload_bytes;
        self.waiting.push_back(run);
        Ok(())
    }

    /// Takes the next run to apply.
    pub fn take(&mut self) -> Option<Run> {
        let run = self.waiting.pop_front()?;
        self.is_applying = true;
        Some(run)
    }

    /// Records that a run was applied between two times, or the failure. What a failed queue holds stays
    /// visible: it is committed.
    pub fn note_applied(&mut self, run: Run, (began, ended): (u64, u64), result: Result<()>) {
        self.is_applying = false;
        if let Err(error) = result {
            self.failure = Some(format!("applying entries of region {}: {error}", run.region));
            return;
        }
        self.payload_bytes -= run.payload_bytes;
        run.entries.last().map(|last| self.overlay.note_applied(last.index));
        if self.is_empty() {
            self.overlay.clear();
        }
        let entries = run.entries.len() as u64;
        self.times.entries += entries;
        self.times.waited_nanos += entries * began.saturating_sub(run.queued_nanos);
        self.times.applying_nanos += entries * ended.saturating_sub(began);
    }

    /// Returns the last entry of a region that waits or is being applied.
    pub fn last_of(&self, region: RegionId) -> Option<LogIndex> {
        (!self.is_empty() && self.last.0 == region).then_some(self.last.1)
    }

    /// Returns whether nothing waits and nothing is being applied.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.is_applying
    }

    pub fn effects(&self) -> Effects {
        self.overlay.effects()
    }

    pub fn times(&self) -> Applied {
        self.times
    }

    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}
