//! Engine with views that lag behind the applied entries, and the effects of later entries laid over
//! them.

use crate::room::room_of_inner;
use bytes::Bytes;
use parking_lot::Mutex;
use stele_conformance::Factory;
use stele_conformance::{ModelEngine, ModelIngest, ModelView};
use stele_storage::{
    EngineStats, LogStore, LostValue, Maintained, Overlaid, Overlay, Pair, Progress, RangeSize,
    Repair, Snapshots, StateMachine,
};
use stele_types::{CommittedEntry, KeyRange, LogBatch, LogIndex, Prng, RegionId, Result, Term};

pub(super) struct LaggingFactory;

impl Factory for LaggingFactory {
    type Engine = Lagging;
    type Disk = ModelEngine;

    fn disk(&self, _seed: u64) -> ModelEngine {
        ModelEngine::new()
    }

    fn open(&self, disk: &ModelEngine) -> Result<Lagging> {
        let inner = disk.crash();
        let base = Base {
            view: inner.view()?,
            later: None,
            overlay: Overlay::default(),
            last: LogIndex(0),
            prng: Prng::new(1),
        };
        Ok(Lagging { inner, base: Mutex::new(base) })
    }

    fn crash(&self, _disk: ModelEngine, engine: Lagging, _seed: u64) -> ModelEngine {
        engine.inner.crash()
    }

    fn replay_command(&self) -> String {
        "cargo test -p stele-storage --test all overlay views_with_effects".into()
    }
}

pub(super) struct Lagging {
    inner: ModelEngine,
    base: Mutex<Base>,
}

/// Earlier view, and the entries of all regions that were applied after it in one sequence.
struct Base {
    view: ModelView,
    /// The next view, and the last entry that it contains.
    later: Option<(ModelView, LogIndex)>,
    overlay: Overlay,
    last: LogIndex,
    prng: Prng,
}

impl Lagging {
    /// Begins again with a view of all pairs: they changed without an entry.
    fn reset<T>(&self, result: Result<T>) -> Result<T> {
        let mut base = self.base.lock();
        base.view = self.inner.view()?;
        base.later = None;
        base.overlay.clear();
        result
    }
}

impl StateMachine for Lagging {
    type View = Overlaid<ModelView>;

    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        self.inner.apply(region, entries)?;
        let mut guard = self.base.lock();
        let base = &mut *guard;
        for entry in entries {
            base.last = base.last.next();
            if entry.is_command {
                base.overlay.push(base.last, &entry.payload)?;
            }
        }
        // The view takes a step, and lies between the first and the last entry of the overlay.
        if base.prng.below(4) == 0 {
            if let Some((view, LogIndex(last))) = base.later.take() {
                base.view = view;
                let applied = last.saturating_sub(base.prng.below(4));
                base.overlay.note_applied(LogIndex(applied));
            }
            base.later = Some((self.inner.view()?, base.last));
        }
        Ok(())
    }

    fn view(&self) -> Result<Overlaid<ModelView>> {
        let base = self.base.lock();
        Ok(Overlaid::new(base.view.clone(), base.overlay.effects()))
    }

    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        self.reset(self.inner.drop_ranges(ranges))
    }

    fn range_size(&self, range: &KeyRange) -> Result<RangeSize> {
        self.inner.range_size(range)
    }

    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        self.inner.split_key(range)
    }

    fn checkpoint(&self) -> Result<()> {
        self.inner.checkpoint()
    }

    fn maintain(&self, bytes_max: u64) -> Result<Maintained> {
        self.inner.maintain(bytes_max)
    }

    fn stats(&self) -> EngineStats {
        self.inner.stats()
    }
}

impl LogStore for Lagging {
    fn append(&self, batch: &LogBatch) -> Result<()> {
        self.inner.append(batch)
    }

    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        self.inner.entries(region, from, to, bytes_max)
    }

    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.inner.term(region, index)
    }

    fn progress(&self, region: RegionId) -> Option<Progress> {
        self.inner.progress(region)
    }

    room_of_inner!();
}

impl Snapshots for Lagging {
    type Ingest = ModelIngest;

    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<ModelIngest> {
        self.inner.begin_ingest(ranges)
    }

    fn receive(&self, ingest: &mut ModelIngest, pairs: Vec<Pair>) -> Result<()> {
        self.inner.receive(ingest, pairs)
    }

    fn install(&self, region: RegionId, at: (LogIndex, Term), ingest: ModelIngest) -> Result<()> {
        self.reset(self.inner.install(region, at, ingest))
    }
}

impl Repair for Lagging {
    fn has_lost(&self) -> bool {
        self.inner.has_lost()
    }

    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        self.inner.lost_values(count_max)
    }
}
