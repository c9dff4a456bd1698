//! Clients: each waits for each call, or keeps several calls in flight.

use super::mix::Source;
use super::target::Target;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use stele_engine::{Answer, Completed, CompletionQueue};
use stele_load::{Kind, Recorder};
use stele_types::{Error, Result};

/// A wait for completions ends after this time, to see whether the run is over.
const WAIT: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Tally {
    pub operations: AtomicU64,
    pub errors: AtomicU64,
    pub not_found: AtomicU64,
    pub recorder: Recorder,
}

impl Tally {
    /// Counts the result of a call. Refusals for want of space or time are counted, other failures
    /// end the run.
    fn note(&self, kind: Kind, result: Result<bool>, latency: Duration) -> Result<()> {
        match result {
            Ok(found) => {
                self.operations.fetch_add(1, Relaxed);
                self.not_found.fetch_add(u64::from(!found), Relaxed);
                self.recorder.record(kind, latency);
                Ok(())
            }
            Err(error) if is_refusal(&error) => {
                self.errors.fetch_add(1, Relaxed);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

fn is_refusal(error: &Error) -> bool {
    match error {
        Error::Shard { source, .. } => is_refusal(source),
        error => matches!(error, Error::Busy(_) | Error::NoSpace(_)),
    }
}

/// Makes one call after the other until `stop`.
pub(super) fn run_sync(
    target: &Target,
    source: &mut Source<'_>,
    stop: &AtomicBool,
    tally: &Tally,
) -> Result<()> {
    while !stop.load(Relaxed) {
        let (kind, key) = source.draw();
        let begin = Instant::now();
        let result = match kind {
            Kind::Read => target.get(&key),
            Kind::Delete => target.delete(&key).map(|()| true),
            _ => target.put(&key, &source.records.value(&mut source.prng)).map(|()| true),
        };
        tally.note(kind, result, begin.elapsed())?;
    }
    Ok(())
}

/// Keeps all slots of `queue` in use until `stop`, then waits for the calls in flight.
pub(super) fn run_async(
    target: &Target,
    queue: &CompletionQueue,
    source: &mut Source<'_>,
    stop: &AtomicBool,
    tally: &Tally,
) -> Result<()> {
    let depth = queue.options().depth;
    // The tag of a call is its place here.
    let mut calls = vec![(Kind::Read, Instant::now()); depth];
    let mut free: Vec<usize> = (0..depth).collect();
    let mut done: Vec<Completed> = Vec::with_capacity(depth);
    loop {
        while !stop.load(Relaxed)
            && let Some(tag) = free.pop()
        {
            let kind = submit(target, queue, source, tag as u64)?;
            if let Some(call) = calls.get_mut(tag) {
                *call = (kind, Instant::now());
            }
        }
        if free.len() == depth {
            return Ok(());
        }
        // Half of the calls go on in the meantime; one wakeup serves several results.
        queue.wait(&mut done, depth.div_ceil(4), WAIT);
        for Completed { tag, result } in done.drain(..) {
            let tag = tag as usize;
            free.push(tag);
            let Some((kind, begin)) = calls.get(tag) else { continue };
            let found = result.map(|answer| answer != Answer::Value(None));
            tally.note(*kind, found, begin.elapsed())?;
        }
    }
}

fn submit(
    target: &Target,
    queue: &CompletionQueue,
    source: &mut Source<'_>,
    tag: u64,
) -> Result<Kind> {
    let (kind, key) = source.draw();
    match kind {
        Kind::Read => queue.try_get(target, tag, &key)?,
        Kind::Delete => queue.try_delete(target, tag, &key)?,
        _ => queue.try_put(target, tag, &key, &source.records.value(&mut source.prng))?,
    }
    Ok(kind)
}
