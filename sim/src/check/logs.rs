//! Log matching: an entry with the same index and term is the same on every store, and so is the
//! committed entry of an index.

use crate::world::World;
use std::collections::BTreeMap;
use stele_storage::LogStore;
use stele_types::checksum::crc32c;
use stele_types::{LogIndex, RegionId, Term};

/// Limit of bytes read together.
const READ_BYTES: usize = 256 << 10;

#[derive(Default)]
pub(super) struct Logs {
    entries: BTreeMap<(RegionId, LogIndex, Term), u32>,
    committed: BTreeMap<(RegionId, LogIndex), Term>,
    seen: BTreeMap<(u64, RegionId), LogIndex>,
}

impl Logs {
    pub(super) fn started(&mut self, slot: u64) {
        self.seen.retain(|(other, _), _| *other != slot);
    }

    /// Returns the term of a committed entry; `None` if no check saw it.
    pub(super) fn committed_term(&self, region: RegionId, index: LogIndex) -> Option<Term> {
        self.committed.get(&(region, index)).copied()
    }
}

impl World {
    pub(super) fn check_logs(&mut self) {
        for number in self.serving() {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let Some(core) = slot.core() else { continue };
            let reports = core.regions();
            for report in reports {
                let (id, committed) = (report.region.id, report.committed);
                let seen = self.checks.logs.seen.get(&(number, id)).copied().unwrap_or_default();
                let from = LogIndex(seen.0.max(report.truncated.0) + 1);
                self.check_entries(number, id, from, report.last, committed);
                let Some(engine) = self.engine(number) else { continue };
                let persisted = engine.progress(id).map_or(LogIndex(0), |it| it.persisted.0);
                if !self.replaces_entries(number, id) {
                    self.checks.logs.seen.insert((number, id), committed.min(persisted));
                }
            }
        }
    }

    /// Returns true if the store may be about to replace entries on its disk with committed ones.
    fn replaces_entries(&self, number: u64, region: RegionId) -> bool {
        let Some(slot) = self.slots.get(&number) else { return true };
        let Some(running) = &slot.running else { return true };
        running.is_writing || running.store_loop.as_ref().is_none_or(|it| it.has_records_of(region))
    }

    fn check_entries(
        &mut self,
        number: u64,
        region: RegionId,
        from: LogIndex,
        last: LogIndex,
        committed: LogIndex,
    ) {
        let Some(engine) = self.engine(number) else { return };
        let committed = match self.replaces_entries(number, region) {
            true => LogIndex(0),
            false => committed,
        };
        let persisted = engine.progress(region).map_or(LogIndex(0), |it| it.persisted.0);
        let to = LogIndex(last.min(persisted).0 + 1);
        let mut from = from;
        let mut latest = Term(0);
        while from < to {
            // A failed read on a faulty disk proves nothing.
            let Ok(entries) = engine.entries(region, from, to, READ_BYTES) else { return };
            let Some(end) = entries.last() else { return };
            from = end.index.next();
            for entry in entries {
                let checksum = crc32c(&entry.payload);
                let logs = &mut self.checks.logs;
                let (index, term) = (entry.index, entry.term);
                if std::mem::replace(&mut latest, term) > term {
                    let text =
                        format!("entry {index} of region {region} in term {term}, {latest:?}");
                    return self.fail(format!("store {number}: terms in its log decrease: {text}"));
                }
                let known = *logs.entries.entry((region, index, term)).or_insert(checksum);
                let first = match index <= committed {
                    true => *logs.committed.entry((region, index)).or_insert(term),
                    false => term,
                };
                if known != checksum || first != term {
                    self.fail(format!(
                        "store {number} has another entry {index} of region {region} in term {term} \
                         (the committed one has term {first})"
                    ));
                }
            }
        }
    }
}
