//! Measured costs of reads and of apply, and the decisions that rest on them.

use super::Related;
use parking_lot::Mutex;
use std::time::Duration;
use stele_types::LogIndex;

/// Share by which earlier samples lose weight with each new one. A scan is shorter than an apply, so
/// most samples see none.
const SAMPLE_WEIGHT: f64 = 1.0 / 128.0;

/// How a scan with these changes in the window is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Immediate read: no delete is related.
    Immediate,
    /// Consistent request: reads this many pairs more.
    ReadMore(u64),
    /// Relaxed read: waits until this entry is applied.
    Wait(LogIndex),
}

/// Costs and decisions of a group. Shared by its clients.
#[derive(Debug, Default)]
pub struct Costs(Mutex<Inner>);

#[derive(Clone, Copy, Debug, Default)]
struct Inner {
    read: Mean,
    apply: Mean,
    counts: Counts,
}

/// Decisions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Scans without a related delete.
    pub immediate: u64,
    /// Scans that read more pairs.
    pub read_more: u64,
    /// Scans that waited for the last related entry.
    pub waited: u64,
    /// Scans over a range delete, which has no finite `k`: they waited for the whole window.
    pub range_deletes: u64,
}

/// Decaying sums of time and of what was done in it. Their ratio is not distorted by samples in which
/// nothing was completed.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    nanos: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, count: f64, took: Duration) {
        self.nanos += took.as_nanos() as f64 - self.nanos * SAMPLE_WEIGHT;
        self.count += count - self.count * SAMPLE_WEIGHT;
    }

    /// Returns the mean time of one; `None` before one was completed.
    fn nanos_each(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.nanos / self.count)
    }
}

impl Costs {
    /// Decides how to serve a scan while entries up to `applied` are applied. An unknown cost of
    /// apply is measured by waiting, and then an unknown cost of reads by reading.
    pub fn decide(&self, related: &Related, applied: LogIndex) -> Decision {
        let mut inner = self.0.lock();
        let (read, apply) = (inner.read.nanos_each(), inner.apply.nanos_each());
        let entries = related.relaxed.0.saturating_sub(applied.0) as f64;
        let reads_more = match (read, apply) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(read), Some(apply)) => (related.deletes as f64) * read < entries * apply,
        };
        match related.deletes {
            0 => {
                inner.counts.immediate += 1;
                Decision::Immediate
            }
            more if reads_more => {
                inner.counts.read_more += 1;
                Decision::ReadMore(more)
            }
            _ => {
                inner.counts.waited += 1;
                Decision::Wait(related.relaxed)
            }
        }
    }

    /// Counts a scan that waits because the window holds a range delete.
    pub fn note_range_delete(&self) {
        self.0.lock().counts.range_deletes += 1;
    }

    /// Records the time of a read of this many pairs.
    pub fn note_read(&self, pairs: usize, took: Duration) {
        self.0.lock().read.add(pairs as f64, took);
    }

    /// Records the time in which this many entries were applied while others waited for it.
    pub fn note_applied(&self, entries: u64, took: Duration) {
        self.0.lock().apply.add(entries as f64, took);
    }

    /// Returns the decisions so far.
    pub fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Returns the mean costs of a pair and of an entry, in nanoseconds, where they were measured.
    pub fn nanos(&self) -> (Option<f64>, Option<f64>) {
        let inner = self.0.lock();
        (inner.read.nanos_each(), inner.apply.nanos_each())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(read_nanos: Option<u64>, apply_nanos: Option<u64>) -> Costs {
        let costs = Costs::default();
        if let Some(nanos) = read_nanos {
            costs.note_read(1, Duration::from_nanos(nanos));
        }
        if let Some(nanos) = apply_nanos {
            costs.note_applied(1, Duration::from_nanos(nanos));
        }
        costs
    }

    #[test]
    fn a_scan_reads_more_if_that_is_cheaper_than_the_wait() {
        use Decision::{Immediate, ReadMore, Wait};
        // c_read, c_apply, k, rr, A; decision.
        let rows = [
            (Some(10), Some(100), 0, 50, 40, Immediate),
            (None, None, 0, 50, 40, Immediate),
            (Some(10), Some(100), 2, 50, 40, ReadMore(2)),
            (Some(10), Some(1), 2, 50, 40, Wait(LogIndex(50))),
            // Equal costs: the paper's comparison is strict.
            (Some(5), Some(1), 2, 50, 40, Wait(LogIndex(50))),
            (Some(5), Some(1), 2, 51, 40, ReadMore(2)),
            // All is applied meanwhile.
            (Some(1), Some(100), 1, 50, 50, Wait(LogIndex(50))),
            (Some(1), Some(100), 1, 50, 60, Wait(LogIndex(50))),
            (Some(1), None, 1, 50, 40, Wait(LogIndex(50))),
            (None, Some(1), 1, 50, 40, ReadMore(1)),
        ];
        for (read, apply, deletes, relaxed, applied, expected) in rows {
            let costs = measured(read, apply);
            let related = Related { deletes, relaxed: LogIndex(relaxed), ..Related::default() };
            let decision = costs.decide(&related, LogIndex(applied));
            assert_eq!(decision, expected, "{read:?} {apply:?} {related:?} {applied}");
            let Counts { immediate, read_more, waited, range_deletes } = costs.counts();
            assert_eq!(immediate + read_more + waited, 1);
            let is_counted = match decision {
                Immediate => immediate,
                ReadMore(_) => read_more,
                Wait(_) => waited,
            };
            assert_eq!((is_counted, range_deletes), (1, 0));
        }
    }

    #[test]
    fn means_follow_what_is_measured_per_pair_and_per_entry() {
        let (costs, nanos) = (Costs::default(), Duration::from_nanos);
        assert_eq!(costs.nanos(), (None, None));
        costs.note_read(10, nanos(1_000));
        costs.note_applied(0, nanos(600));
        assert_eq!(costs.nanos(), (Some(100.0), None));
        // Time in which nothing was completed counts, with its decayed weight.
        costs.note_applied(4, nanos(200));
        assert_eq!(costs.nanos().1, Some((600.0 * (1.0 - SAMPLE_WEIGHT) + 200.0) / 4.0));
        (0..2_000).for_each(|_| costs.note_read(1, nanos(260)));
        assert!(costs.nanos().0.is_some_and(|mean| mean > 259.0), "{costs:?}");
    }

    #[test]
    fn range_deletes_are_counted_apart() {
        let costs = Costs::default();
        costs.note_range_delete();
        assert_eq!(costs.counts(), Counts { range_deletes: 1, ..Counts::default() });
    }
}
