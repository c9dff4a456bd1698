//! The queue itself: runs of entries of one region that wait, and their effects.

use std::collections::VecDeque;
use stele_storage::{Effects, Layer, Overlay, Progress};
use stele_types::{CommittedEntry, Error, LogIndex, RegionId, Result};

/// Consecutive committed entries of one region, all commands.
#[derive(Debug)]
pub(super) struct Run {
    pub region: RegionId,
    pub entries: Vec<CommittedEntry>,
    payload_bytes: u64,
    queued_nanos: u64,
}

impl Run {
    pub(super) fn new(region: RegionId, entries: Vec<CommittedEntry>, queued_nanos: u64) -> Self {
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
pub(super) struct Queue {
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
    pub(super) fn check(&self) -> Result<()> {
        match &self.failure {
            Some(reason) => Err(Error::Poisoned(reason.clone())),
            None => Ok(()),
        }
    }

    /// Fails unless the run follows what is applied and queued, and is persisted, as the inner engine
    /// would.
    pub(super) fn check_next(&self, run: &Run, progress: Option<Progress>) -> Result<()> {
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
    pub(super) fn has_room(&self, run: &Run, bytes_max: u64) -> bool {
        let is_in_order = self.last.0 == run.region;
        let fits = self.payload_bytes + run.payload_bytes <= bytes_max;
        self.is_empty() || is_in_order && fits
    }

    /// Adds a run and its effects. Fails and adds nothing if a command is not readable.
    pub(super) fn push(&mut self, run: Run) -> Result<()> {
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

    pub(super) fn take(&mut self) -> Option<Run> {
        let run = self.waiting.pop_front()?;
        self.is_applying = true;
        Some(run)
    }

    /// Records that a run was applied between two times, or the failure. What a failed queue holds stays
    /// visible: it is committed.
    pub(super) fn note_applied(
        &mut self,
        run: Run,
        (began, ended): (u64, u64),
        result: Result<()>,
    ) {
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

    pub(super) fn last_of(&self, region: RegionId) -> Option<LogIndex> {
        (!self.is_empty() && self.last.0 == region).then_some(self.last.1)
    }

    /// Returns whether nothing waits and nothing is being applied.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.is_applying
    }

    pub(super) fn effects(&self) -> Effects {
        self.overlay.effects()
    }

    pub(super) fn times(&self) -> Applied {
        self.times
    }

    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use stele_types::{CommandBuilder, Term};

    /// Returns a run of puts of one key, of about a hundred bytes each.
    fn run(region: u64, indexes: std::ops::RangeInclusive<u64>) -> Run {
        let entry = |index: u64| {
            let mut command = CommandBuilder::new();
            command.put(b"k", format!("{index:0>100}").as_bytes(), 0).unwrap();
            let payload = command.build().bytes().clone();
            CommittedEntry { index: LogIndex(index), term: Term(1), is_command: true, payload }
        };
        Run::new(RegionId(region), indexes.map(entry).collect(), 1_000)
    }

    fn visible(queue: &Queue) -> Option<Bytes> {
        use stele_conformance::ModelEngine;
        use stele_storage::{EngineView, Overlaid, StateMachine};
        let view = ModelEngine::new().view().unwrap();
        let pair = Overlaid::new(view, queue.effects()).get(b"k").unwrap()?;
        Some(pair.value.trim_ascii_start().to_vec().into())
    }

    #[test]
    fn what_waits_is_visible_and_counts_until_it_is_applied() {
        let mut queue = Queue::default();
        queue.push(run(1, 5..=6)).unwrap();
        queue.push(run(1, 7..=7)).unwrap();
        assert_eq!(queue.last_of(RegionId(1)), Some(LogIndex(7)));
        let first = queue.take().unwrap();
        assert!(visible(&queue).unwrap().ends_with(b"07"), "also while the first is applied");
        queue.note_applied(first, (1_200, 1_500), Ok(()));
        let second = queue.take().unwrap();
        assert!(queue.take().is_none() && !queue.is_empty(), "it is being applied");
        queue.note_applied(second, (1_500, 1_600), Ok(()));
        assert!(queue.is_empty() && visible(&queue).is_none());
        assert_eq!(queue.last_of(RegionId(1)), None);
        let times = Applied { entries: 3, waited_nanos: 900, applying_nanos: 700 };
        assert_eq!(queue.times(), times);
    }

    #[test]
    fn a_run_waits_for_room_and_for_the_runs_of_another_region() {
        let mut queue = Queue::default();
        assert!(
            queue.has_room(&run(1, 1..=9), 10),
            "one that is larger than the limit waits alone"
        );
        queue.push(run(1, 1..=2)).unwrap();
        assert!(queue.has_room(&run(1, 3..=4), 1_000) && !queue.has_room(&run(1, 3..=4), 300));
        assert!(!queue.has_room(&run(2, 1..=1), 1_000));
        let taken = queue.take().unwrap();
        assert!(!queue.has_room(&run(1, 3..=4), 300), "what is being applied still counts");
        queue.note_applied(taken, (0, 0), Ok(()));
        assert!(queue.has_room(&run(1, 3..=4), 300) && queue.has_room(&run(2, 1..=1), 1_000));
    }

    #[test]
    fn a_run_follows_what_is_queued_and_persisted() {
        let mut queue = Queue::default();
        let progress = |applied: u64, persisted: u64| {
            let persisted = (LogIndex(persisted), Term(1));
            Some(Progress { applied: LogIndex(applied), persisted, ..Progress::default() })
        };
        assert!(queue.check_next(&run(1, 5..=6), progress(4, 6)).is_ok());
        assert!(queue.check_next(&run(1, 5..=6), progress(4, 5)).is_err(), "6 is not persisted");
        assert!(queue.check_next(&run(1, 6..=6), progress(4, 6)).is_err(), "5 is missing");
        queue.push(run(1, 5..=6)).unwrap();
        assert!(queue.check_next(&run(1, 7..=7), progress(4, 7)).is_ok());
        assert!(queue.check_next(&run(1, 6..=7), progress(4, 7)).is_err(), "6 waits already");
    }

    #[test]
    fn what_a_failed_apply_leaves_stays_visible_and_nothing_more_is_taken() {
        let mut queue = Queue::default();
        queue.push(run(1, 1..=1)).unwrap();
        let taken = queue.take().unwrap();
        queue.note_applied(taken, (0, 0), Err(Error::invalid("no device")));
        assert!(visible(&queue).is_some());
        assert!(matches!(queue.check(), Err(Error::Poisoned(text)) if text.contains("no device")));
        assert!(queue.push(run(1, 2..=2)).is_err());
    }
}
