//! The model with one law broken at a time.

use crate::room::room_of_inner;
use bytes::Bytes;
use stele_conformance::Factory;
use stele_conformance::{ModelEngine, ModelIngest, ModelView};
use stele_storage::{
    CachedGet, EngineStats, EngineView, LogStore, Maintained, Order, Pair, Progress, RangeSize,
    Repair, ScanOptions, Snapshots, StateMachine,
};
use stele_types::{
    CommittedEntry, HardState, KeyRange, LogBatch, LogIndex, Mark, Record, RegionId, Result, Term,
};

/// Deliberate bug of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    HardStatesLostInCrash,
    LastEntryLostInCrash,
    BitFlipped,
    ReverseIgnored,
    BytesLimitIgnored,
    KeysOnlyIgnored,
    EntriesBytesIgnored,
    TruncationUnchecked,
    InstallNotAtomic,
    DropIgnored,
    CommitsInTheFuture,
    CheckpointUnmoved,
    ApplyRepeats,
    SuffixKept,
    IngestVisible,
    LastRangeKept,
    SizeOfEverything,
    SplitAtStart,
    CachedIsEmpty,
    CheckpointIgnored,
}

impl Bug {
    pub(crate) const ALL: [Self; 20] = [
        Self::HardStatesLostInCrash,
        Self::LastEntryLostInCrash,
        Self::BitFlipped,
        Self::ReverseIgnored,
        Self::BytesLimitIgnored,
        Self::KeysOnlyIgnored,
        Self::EntriesBytesIgnored,
        Self::TruncationUnchecked,
        Self::InstallNotAtomic,
        Self::DropIgnored,
        Self::CommitsInTheFuture,
        Self::CheckpointUnmoved,
        Self::ApplyRepeats,
        Self::SuffixKept,
        Self::IngestVisible,
        Self::LastRangeKept,
        Self::SizeOfEverything,
        Self::SplitAtStart,
        Self::CachedIsEmpty,
        Self::CheckpointIgnored,
    ];

    pub(crate) fn shows_in_histories(self) -> bool {
        let hidden = [
            Self::EntriesBytesIgnored,
            Self::ApplyRepeats,
            Self::CheckpointUnmoved,
            Self::SizeOfEverything,
            Self::SplitAtStart,
            Self::CachedIsEmpty,
            Self::CheckpointIgnored,
        ];
        !hidden.contains(&self)
    }
}

pub(crate) struct FaultyFactory {
    pub bug: Bug,
}

impl Factory for FaultyFactory {
    type Engine = Faulty;
    type Disk = ModelEngine;

    fn disk(&self, _seed: u64) -> ModelEngine {
        ModelEngine::new()
    }

    fn open(&self, disk: &ModelEngine) -> Result<Faulty> {
        Ok(Faulty { bug: self.bug, inner: disk.crash() })
    }

    fn crash(&self, _disk: ModelEngine, engine: Faulty, _seed: u64) -> ModelEngine {
        let inner = engine.inner.crash();
        for region in (1..=40).map(RegionId) {
            let Some(progress) = inner.progress(region).filter(|p| !p.destroyed) else { continue };
            let last = progress.persisted.0;
            let record = match self.bug {
                Bug::HardStatesLostInCrash => Record::HardState(region, HardState::default()),
                Bug::LastEntryLostInCrash if last > progress.applied => {
                    Record::Mark(region, Mark::TruncateSuffix(last))
                }
                _ => continue,
            };
            inner.append(&LogBatch { records: vec![record] }).unwrap();
        }
        if self.bug == Bug::CommitsInTheFuture {
            apply_all(&inner);
        }
        inner
    }

    fn replay_command(&self) -> String {
        "cargo test -p stele-storage --test all conformance".into()
    }
}

/// Applies every durable entry, committed or not.
fn apply_all(engine: &ModelEngine) {
    for region in (1..=40).map(RegionId) {
        let Some(progress) = engine.progress(region).filter(|p| !p.destroyed) else { continue };
        let from = progress.applied.next();
        let entries = engine.entries(region, from, LogIndex(u64::MAX), usize::MAX).unwrap();
        engine.apply(region, &entries).unwrap();
    }
    engine.checkpoint().unwrap();
}

pub(crate) struct Faulty {
    bug: Bug,
    inner: ModelEngine,
}

pub(crate) struct FaultyIngest {
    ranges: Vec<KeyRange>,
    inner: ModelIngest,
}

pub(crate) struct FaultyView {
    bug: Bug,
    inner: ModelView,
}

impl EngineView for FaultyView {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        let mut found = self.inner.get(key)?;
        if let (Bug::BitFlipped, Some(pair)) = (self.bug, &mut found) {
            let mut value = pair.value.to_vec();
            if let Some(last) = value.last_mut() {
                *last ^= 1;
            }
            pair.value = value.into();
        }
        Ok(found)
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        if self.bug == Bug::CachedIsEmpty {
            return Ok(CachedGet::Ready(None));
        }
        self.get(key).map(CachedGet::Ready)
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let mut options = options.clone();
        match self.bug {
            Bug::ReverseIgnored => options.order = Order::Forward,
            Bug::BytesLimitIgnored => options.bytes_max = usize::MAX,
            Bug::KeysOnlyIgnored => options.keys_only = false,
            _ => {}
        }
        self.inner.scan(&options)
    }
}

impl LogStore for Faulty {
    fn append(&self, batch: &LogBatch) -> Result<()> {
        let mut batch = batch.clone();
        if self.bug == Bug::SuffixKept {
            batch.records.retain(|r| !matches!(r, Record::Mark(_, Mark::TruncateSuffix(_))));
        }
        if self.bug == Bug::TruncationUnchecked {
            // A truncation that must be refused counts as written.
            let is_right = |record: &Record| match record {
                Record::Mark(region, Mark::TruncatePrefix(index, _)) => {
                    self.inner.progress(*region).is_some_and(|it| *index <= it.checkpointed)
                }
                _ => true,
            };
            batch.records.retain(is_right);
        }
        self.inner.append(&batch)
    }

    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        let ignored = self.bug == Bug::EntriesBytesIgnored;
        self.inner.entries(region, from, to, if ignored { usize::MAX } else { bytes_max })
    }

    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.inner.term(region, index)
    }

    fn progress(&self, region: RegionId) -> Option<Progress> {
        let mut progress = self.inner.progress(region)?;
        if self.bug == Bug::CheckpointUnmoved {
            progress.checkpointed = LogIndex(0);
        }
        Some(progress)
    }

    room_of_inner!();
}

impl StateMachine for Faulty {
    type View = FaultyView;

    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        let applied = self.inner.progress(region).map_or(LogIndex(0), |p| p.applied);
        if self.bug == Bug::ApplyRepeats && entries.first().is_some_and(|e| e.index <= applied) {
            return Ok(());
        }
        self.inner.apply(region, entries)
    }

    fn view(&self) -> Result<FaultyView> {
        Ok(FaultyView { bug: self.bug, inner: self.inner.view()? })
    }

    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        if self.bug == Bug::DropIgnored {
            return Ok(());
        }
        let kept = usize::from(self.bug == Bug::LastRangeKept && ranges.len() > 1);
        self.inner.drop_ranges(&ranges[..ranges.len() - kept])
    }

    fn range_size(&self, range: &KeyRange) -> Result<RangeSize> {
        let whole = KeyRange::all();
        self.inner.range_size(if self.bug == Bug::SizeOfEverything { &whole } else { range })
    }

    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        if self.bug == Bug::SplitAtStart {
            return Ok(Some(range.start.clone()));
        }
        self.inner.split_key(range)
    }

    fn checkpoint(&self) -> Result<()> {
        if self.bug == Bug::CheckpointIgnored {
            return Ok(());
        }
        self.inner.checkpoint()
    }

    fn maintain(&self, bytes_max: u64) -> Result<Maintained> {
        self.inner.maintain(bytes_max)
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

impl Snapshots for Faulty {
    type Ingest = FaultyIngest;

    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<FaultyIngest> {
        Ok(FaultyIngest { ranges: ranges.clone(), inner: self.inner.begin_ingest(ranges)? })
    }

    fn receive(&self, ingest: &mut FaultyIngest, pairs: Vec<Pair>) -> Result<()> {
        if self.bug == Bug::InstallNotAtomic {
            self.inner.drop_ranges(&ingest.ranges)?;
        }
        if self.bug == Bug::IngestVisible {
            let mut early = self.inner.begin_ingest(ingest.ranges.clone())?;
            self.inner.receive(&mut early, pairs.clone())?;
            self.inner.install(RegionId(40), (LogIndex(1), Term(1)), early)?;
        }
        self.inner.receive(&mut ingest.inner, pairs)
    }

    fn install(&self, region: RegionId, at: (LogIndex, Term), ingest: FaultyIngest) -> Result<()> {
        self.inner.install(region, at, ingest.inner)
    }
}

impl Repair for Faulty {}
