//! A flush or a merge, executed in slices, and the runs that it writes.

use super::sources::{ENTRY_BYTES, Lookahead};
use super::spec::DropRule;
use super::{Claim, MergeProgress, MergeSpec, Merged, Slot, ValueMover};
use crate::cursor::Found;
use crate::index::Frozen;
use crate::manifest::Change;
use crate::run::{RunExtra, RunWriter};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use stele_types::{Cause, Error, Result, RunId, ValueRef};

#[derive(Clone, Debug)]
pub(crate) enum Target {
    Flush(Arc<Frozen>),
    Merge { spec: MergeSpec, inputs: Vec<RunId> },
}

/// A flush or a merge in progress. Holds no lock between steps. Dropping it discards its outputs,
/// except for finished outputs of a merge, from which [`crate::Index::resume_merge`] continues.
pub struct Job {
    target: Target,
    merged: Merged,
    rule: DropRule,
    mover: Option<Box<dyn ValueMover>>,
    /// Entries between the inputs and the output, if values move.
    lookahead: Lookahead,
    /// `None` once the job has ended or failed.
    output: Option<Box<Output>>,
    cause: Cause,
    /// Only entries of the oldest source are passed; the others only hide some of them.
    is_trim: bool,
    bytes_total: u64,
    bytes_done: u64,
}

/// A finished job, for [`crate::Index::commit`]. Dropping it discards the outputs.
pub struct JobDone {
    pub(crate) target: Target,
    pub(crate) output: Box<Output>,
    bytes: u64,
}

/// Result of a step.
#[derive(Debug)]
pub enum JobStep {
    /// The job is not finished; the step read and wrote this many bytes.
    More {
        /// Bytes of index entries and moved values.
        bytes: u64,
    },
    /// The outputs are written and their data is durable.
    Done(JobDone),
}

impl Job {
    pub(crate) fn new(
        target: Target,
        merged: Merged,
        rule: DropRule,
        mover: Option<Box<dyn ValueMover>>,
        output: Output,
        bytes_total: u64,
    ) -> Self {
        let cause = output.cause();
        let output = Some(Box::new(output));
        let lookahead = Lookahead::default();
        let (is_trim, bytes_done) = (false, 0);
        Self {
            target,
            merged,
            rule,
            mover,
            lookahead,
            output,
            cause,
            is_trim,
            bytes_total,
            bytes_done,
        }
    }

    /// Makes the job pass only what the oldest source holds and no newer one hides.
    pub(crate) fn trimming(mut self) -> Self {
        self.is_trim = true;
        self
    }

    /// Returns the cause under which written bytes are counted.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns the bytes of the inputs in memory or on disk, without values: an estimate of the
    /// work.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Processes about `bytes_max` bytes, and at least one entry. After an error the job can only
    /// be dropped.
    pub fn step(&mut self, bytes_max: u64) -> Result<JobStep> {
        let Some(mut output) = self.output.take() else {
            return Err(Error::invalid("this job has failed or ended; start a new one"));
        };
        let moved_before = self.moved_bytes();
        let mut bytes = 0;
        while self.has_more() {
            bytes += match self.mover.is_some() {
                true => self.pass_with_lookahead(&mut output, bytes_max)?,
                false => self.pass_entry(&mut output)?,
            };
            if bytes + self.moved_bytes() - moved_before >= bytes_max {
                break;
            }
        }
        bytes += self.moved_bytes() - moved_before;
        self.bytes_done += bytes;
        if self.has_more() {
            self.output = Some(output);
            return Ok(JobStep::More { bytes });
        }
        self.finish(output).map(JobStep::Done)
    }

    fn has_more(&self) -> bool {
        self.merged.key().is_some() || !self.lookahead.is_empty()
    }

    fn moved_bytes(&self) -> u64 {
        self.mover.as_ref().map_or(0, |mover| mover.bytes())
    }

    /// Moves one entry from the inputs to the output; returns the bytes read and written.
    #[inline]
    fn pass_entry(&mut self, output: &mut Output) -> Result<u64> {
        let Some(key) = self.merged.key() else { return Ok(0) };
        let mut bytes = key.len() as u64 + ENTRY_BYTES;
        let is_replaced = self.is_trim && !self.merged.is_from_oldest();
        if !self.merged.is_hidden() && !is_replaced {
            let found = self.merged.found()?;
            if self.rule.keeps(key, &found) {
                if output.is_full(key) {
                    cut(output, &mut self.mover, &self.target)?;
                }
                output.add(key, &found)?;
                bytes = bytes_of(key, &found);
            }
        }
        self.merged.advance()?;
        Ok(bytes)
    }

    /// Does what [`Self::pass_entry`] does, for a job with a mover.
    fn pass_with_lookahead(&mut self, output: &mut Output, bytes_max: u64) -> Result<u64> {
        let Some((key, mut found)) = self.lookahead.pop() else {
            let Some(mover) = self.mover.as_deref_mut() else { return Ok(0) };
            return self.lookahead.fill(&mut self.merged, &self.rule, mover, bytes_max);
        };
        if output.is_full(key) {
            cut(output, &mut self.mover, &self.target)?;
        }
        place(&mut self.mover, key, &mut found)?;
        output.add(key, &found)?;
        Ok(bytes_of(key, &found))
    }

    fn finish(&mut self, mut output: Box<Output>) -> Result<JobDone> {
        // Invariant: new locations of values are durable before the run that references them.
        if let Some(mover) = &mut self.mover {
            mover.cut()?;
        }
        output.finish()?;
        Ok(JobDone { target: self.target.clone(), output, bytes: self.bytes_done })
    }
}

impl JobDone {
    /// Returns the bytes that the whole job read and wrote.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Returns the bytes of an entry, counted once for the read and once for the write.
fn bytes_of(key: &[u8], found: &Found) -> u64 {
    let inline = match found {
        Found::Value { value: ValueRef::Inline(value), .. } => value.len() as u64,
        _ => 0,
    };
    2 * (key.len() as u64 + ENTRY_BYTES + inline)
}

fn place(mover: &mut Option<Box<dyn ValueMover>>, key: &[u8], found: &mut Found) -> Result<()> {
    if let (Some(mover), Found::Value { value: ValueRef::At(at), expires_at_s }) = (mover, found)
        && let Some(moved) = mover.place(key, at, *expires_at_s)?
    {
        *at = moved;
    }
    Ok(())
}

/// Finishes an output that is not the last, and records it so that the merge can resume after a
/// crash.
fn cut(
    output: &mut Output,
    mover: &mut Option<Box<dyn ValueMover>>,
    target: &Target,
) -> Result<()> {
    // bug index.mover_not_cut: never
    if let Some(mover) = mover {
        mover.cut()?;
    }
    output.finish_run(false)?;
    let Target::Merge { spec, .. } = target else { return Ok(()) };
    if !output.is_merge() {
        return Ok(());
    }
    let shared = output.claim.shared.clone();
    shared.vfs.sync_dir(&shared.dir)?;
    shared.manifest.lock().append(&[Change::MergeProgress(MergeProgress {
        spec: spec.clone(),
        job: output.job(),
        outputs: output.finished().to_vec(),
        last_key: Bytes::copy_from_slice(output.last_key()),
    })])
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("target", &self.target)
            .field("bytes_done", &self.bytes_done)
            .field("bytes_total", &self.bytes_total)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for JobDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobDone").field("outputs", &self.output.finished()).finish_non_exhaustive()
    }
}

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
