//! Checks the durable commit index. Opening applies all that is durably committed, in log order.
//! Invariant: an entry that commits a merge is not durably committed before it is applied, because
//! the source must be applied first.

use crate::world::World;
use stele_storage::LogStore;
use stele_types::{
    Command, CommittedEntry, LogBatch, Op, Record, Region, RegionId, RegionPhase, keyspace,
};

/// Region of a store's own journal.
const JOURNAL: RegionId = RegionId(0);
/// Limit of bytes read together.
const READ_BYTES: usize = 256 << 10;

impl World {
    pub(super) fn check_commits(&mut self, number: u64, batch: &LogBatch) {
        let Some(engine) = self.engine(number) else { return };
        for record in &batch.records {
            let Record::HardState(region, state) = record else { continue };
            // The store applies entries of its journal when they are durable.
            if *region == JOURNAL {
                continue;
            }
            let progress = engine.progress(*region).filter(|it| !it.destroyed);
            let Some(progress) = progress.filter(|it| it.applied < state.commit) else { continue };
            let (from, to) = (progress.applied.next(), state.commit.next());
            let Ok(entries) = engine.entries(*region, from, to, READ_BYTES) else { continue };
            let early = entries.iter().find_map(|entry| Some((entry.index, merge_source(entry)?)));
            if let Some((index, source)) = early {
                return self.fail(format!(
                    "store {number} durably committed entry {index} of region {region}, which \
                     commits the merge of region {source}, before it is applied"
                ));
            }
        }
    }
}

fn merge_source(entry: &CommittedEntry) -> Option<RegionId> {
    let mut source = None;
    Command::each_op_of(&entry.payload, |op| {
        let Op::Put { key, value, .. } = op else { return };
        let region = keyspace::region_of_key(key).filter(|_| entry.is_command);
        let gone = region
            .filter(|_| Region::decode(value).is_ok_and(|it| it.phase == RegionPhase::Tombstone));
        source = source.or(gone);
    });
    source
}
