//! Range repairs from other replicas that wait for their entry.

use crate::messages::RangeRepairReply;
use stele_types::{LogIndex, mutant};

/// Most range repairs kept until this replica has applied their entry.
const RANGE_REPAIRS_MAX: usize = 8;

/// Range repairs that wait until this replica has applied their entry.
#[derive(Debug, Default)]
pub(crate) struct Repairs {
    waiting: Vec<RangeRepairReply>,
}

impl Repairs {
    /// Keeps a range repair until it can be applied. One above the limit is dropped and requested
    /// again.
    pub fn keep(&mut self, found: RangeRepairReply) {
        if self.waiting.len() < RANGE_REPAIRS_MAX {
            self.waiting.push(found);
        }
    }

    /// Removes and returns the repairs that may be applied. Invariant: none from after what is
    /// applied here. Otherwise this replica would return a state and later an older one.
    pub fn take_applied(&mut self, applied: LogIndex) -> Vec<RangeRepairReply> {
        let early = mutant::active("raftstore.cover_with_the_future");
        self.waiting.extract_if(.., |found| found.at <= applied || early).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::KeyRange;

    fn found(at: u64) -> RangeRepairReply {
        RangeRepairReply { range: KeyRange::all(), at: LogIndex(at), pairs: Vec::new() }
    }

    #[test]
    fn a_repair_waits_for_its_entry_and_few_wait() {
        let mut repairs = Repairs::default();
        [7, 5, 9].into_iter().for_each(|at| repairs.keep(found(at)));
        let rows: [(u64, &[u64]); 4] = [(4, &[]), (7, &[7, 5]), (8, &[]), (9, &[9])];
        for (applied, taken) in rows {
            let repairs = repairs.take_applied(LogIndex(applied));
            let at: Vec<u64> = repairs.iter().map(|found| found.at.0).collect();
            assert_eq!(at, taken, "applied {applied}");
        }
        (0..100).for_each(|at| repairs.keep(found(at)));
        assert_eq!(repairs.take_applied(LogIndex(100)).len(), RANGE_REPAIRS_MAX);
    }
}
