//! Appends: a batch is checked record by record, and written only if all records are valid.

use super::RockStore;
use crate::designs::rocks::raft_log::Edit;
use crate::designs::rocks::region::Region;
use std::collections::BTreeMap;
use stele_storage::StateMachine;
use stele_types::{LogBatch, Mark, Record, RegionId, Result};

fn record(region: &mut Region, record: &Record, edit: &mut Edit, at: u64) -> Result<()> {
    match record {
        Record::Entry(entry) => {
            let before = region.last;
            region.push(entry)?;
            edit.remove(entry.region, entry.index, before.next());
            edit.put(entry, at);
        }
        Record::HardState(id, hard_state) => {
            region.check_present(*id)?;
            region.hard_state = *hard_state;
        }
        Record::Mark(id, mark) => {
            let (first, last) = (region.truncated.0.next(), region.last);
            region.mark(*id, mark)?;
            match mark {
                Mark::Start(..) | Mark::Destroy => edit.remove(*id, first, last.next()),
                Mark::TruncatePrefix(..) => edit.remove(*id, first, region.truncated.0.next()),
                Mark::TruncateSuffix(from) => edit.remove(*id, *from, last.next()),
            }
        }
    }
    Ok(())
}

impl RockStore {
    /// Writes a batch with a sync. Entries are applied and read meanwhile, as in TiKV, where other
    /// threads apply.
    pub(super) fn append_records(&self, batch: &LogBatch) -> Result<()> {
        // Changes of a region must be persisted before its log is removed: they cannot be replayed
        // afterwards.
        let ends_incarnation =
            |it: &Record| matches!(it, Record::Mark(_, Mark::Destroy | Mark::Start(..)));
        if batch.records.iter().any(ends_incarnation) {
            self.checkpoint()?;
        }
        let _appending = self.appending.lock();
        let (known, mut head) = {
            let state = self.state.lock();
            let ids = batch.records.iter().map(region_of);
            let known = ids.map(|id| (id, state.regions.get(&id).cloned().unwrap_or_default()));
            (known.collect::<BTreeMap<RegionId, Region>>(), state.head)
        };
        let (mut touched, mut edit) = (known, Edit::default());
        for it in &batch.records {
            let region = touched.entry(region_of(it)).or_default();
            record(region, it, &mut edit, head)?;
            head += u64::from(matches!(it, Record::Entry(_)));
        }
        for (id, region) in &touched {
            edit.state(*id, region);
        }
        self.log.write(&edit)?;
        let mut state = self.state.lock();
        for (id, mut region) in touched {
            if let Some(now) = state.regions.get(&id) {
                region.keep_progress(now);
            }
            state.regions.insert(id, region);
        }
        state.head = head;
        Ok(())
    }
}

fn region_of(record: &Record) -> RegionId {
    match record {
        Record::Entry(entry) => entry.region,
        Record::HardState(id, _) | Record::Mark(id, _) => *id,
    }
}
