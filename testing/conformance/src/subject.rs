//! An engine under test, and helpers for writing checks.

use super::{Check, Factory, Failure};
use bytes::Bytes;
use stele_storage::{
    EngineView, LogStore, Order, Pair, Progress, ScanOptions, Snapshots, StateMachine,
};
use stele_types::{
    CommandBuilder, EntryRecord, Error, HardState, KeyRange, LogBatch, LogIndex, Mark, Record,
    RegionId, Result, Term,
};

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($detail:tt)+) => {
        if !$condition {
            let detail = format!($($detail)+);
            return Err($crate::Failure { law: "", detail });
        }
    };
}

/// Fails the check unless both sides are equal.
macro_rules! ensure_eq {
    ($found:expr, $wanted:expr, $($what:tt)+) => {{
        let (found, wanted) = (&$found, &$wanted);
        ensure!(
            found == wanted,
            "{}: found {found:?}, wanted {wanted:?}",
            format_args!($($what)+)
        );
    }};
}

/// Slices of background work after which an engine must have finished it.
const MAINTAIN_STEPS_MAX: usize = 10_000;
const MAINTAIN_SLICE_BYTES: u64 = 1 << 20;

pub(super) struct Subject<'f, F: Factory> {
    factory: &'f F,
    disk: F::Disk,
    pub engine: F::Engine,
}

/// A write of one key: `None` deletes.
pub(super) type Write<'a> = (&'a str, Option<&'a str>);

impl<'f, F: Factory> Subject<'f, F> {
    pub(super) fn new(factory: &'f F, seed: u64) -> Check<Self> {
        let disk = factory.disk(seed);
        let engine = factory.open(&disk)?;
        Ok(Self { factory, disk, engine })
    }

    pub(super) fn crash(self, seed: u64) -> Check<Self> {
        let Self { factory, disk, engine } = self;
        let disk = factory.crash(disk, engine, seed);
        let engine = factory.open(&disk)?;
        Ok(Self { factory, disk, engine })
    }

    pub(super) fn append(&self, records: Vec<Record>) -> Result<()> {
        self.engine.append(&LogBatch { records })
    }

    pub(super) fn write(&self, region: u64, index: u64, writes: &[Write<'_>]) -> Check {
        self.append(vec![entry(region, index, 1, writes)])?;
        Ok(())
    }

    /// Applies durable entries from the region's applied index up to and including `upto`.
    pub(super) fn apply(&self, region: u64, upto: u64) -> Check {
        let id = RegionId(region);
        let from = self.progress(region)?.applied.next();
        for index in from.0..=upto {
            let entries = self.engine.entries(id, LogIndex(index), LogIndex(index + 1), 1)?;
            ensure_eq!(entries.len(), 1, "entries at {index} of region {region}");
            self.engine.apply(id, &entries)?;
        }
        Ok(())
    }

    pub(super) fn commit(&self, region: u64, index: u64, writes: &[Write<'_>]) -> Check {
        self.write(region, index, writes)?;
        self.apply(region, index)
    }

    pub(super) fn truncate(&self, region: u64, upto: LogIndex) -> Result<()> {
        let term = self.engine.term(RegionId(region), upto).unwrap_or_default();
        self.append(vec![mark(region, Mark::TruncatePrefix(upto, term))])
    }

    /// Runs background work until none is pending, which checkpoints everything applied.
    pub(super) fn finish_maintenance(&self) -> Check {
        for _ in 0..MAINTAIN_STEPS_MAX {
            if !self.engine.maintain(MAINTAIN_SLICE_BYTES)?.more {
                return Ok(());
            }
        }
        ensure!(false, "background work does not finish");
        Ok(())
    }

    pub(super) fn progress(&self, region: u64) -> Check<Progress> {
        let progress = self.engine.progress(RegionId(region));
        let missing = || Failure { law: "", detail: format!("region {region} has no progress") };
        let progress = progress.ok_or_else(missing)?;
        let Progress { truncated, checkpointed, applied, persisted, .. } = progress;
        let ordered =
            truncated.0 <= checkpointed && checkpointed <= applied && applied <= persisted.0;
        ensure!(
            ordered || progress.destroyed,
            "truncated ≤ checkpointed ≤ applied ≤ persisted is broken in {progress:?}"
        );
        Ok(progress)
    }

    /// Returns entries from `from` (inclusive) to `to` (exclusive) as (index, term).
    pub(super) fn entries(&self, region: u64, from: u64, to: u64) -> Result<Vec<(u64, u64)>> {
        let found =
            self.engine.entries(RegionId(region), LogIndex(from), LogIndex(to), usize::MAX)?;
        Ok(found.iter().map(|entry| (entry.index.0, entry.term.0)).collect())
    }

    /// Stages pairs in slices of two and installs them.
    pub(super) fn install(
        &self,
        region: u64,
        ranges: &[KeyRange],
        at: (LogIndex, Term),
        pairs: &[Pair],
    ) -> Result<()> {
        let mut ingest = self.engine.begin_ingest(ranges.to_vec())?;
        for slice in pairs.chunks(2) {
            self.engine.receive(&mut ingest, slice.to_vec())?;
        }
        self.engine.install(RegionId(region), at, ingest)
    }

    /// Returns all pairs as text, keys and values joined by `=`.
    pub(super) fn contents(&self) -> Check<Vec<String>> {
        contents(&self.engine.view()?)
    }
}

pub(super) fn contents(view: &impl EngineView) -> Check<Vec<String>> {
    Ok(texts(&view.scan(&everything())?))
}

pub(super) fn texts(pairs: &[Pair]) -> Vec<String> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    pairs.iter().map(|pair| format!("{}={}", text(&pair.key), text(&pair.value))).collect()
}

pub(super) fn everything() -> ScanOptions {
    ScanOptions {
        range: KeyRange::all(),
        order: Order::Forward,
        limit: usize::MAX,
        bytes_max: usize::MAX,
        keys_only: false,
        wanted: 0,
    }
}

/// Returns an entry record of writes. The builder only refuses what exceeds the limits.
pub(super) fn entry(region: u64, index: u64, term: u64, writes: &[Write<'_>]) -> Record {
    let mut builder = CommandBuilder::new();
    for (key, value) in writes {
        let added = match value {
            Some(value) => builder.put(key.as_bytes(), value.as_bytes(), 0),
            None => builder.delete(key.as_bytes()),
        };
        debug_assert!(added.is_ok());
    }
    Record::Entry(EntryRecord {
        region: RegionId(region),
        term: Term(term),
        index: LogIndex(index),
        is_command: true,
        payload: builder.build().bytes().clone(),
    })
}

pub(super) fn hard_state(region: u64, term: u64, vote: u64, commit: u64) -> Record {
    let state = HardState { term: Term(term), vote, commit: LogIndex(commit) };
    Record::HardState(RegionId(region), state)
}

pub(super) fn mark(region: u64, mark: Mark) -> Record {
    Record::Mark(RegionId(region), mark)
}

pub(super) fn pair(key: &str, value: &str) -> Pair {
    Pair { key: key.to_owned().into(), value: value.to_owned().into(), expires_at_s: 0 }
}

/// Fails unless the call was refused with `Invalid`: it can never succeed.
pub(super) fn refused<T>(result: Result<T>, what: &str) -> Check {
    match result {
        Err(Error::Invalid(_)) => Ok(()),
        Err(other) => {
            ensure!(false, "{what}: refused as `{other}`, wanted an invalid request");
            Ok(())
        }
        Ok(_) => {
            ensure!(false, "{what}: not refused");
            Ok(())
        }
    }
}
