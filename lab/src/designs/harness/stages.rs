//! Times of the stages of a client's requests.

use crate::designs::queued::Applied;
use serde_json::{Value, json};
use stele_replica::{Stage, StageNanos, StageSums, Timings};

/// Sums over the requests of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stages {
    writes: u64,
    reads: u64,
    /// Nanoseconds of the writes, by stage.
    write_nanos: StageNanos,
    /// Nanoseconds of the reads.
    read_nanos: u64,
    /// Part of these in which the read asked for its permission.
    ask_nanos: u64,
    /// Reads that asked the leader's loop for their permission.
    asked: u64,
    /// Entries that were applied while reads waited for their permission, or for apply.
    gap: u64,
    /// Nanoseconds in which reads waited for apply behind a queue.
    read_wait_nanos: u64,
}

impl Stages {
    /// Adds a write that arrived and was answered at these nanoseconds.
    pub fn note_write(&mut self, arrived_nanos: u64, timings: &Timings, answered_nanos: u64) {
        self.write_nanos += timings.stages(arrived_nanos, answered_nanos);
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
        self.ask_nanos += nanos;
        self.gap += entries;
    }

    /// Adds a read's wait until the entries that waited before the engine were applied.
    pub fn note_wait_for_apply(&mut self, nanos: u64, entries: u64) {
        self.note_wait(nanos, entries);
        self.read_wait_nanos += nanos;
    }

    /// Adds the sums of another client.
    pub fn add(&mut self, other: &Self) {
        self.writes += other.writes;
        self.reads += other.reads;
        self.write_nanos += other.write_nanos;
        self.read_nanos += other.read_nanos;
        self.ask_nanos += other.ask_nanos;
        self.asked += other.asked;
        self.gap += other.gap;
        self.read_wait_nanos += other.read_wait_nanos;
    }

    /// Returns means in microseconds and shares in percent, for a line of the report. `times` holds
    /// what the leader measured meanwhile.
    pub fn line(&self, (core, queue): &(StageSums, Applied)) -> Value {
        let per = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
        let percent = |part: u64, all: u64| 100.0 * per(part, all);
        let of_write = |nanos: u64| per(nanos, core.writes) / 1e3;
        let of_entry = |nanos: u64| per(nanos, queue.entries) / 1e3;
        // For the core, an entry is applied when the engine has queued it.
        let waited_nanos = core.write_nanos[Stage::Apply];
        let apply_wait_us = of_write(waited_nanos) + of_entry(queue.waited_nanos);
        let apply_us = of_entry(queue.applying_nanos);
        let commit_us = of_write(core.write_nanos.sum() - waited_nanos);
        let until_applied_us = commit_us + apply_wait_us + apply_us;
        let share = |part_us: f64| match until_applied_us > 0.0 {
            true => 100.0 * part_us / until_applied_us,
            false => 0.0,
        };
        let mut line = json!({
            "ask_us": per(self.ask_nanos, self.reads) / 1e3,
            "asked_percent": percent(self.asked, self.reads),
            "gap_entries": per(self.gap, self.reads),
            "wait_percent": percent(core.read_wait_nanos + self.read_wait_nanos, self.read_nanos),
            "commit_us": commit_us,
            "apply_wait_us": apply_wait_us,
            "apply_us": apply_us,
            "apply_percent": share(apply_us),
            "after_commit_percent": share(apply_wait_us + apply_us),
        });
        for (stage, nanos) in self.write_nanos.iter() {
            line[format!("write_{}_us", stage.name())] = json!(per(nanos, self.writes) / 1e3);
        }
        line
    }
}

/// Returns what was summed between two moments.
pub fn between(
    (before, queue_before): &(StageSums, Applied),
    (after, queue_after): &(StageSums, Applied),
) -> (StageSums, Applied) {
    let queue = Applied {
        entries: queue_after.entries - queue_before.entries,
        waited_nanos: queue_after.waited_nanos - queue_before.waited_nanos,
        applying_nanos: queue_after.applying_nanos - queue_before.applying_nanos,
    };
    let core = StageSums {
        writes: after.writes - before.writes,
        write_nanos: after.write_nanos.since(&before.write_nanos),
        waited_reads: after.waited_reads - before.waited_reads,
        read_wait_nanos: after.read_wait_nanos - before.read_wait_nanos,
    };
    (core, queue)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_between_their_moments_and_shares_are_of_their_whole() {
        let timings = Timings {
            proposed_nanos: 2_000,
            append_began_nanos: 2_500,
            durable_nanos: 5_000,
            committed_nanos: 9_000,
        };
        let mut stages = Stages::default();
        stages.note_write(1_000, &timings, 11_000);
        let mut other = Stages::default();
        other.note_write(1_000, &timings, 11_000);
        other.note_read(4_000);
        other.note_wait(1_000, 6);
        stages.note_read(4_000);
        stages.add(&other);
        let sums = |writes, replicate_nanos, apply_nanos, read_wait_nanos| {
            let mut sums = StageSums { writes, read_wait_nanos, ..StageSums::default() };
            sums.write_nanos[Stage::Replicate] = replicate_nanos;
            sums.write_nanos[Stage::Apply] = apply_nanos;
            sums
        };
        let (before, after) = (sums(1, 0, 500, 0), sums(3, 10_000, 1_000, 800));
        let queue = Applied { entries: 2, waited_nanos: 1_500, applying_nanos: 8_000 };
        let line = stages.line(&between(&(before, Applied::default()), &(after, queue)));
        for (name, value) in [
            ("write_queue_us", 1.0),
            ("write_append_wait_us", 0.5),
            ("write_append_us", 2.5),
            ("write_replicate_us", 4.0),
            ("write_apply_us", 2.0),
            ("ask_us", 0.5),
            ("asked_percent", 50.0),
            ("gap_entries", 3.0),
            ("wait_percent", 10.0),
            ("commit_us", 5.0),
            ("apply_wait_us", 1.0),
            ("apply_us", 4.0),
            ("apply_percent", 40.0),
            ("after_commit_percent", 50.0),
        ] {
            assert_eq!(line[name], json!(value), "{name} of {line}");
        }
    }

    #[test]
    fn a_stage_that_was_skipped_takes_no_time() {
        let mut stages = Stages::default();
        let timings = Timings { proposed_nanos: 5_000, ..Timings::default() };
        stages.note_write(1_000, &timings, 6_000);
        let nanos: Vec<u64> = stages.write_nanos.iter().map(|(_, nanos)| nanos).collect();
        assert_eq!(nanos, [4_000, 0, 0, 0, 1_000]);
    }
}
