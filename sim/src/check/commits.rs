//! What is durably committed is applied when the store opens, before anything that is not: an entry
//! that takes a region over must not be so before that region is applied.

use crate::world::World;
use stele_storage::StorageEngine;
use stele_types::{
    Command, CommittedEntry, LogBatch, Op, Record, Region, RegionId, RegionPhase, keyspace,
};

/// A store's own journal.
const JOURNAL: RegionId = RegionId(0);
/// Bytes of entries looked at together.
const LOOK_BYTES: usize = 256 << 10;

impl World {
    /// A batch is durable.
    pub(super) fn check_commits(&mut self, number: u64, batch: &LogBatch) {
        let Some(engine) = self.engine(number) else { return };
        for record in &batch.records {
            let Record::HardState(region, state) = record else { continue };
            // What the store notes of itself is applied when it is durable.
            if *region == JOURNAL {
                continue;
            }
            let progress = engine.progress(*region).filter(|it| !it.destroyed);
            let Some(progress) = progress.filter(|it| it.applied < state.commit) else { continue };
            let (from, to) = (progress.applied.next(), state.commit.next());
            let Ok(entries) = engine.entries(*region, from, to, LOOK_BYTES) else { continue };
            let early = entries.iter().find_map(|entry| Some((entry.index, takes(entry)?)));
            if let Some((index, source)) = early {
                return self.fail(format!(
                    "store {number} has it in writing that entry {index} of region {region} is \
                     committed, which takes region {source} over and is not applied"
                ));
            }
        }
    }
}

/// The region that an entry takes over.
fn takes(entry: &CommittedEntry) -> Option<RegionId> {
    let mut taken = None;
    Command::each_op_of(&entry.payload, |op| {
        let Op::Put { key, value, .. } = op else { return };
        let region = keyspace::region_of_key(key).filter(|_| entry.is_command);
        let gone = region
            .filter(|_| Region::decode(value).is_ok_and(|it| it.phase == RegionPhase::Tombstone));
        taken = taken.or(gone);
    });
    taken
}
