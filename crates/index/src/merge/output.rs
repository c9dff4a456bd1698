//! Runs written by a job.

use super::{Claim, Slot};
use crate::cursor::Found;
use crate::run::{RunExtra, RunWriter};
use bytes::Bytes;
use stele_types::{Cause, Result, RunId};

/// Writes sorted entries to run files.
pub(crate) struct Output {
    pub claim: Claim,
    cause: Cause,
    writer: Option<RunWriter>,
    writing: RunId,
    last_key: Vec<u8>,
    /// Finished runs, ascending by key.
    finished: Vec<RunId>,
    /// Footer fields that all outputs share; `ranges` goes into the first output only.
    extra: RunExtra,
    /// First keys of runs of the same tier that are not inputs. Invariant: no output spans one.
    fences: Vec<Bytes>,
    fences_passed: usize,
}

impl Output {
    pub(crate) fn new(claim: Claim, cause: Cause, extra: RunExtra, fences: Vec<Bytes>) -> Self {
        Self {
            claim,
            cause,
            writer: None,
            writing: RunId::default(),
            last_key: Vec::new(),
            finished: Vec::new(),
            extra,
            fences,
            fences_passed: 0,
        }
    }

    /// Continues after the outputs finished earlier.
    pub(crate) fn resume(&mut self, finished: Vec<RunId>) {
        self.extra.part = finished.len() as u32;
        self.extra.ranges = Default::default();
        self.finished = finished;
    }

    /// Returns whether the open file must be finished before `key` is added. Called once per key,
    /// because it advances past fences.
    #[inline]
    pub(crate) fn is_full(&mut self, key: &[u8]) -> bool {
        let mut crosses = false;
        while self.fences.get(self.fences_passed).is_some_and(|fence| &fence[..] <= key) {
            self.fences_passed += 1;
            crosses = true;
        }
        let run_bytes_max = self.claim.shared.options.run_bytes_max;
        self.writer
            .as_ref()
            .is_some_and(|writer| crosses || writer.estimated_bytes() >= run_bytes_max)
    }

    /// Adds an entry; keys must ascend.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], found: &Found) -> Result<()> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.start()?,
        };
        writer.add(key, found)?;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        Ok(())
    }

    fn start(&mut self) -> Result<&mut RunWriter> {
        self.writing = self.claim.new_run();
        let shared = &self.claim.shared;
        let writer = RunWriter::create(
            &shared.vfs,
            &shared.dir,
            self.writing,
            &shared.run_options,
            self.cause,
        )?;
        Ok(self.writer.insert(writer))
    }

    /// Finishes the open file: its data is durable on return, its name is not.
    pub(crate) fn finish_run(&mut self, last_part: bool) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let ranges = std::mem::take(&mut self.extra.ranges);
        let extra = RunExtra { ranges, last_part, ..self.extra.clone() };
        writer.finish(extra)?;
        self.extra.part += 1;
        self.finished.push(self.writing);
        Ok(())
    }

    /// Finishes the last file. Range tombstones without entries form a run of their own.
    pub(crate) fn finish(&mut self) -> Result<()> {
        if self.writer.is_none() && !self.extra.ranges.is_empty() {
            self.start()?;
        }
        self.finish_run(true)
    }

    pub(crate) fn finished(&self) -> &[RunId] {
        &self.finished
    }

    pub(crate) fn last_key(&self) -> &[u8] {
        &self.last_key
    }

    pub(crate) fn job(&self) -> u64 {
        self.extra.job
    }

    pub(crate) fn is_merge(&self) -> bool {
        self.claim.slot() == Slot::Merge
    }

    pub(crate) fn cause(&self) -> Cause {
        self.cause
    }
}
