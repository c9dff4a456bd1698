//! The queue as a storage engine.

use super::Queued;
use bytes::Bytes;
use stele_storage::{
    EngineStats, LogStore, LostValue, Maintained, Overlaid, Pair, Progress, RangeSize, Repair,
    Snapshots, Space, StateMachine, StorageEngine,
};
use stele_types::{
    CommittedEntry, KeyRange, LogBatch, LogIndex, Mark, Record, RegionId, Result, Term,
};

impl<E: StorageEngine> StateMachine for Queued<E> {
    type View = Overlaid<E::View>;

    fn apply(&self, region: RegionId, entries: &[CommittedEntry]) -> Result<()> {
        // An entry without a command changes the regions, or nothing.
        let is_plain = entries.iter().all(|entry| entry.is_command);
        if self.thread.is_some() && is_plain {
            return self.enqueue(region, entries);
        }
        self.drain()?;
        self.inner().apply(region, entries)
    }

    fn view(&self) -> Result<Self::View> {
        self.overlaid()
    }

    fn drop_ranges(&self, ranges: &[KeyRange]) -> Result<()> {
        self.drain()?;
        self.inner().drop_ranges(ranges)
    }

    fn range_size(&self, range: &KeyRange) -> Result<RangeSize> {
        self.drain()?;
        self.inner().range_size(range)
    }

    fn split_key(&self, range: &KeyRange) -> Result<Option<Bytes>> {
        self.drain()?;
        self.inner().split_key(range)
    }

    fn checkpoint(&self) -> Result<()> {
        self.drain()?;
        self.inner().checkpoint()
    }

    fn maintain(&self, bytes_max: u64) -> Result<Maintained> {
        self.inner().maintain(bytes_max)
    }

    fn pressure(&self) -> f64 {
        self.inner().pressure()
    }

    fn idle(&self) {
        self.inner().idle();
    }

    fn stats(&self) -> EngineStats {
        self.inner().stats()
    }
}

impl<E: StorageEngine> LogStore for Queued<E> {
    fn append(&self, batch: &LogBatch) -> Result<()> {
        // Such a mark checkpoints what the region applied.
        let is_turn =
            |record: &Record| matches!(record, Record::Mark(_, Mark::Start(..) | Mark::Destroy));
        if batch.records.iter().any(is_turn) {
            self.drain()?;
        }
        self.inner().append(batch)
    }

    fn entries(
        &self,
        region: RegionId,
        from: LogIndex,
        to: LogIndex,
        bytes_max: usize,
    ) -> Result<Vec<CommittedEntry>> {
        self.inner().entries(region, from, to, bytes_max)
    }

    fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.inner().term(region, index)
    }

    /// What waits counts as applied: its effects are visible.
    fn progress(&self, region: RegionId) -> Option<Progress> {
        self.progress_with_waiting(region)
    }

    fn admit(&self, bytes: u64) -> Result<()> {
        self.inner().admit(bytes)
    }

    fn admit_append(&self, bytes: u64) -> bool {
        self.inner().admit_append(bytes)
    }

    fn space(&self) -> Space {
        self.inner().space()
    }

    fn take_truncation_request(&self) -> bool {
        self.inner().take_truncation_request()
    }
}

impl<E: StorageEngine> Snapshots for Queued<E> {
    type Ingest = E::Ingest;

    fn begin_ingest(&self, ranges: Vec<KeyRange>) -> Result<E::Ingest> {
        self.inner().begin_ingest(ranges)
    }

    fn receive(&self, ingest: &mut E::Ingest, pairs: Vec<Pair>) -> Result<()> {
        self.inner().receive(ingest, pairs)
    }

    fn install(&self, region: RegionId, at: (LogIndex, Term), ingest: E::Ingest) -> Result<()> {
        self.drain()?;
        self.inner().install(region, at, ingest)
    }
}

impl<E: StorageEngine> Repair for Queued<E> {
    fn has_lost(&self) -> bool {
        self.inner().has_lost()
    }

    fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        self.inner().lost_values(count_max)
    }

    fn lost_ranges(&self) -> Vec<KeyRange> {
        self.inner().lost_ranges()
    }

    fn repair_range(&self, range: &KeyRange, pairs: Vec<Pair>) -> Result<()> {
        self.drain()?;
        self.inner().repair_range(range, pairs)
    }

    fn repair_value(&self, key: &Bytes, value: Bytes) {
        self.inner().repair_value(key, value);
    }
}
