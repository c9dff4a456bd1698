//! Times of the stages of a client's requests.

use serde_json::{Value, json};
use stele_raftstore::Timings;

/// Sums over the requests of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    writes: u64,
    reads: u64,
    /// Nanoseconds of the writes by stage, in the order of [`STAGES`].
    write_nanos: [u64; STAGES.len()],
    /// Nanoseconds of the reads.
    read_nanos: u64,
    /// Part of these in which the read waited for its permission.
    wait_nanos: u64,
    /// Reads that asked the leader's loop for their permission.
    asked: u64,
    /// Entries that were applied while reads waited for their permission.
    gap: u64,
}

/// Stages of a write, each with the moment at which it ends: proposed, on the local disk, committed,
/// answered.
const STAGES: [&str; 4] = ["propose", "append", "commit", "answer"];

/// Number of the first stage after the commit.
const COMMITTED: usize = 3;

impl Stages {
    /// Adds a write that arrived and was answered at these nanoseconds.
    pub fn note_write(&mut self, arrived_nanos: u64, timings: &Timings, answered_nanos: u64) {
        let Timings { proposed_nanos, durable_nanos, committed_nanos } = *timings;
        let ends = [proposed_nanos, durable_nanos, committed_nanos, answered_nanos];
        let mut begin = arrived_nanos;
        for (sum, end) in self.write_nanos.iter_mut().zip(ends) {
            *sum += end.saturating_sub(begin);
            begin = begin.max(end);
        }
        self.writes += 1;
    }

    /// Adds a read.
    pub fn note_read(&mut self, nanos: u64) {
        self.reads += 1;
        self.read_nanos += nanos;
    }

    /// Adds a read's wait for its permission, in which `entries` were applied.
    pub fn note_wait(&mut self, nanos: u64, entries: u64) {
        self.asked += 1;
        self.wait_nanos += nanos;
        self.gap += entries;
    }

    /// Adds the sums of another client.
    pub fn add(&mut self, other: &Self) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.write_nanos.iter_mut().zip(other.write_nanos).for_each(|(sum, it)| *sum += it);
        self.read_nanos += other.read_nanos;
        self.wait_nanos += other.wait_nanos;
        self.asked += other.asked;
        self.gap += other.gap;
    }

    /// Returns means in microseconds and shares in percent, for a line of the report.
    pub fn line(&self) -> Value {
        let per = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
        let all: u64 = self.write_nanos.iter().sum();
        let percent = |part: u64, all: u64| 100.0 * per(part, all);
        let mut line = json!({
            "wait_us": per(self.wait_nanos, self.reads) / 1e3,
            "wait_percent": percent(self.wait_nanos, self.read_nanos),
            "asked_percent": percent(self.asked, self.reads),
            "gap_entries": per(self.gap, self.reads),
        });
        for (name, nanos) in STAGES.iter().zip(self.write_nanos) {
            line[format!("{name}_us")] = json!(per(nanos, self.writes) / 1e3);
            line[format!("{name}_percent")] = json!(percent(nanos, all));
        }
        let after_commit: u64 = self.write_nanos.iter().skip(COMMITTED).sum();
        line["after_commit_percent"] = json!(percent(after_commit, all));
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_between_their_moments_and_shares_add_up() {
        let timings =
            Timings { proposed_nanos: 2_000, durable_nanos: 5_000, committed_nanos: 9_000 };
        let mut stages = Stages::default();
        stages.note_write(1_000, &timings, 11_000);
        let mut other = Stages::default();
        other.note_write(1_000, &timings, 11_000);
        other.note_read(4_000);
        other.note_wait(1_000, 6);
        stages.note_read(4_000);
        stages.add(&other);
        let line = stages.line();
        for (name, value) in [
            ("propose_us", 1.0),
            ("append_us", 3.0),
            ("commit_us", 4.0),
            ("answer_us", 2.0),
            ("commit_percent", 40.0),
            ("after_commit_percent", 20.0),
            ("wait_us", 0.5),
            ("wait_percent", 12.5),
            ("asked_percent", 50.0),
            ("gap_entries", 3.0),
        ] {
            assert_eq!(line[name], json!(value), "{name} of {line}");
        }
    }

    #[test]
    fn a_stage_that_was_skipped_takes_no_time() {
        let mut stages = Stages::default();
        let timings = Timings { proposed_nanos: 5_000, ..Timings::default() };
        stages.note_write(1_000, &timings, 6_000);
        assert_eq!(stages.write_nanos, [4_000, 0, 0, 1_000]);
    }
}
