//! Regions that leave this store, or start again on it.

use super::{Replay, Shared, Store, apply};
use std::sync::Arc;
use stele_index::Checkpoint;
use stele_types::{LogBatch, Mark, Record, RegionId, Result};

impl Store {
    /// Ends the incarnations of the regions that these marks of a batch end. In this order, what a
    /// region applied is made durable without its log, its entries are truncated, and the
    /// checkpoint drops it. Its pairs thus stay (another region may have taken them over), none of
    /// its entries is applied again over newer pairs, and what it had applied does not count for
    /// its next incarnation. After a crash in between, it continues with an empty log.
    ///
    /// Invariant: a destroyed region is in no checkpoint. Opening relies on it. Therefore an ending region
    /// applies nothing until the batch is appended.
    /// Test: `every_crash_while_ranges_move_leaves_one_side_of_the_step`.
    pub(super) fn end_incarnations(&self, ending: &[(RegionId, &Mark)]) -> Result<()> {
        ending.iter().try_for_each(|(region, mark)| self.end_incarnation(*region, mark))
    }

    fn end_incarnation(&self, region: RegionId, mark: &Mark) -> Result<()> {
        let shared = &self.shared;
        let log = shared.log.region(region).filter(|log| !log.destroyed);
        let Some(log) = log else { return Ok(()) };
        let applied = shared.apply.lock().begin_ending(region).unwrap_or(log.truncated.0);
        if matches!(mark, Mark::Start(index, _) if *index == applied && log.last == applied) {
            return Ok(());
        }
        let durable = shared.checkpointed(region).max(log.truncated.0);
        // bug engine.life_not_flushed: never
        if applied > durable {
            self.flush()?;
        }
        // With `Replay::All` no keys move between regions: applying an entry again has the same
        // effect, and an applied index below the truncation indicates damage.
        let truncation = apply::truncation(&shared.log, region, applied)
            .filter(|_| shared.replay == Replay::Committed && applied > log.truncated.0);
        // bug engine.life_not_truncated: let truncation = None;
        if let Some(mark) = truncation {
            // The flush above has just made durable what this truncates.
            shared.append(&LogBatch { records: vec![mark] })?;
        }
        let mut state = shared.apply.lock();
        state.remove_region(region);
        // bug engine.earlier_life_counts: skip
        shared.index.forget_region(region)?;
        Ok(())
    }
}

/// Repeats start marks that a crash prevented. An installed range was current in the index, but the
/// log did not record yet that the region starts after it. The manifest has an applied entry that
/// the log lacks, from which the mark is written again.
pub(super) fn repeat_start_marks(shared: &Arc<Shared>, checkpoint: &Checkpoint) -> Result<()> {
    let mut records = Vec::new();
    for (&region, &(index, term)) in &checkpoint.applied {
        let is_known = shared.log.region(region).is_some_and(|log| {
            let has_entry = shared.log.term(region, index) == Some(term);
            // bug engine.start_term_ignored: let has_entry = has_entry || index <= log.last;
            !log.destroyed && (index <= log.truncated.0 || has_entry)
        });
        if !is_known {
            records.push(Record::Mark(region, Mark::Start(index, term)));
        }
    }
    // bug engine.start_not_repeated: never
    if !records.is_empty() {
        shared.log.append(&LogBatch { records })?;
    }
    Ok(())
}
