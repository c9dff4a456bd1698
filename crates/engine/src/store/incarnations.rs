//! Regions that leave this store, or start anew on it.

use super::{Replay, Shared, Store, apply};
use std::sync::Arc;
use stele_index::Checkpoint;
use stele_types::{LogBatch, LogIndex, Mark, Record, RegionId, Result, Term, mutant};

/// A region and how far it was applied.
pub(super) type Ended = (RegionId, (LogIndex, Term));

impl Store {
    /// Before a mark ends what a region has been: what it applied is made durable without its log,
    /// then its entries are truncated, then the checkpoint forgets it. Its pairs thus stay (another
    /// region may have taken them over), no entry of it is applied again over newer pairs, and what
    /// it had applied does not count for its next life. After a crash in between it goes on with an
    /// empty log. A destroyed region is in no checkpoint, which opening relies on. Returns what to
    /// restore if the mark can't be written.
    pub(super) fn end_incarnations(&self, batch: &LogBatch) -> Result<Vec<Ended>> {
        let mut ended = Vec::new();
        for record in &batch.records {
            if let Record::Mark(region, mark @ (Mark::Start(..) | Mark::Destroy)) = record {
                ended.extend(self.end_life(*region, mark)?);
            }
        }
        Ok(ended)
    }

    fn end_life(&self, region: RegionId, mark: &Mark) -> Result<Option<Ended>> {
        let shared = &self.shared;
        let alive = shared.log.region(region).filter(|log| !log.destroyed);
        let Some(log) = alive else { return Ok(None) };
        let applied = shared.apply.lock().applied(region).unwrap_or(log.truncated.0);
        if matches!(mark, Mark::Start(index, _) if *index == applied && log.last == applied) {
            return Ok(None);
        }
        let durable = shared.checkpointed(region).max(log.truncated.0);
        if applied > durable && !mutant::active("engine.life_not_flushed") {
            self.flush()?;
        }
        // Where all that is durable counts, no keys move between regions: what is applied again has
        // the same effect, and an applied index below the truncation is a sign of damage.
        let truncation = apply::truncation(&shared.log, region, applied)
            .filter(|_| shared.replay == Replay::Committed && applied > log.truncated.0)
            .filter(|_| !mutant::active("engine.life_not_truncated"));
        if let Some(mark) = truncation {
            shared.append(&LogBatch { records: vec![mark] })?;
        }
        let mut state = shared.apply.lock();
        let ended = state.forget(region);
        if !mutant::active("engine.earlier_life_counts") {
            shared.index.forget_region(region)?;
        }
        Ok(ended)
    }
}

/// An installed range became current in the index, and a crash came before the log knew that the
/// region starts after it. The manifest's applied entry, which the log lacks, says so; the mark is
/// made again.
pub(super) fn repeat_starts(shared: &Arc<Shared>, checkpoint: &Checkpoint) -> Result<()> {
    let mut records = Vec::new();
    for (&region, &(index, term)) in &checkpoint.applied {
        let is_known = shared.log.region(region).is_some_and(|log| {
            let has_entry = shared.log.term(region, index) == Some(term)
                || (mutant::active("engine.start_term_ignored") && index <= log.last);
            !log.destroyed && (index <= log.truncated.0 || has_entry)
        });
        if !is_known {
            records.push(Record::Mark(region, Mark::Start(index, term)));
        }
    }
    if !records.is_empty() && !mutant::active("engine.start_not_repeated") {
        shared.log.append(&LogBatch { records })?;
    }
    Ok(())
}
