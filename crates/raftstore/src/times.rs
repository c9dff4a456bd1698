//! Times of the stages of writes, and of reads that waited for entries, summed over a store.

use crate::output::Timings;
use std::sync::atomic::{AtomicU64, Ordering};

/// Sums of a store since its core was opened, shared with other threads. All times are nanoseconds.
#[derive(Debug, Default)]
pub struct StageTimes {
    writes: AtomicU64,
    append_wait: AtomicU64,
    append: AtomicU64,
    commit: AtomicU64,
    apply_wait: AtomicU64,
    reads: AtomicU64,
    read_wait: AtomicU64,
}

/// Sums at a moment. Of two of them, the differences are those of the time between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSums {
    /// Writes that were proposed by this store and are applied here.
    pub writes: u64,
    /// From the proposal to the hand-out of the batch with the entry.
    pub append_wait_nanos: u64,
    /// From that to the report that the batch is durable here.
    pub append_nanos: u64,
    /// From the proposal to the commit.
    pub commit_nanos: u64,
    /// From the commit to apply: the wait for the local disk and for earlier entries.
    pub apply_wait_nanos: u64,
    /// Reads that the core confirmed before the entries on which they depend were visible.
    pub waited_reads: u64,
    /// From the confirmation of these reads until the entries were visible.
    pub read_wait_nanos: u64,
}

impl StageTimes {
    /// Returns the sums so far.
    pub fn sums(&self) -> StageSums {
        let get = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        StageSums {
            writes: get(&self.writes),
            append_wait_nanos: get(&self.append_wait),
            append_nanos: get(&self.append),
            commit_nanos: get(&self.commit),
            apply_wait_nanos: get(&self.apply_wait),
            waited_reads: get(&self.reads),
            read_wait_nanos: get(&self.read_wait),
        }
    }

    /// Adds a write and the time of the poll that applied it.
    pub(crate) fn add_write(&self, timings: &Timings, applied_nanos: u64) {
        let Timings { proposed_nanos, append_began_nanos, durable_nanos, committed_nanos } =
            *timings;
        let append_began_nanos = append_began_nanos.max(proposed_nanos);
        let committed_nanos = committed_nanos.max(proposed_nanos);
        let spans = [
            (&self.append_wait, proposed_nanos, append_began_nanos),
            (&self.append, append_began_nanos, durable_nanos),
            (&self.commit, proposed_nanos, committed_nanos),
            (&self.apply_wait, committed_nanos, applied_nanos),
        ];
        for (sum, from, to) in spans {
            sum.fetch_add(to.saturating_sub(from), Ordering::Relaxed);
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a read that waited for entries.
    pub(crate) fn add_read(&self, waited_nanos: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_wait.fetch_add(waited_nanos, Ordering::Relaxed);
    }
}
