//! Stages of a write, and of reads that wait for entries: their times, for one request and summed over
//! a store.

use std::ops::{AddAssign, Index, IndexMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Stage of a write. Each begins where the one before it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// From the arrival of the request to the proposal of its entry.
    Queue,
    /// From that to the hand-out of the batch with the entry.
    AppendWait,
    /// From that until the entry is durable here, or committed: a quorum may be faster than the local
    /// disk.
    Append,
    /// From that to the commit; 0 if the quorum was faster than the local disk.
    Replicate,
    /// From the commit to the end of the answer, or until the entry is applied. Without commit return,
    /// and after a commit before the local sync, it holds the rest of that sync.
    Apply,
}

impl Stage {
    /// Number of stages.
    pub const COUNT: usize = Self::ALL.len();
    /// All stages, in order.
    pub const ALL: [Self; 5] =
        [Self::Queue, Self::AppendWait, Self::Append, Self::Replicate, Self::Apply];

    /// Returns the name in metrics, logs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::AppendWait => "append_wait",
            Self::Append => "append",
            Self::Replicate => "replicate",
            Self::Apply => "apply",
        }
    }
}

/// Nanoseconds of each stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageNanos([u64; Stage::COUNT]);

impl StageNanos {
    /// Returns the stages with their nanoseconds, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, u64)> {
        Stage::ALL.into_iter().zip(self.0)
    }

    /// Returns the nanoseconds of all stages.
    pub fn sum(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns what was added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        let mut since = *self;
        since.0.iter_mut().zip(before.0).for_each(|(now, then)| *now = now.saturating_sub(then));
        since
    }
}

impl AddAssign for StageNanos {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, it)| *sum += it);
    }
}

impl Index<Stage> for StageNanos {
    type Output = u64;

    fn index(&self, stage: Stage) -> &u64 {
        &self.0[stage as usize]
    }
}

impl IndexMut<Stage> for StageNanos {
    fn index_mut(&mut self, stage: Stage) -> &mut u64 {
        &mut self.0[stage as usize]
    }
}

/// Times of a write, in nanoseconds of the monotonic clock: each is the time of the poll in which it
/// happened, and 0 before it happened. The core has no clock, so the caller measures the arrival of
/// the request and the end of its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// The entry was proposed. A modification that changes nothing was decided then, and has no
    /// later time.
    pub proposed_nanos: u64,
    /// The batch with the entry was handed out, to be written.
    pub append_began_nanos: u64,
    /// The entry was durable on the local disk. This may follow the commit.
    pub durable_nanos: u64,
    /// The entry was committed. Without commit return, also durable here.
    pub committed_nanos: u64,
}

impl Timings {
    /// Returns the stages of a write that arrived and ended at these times. What did not happen
    /// before the end took no time.
    pub fn stages(&self, arrived_nanos: u64, ended_nanos: u64) -> StageNanos {
        let Self { proposed_nanos, append_began_nanos, durable_nanos, committed_nanos } = *self;
        let is_durable_first = (1..committed_nanos).contains(&durable_nanos);
        let ends = [
            // A poll of the store may have begun just before the arrival.
            proposed_nanos,
            append_began_nanos.min(committed_nanos),
            if is_durable_first { durable_nanos } else { committed_nanos },
            committed_nanos,
            ended_nanos,
        ];
        let mut begin = arrived_nanos;
        let mut stages = StageNanos::default();
        for (nanos, end) in stages.0.iter_mut().zip(ends) {
            *nanos = end.saturating_sub(begin);
            begin = begin.max(end);
        }
        stages
    }
}

/// Sums of a store since its core was opened, shared with other threads.
#[derive(Debug, Default)]
pub struct StageTimes {
    writes: AtomicU64,
    write_nanos: [AtomicU64; Stage::COUNT],
    reads: AtomicU64,
    read_wait_nanos: AtomicU64,
}

/// Sums at a moment. Of two of them, the differences are those of the time between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageSums {
    /// Writes that were proposed by this store and are applied here.
    pub writes: u64,
    /// Their stages from the proposal until they were applied.
    pub write_nanos: StageNanos,
    /// Reads that the core confirmed before the entries on which they depend were visible.
    pub waited_reads: u64,
    /// Nanoseconds from the confirmation of these reads until the entries were visible.
    pub read_wait_nanos: u64,
}

impl StageTimes {
    /// Returns the sums so far.
    pub fn sums(&self) -> StageSums {
        let get = |sum: &AtomicU64| sum.load(Ordering::Relaxed);
        StageSums {
            writes: get(&self.writes),
            write_nanos: StageNanos(self.write_nanos.each_ref().map(get)),
            waited_reads: get(&self.reads),
            read_wait_nanos: get(&self.read_wait_nanos),
        }
    }

    pub(crate) fn add_write(&self, timings: &Timings, applied_nanos: u64) {
        let stages = timings.stages(timings.proposed_nanos, applied_nanos);
        for (sum, nanos) in self.write_nanos.iter().zip(stages.0) {
            sum.fetch_add(nanos, Ordering::Relaxed);
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_read(&self, waited_nanos: u64) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_wait_nanos.fetch_add(waited_nanos, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_of_a_write_sum_to_its_time() {
        // Proposed, handed out, durable and committed, for a write that arrived at 100 and ended at
        // 200; its stages.
        let rows = [
            ("in order", [110, 120, 150, 180], [10, 10, 30, 30, 20]),
            ("committed with the sync", [110, 110, 150, 150], [10, 0, 40, 0, 50]),
            ("arrived during the poll", [90, 90, 150, 180], [0, 0, 50, 30, 20]),
            ("changes nothing", [110, 0, 0, 0], [10, 0, 0, 0, 90]),
            ("committed before the sync", [110, 120, 170, 150], [10, 10, 30, 0, 50]),
            ("answered before the sync", [110, 0, 0, 150], [10, 0, 40, 0, 50]),
            ("committed before the hand-out", [110, 180, 190, 150], [10, 40, 0, 0, 50]),
        ];
        for (case, [proposed, began, durable, committed], expected) in rows {
            let timings = Timings {
                proposed_nanos: proposed,
                append_began_nanos: began,
                durable_nanos: durable,
                committed_nanos: committed,
            };
            let stages = timings.stages(100, 200);
            assert_eq!((stages.0, stages.sum()), (expected, 100), "{case}");
        }
    }
}
