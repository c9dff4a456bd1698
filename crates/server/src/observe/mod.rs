//! Observability: Prometheus metrics named after the stages of the write path, and the slow log.

mod exposition;
mod http;
mod log;
mod scrape;
mod slow_log;

pub use http::{Health, routes};
pub use log::{LogWriter, log_lines_lost};
pub use scrape::counts;
pub use slow_log::SlowLog;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use stele_replica::Timings;

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Read of one value.
    Get,
    /// Read of many values.
    BatchGet,
    /// Write of one pair.
    Put,
    /// Write of many pairs.
    BatchPut,
    /// Delete of one key.
    Delete,
    /// Delete of many keys.
    BatchDelete,
    /// Delete of a range.
    DeleteRange,
    /// Scan of pairs in order.
    Scan,
    /// Scan of many ranges.
    BatchScan,
    /// Read of a pair's remaining seconds.
    Ttl,
    /// Check of which keys exist.
    Exist,
    /// Compare-and-swap.
    Cas,
    /// Put of a key without a value.
    PutIfAbsent,
    /// Put of a key with a value.
    PutIfPresent,
    /// Increment of a number.
    Increment,
    /// Append to a value.
    Append,
    /// Delete that returns the value.
    GetAndDelete,
    /// Checksum of a range.
    Checksum,
}

impl Kind {
    /// Number of kinds; `Checksum` is the last.
    const COUNT: usize = Self::Checksum as usize + 1;

    /// Returns the name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::BatchGet => "batch_get",
            Self::Put => "put",
            Self::BatchPut => "batch_put",
            Self::Delete => "delete",
            Self::BatchDelete => "batch_delete",
            Self::DeleteRange => "delete_range",
            Self::Scan => "scan",
            Self::BatchScan => "batch_scan",
            Self::Ttl => "ttl",
            Self::Exist => "exist",
            Self::Cas => "cas",
            Self::PutIfAbsent => "put_if_absent",
            Self::PutIfPresent => "put_if_present",
            Self::Increment => "increment",
            Self::Append => "append",
            Self::GetAndDelete => "get_and_delete",
            Self::Checksum => "checksum",
        }
    }
}

impl EncodeLabelValue for Kind {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    kind: Kind,
    /// `retry` (by clients) or `final`.
    outcome: &'static str,
}

/// Stage of a write, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Stage {
    stage: &'static str,
}

/// Counters and histograms of one node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    seconds: Family<Request, Histogram>,
    failed: Family<Failed, Counter>,
    stages: Family<Stage, Histogram>,
    of_kinds: [OfKind; Kind::COUNT],
    of_stages: [OnceLock<Histogram>; 4],
    slow_log: SlowLog,
    started: Instant,
}

/// Members of the families for one kind. Looked up once: a look-up hashes the label under a lock.
#[derive(Debug, Default)]
struct OfKind {
    seconds: OnceLock<Histogram>,
    retry: OnceLock<Counter>,
    failed: OnceLock<Counter>,
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Served.
    Served,
    /// Not served here or now; clients retry.
    Retry,
    /// Failed; the caller gets the error.
    Final,
}

/// Creates a histogram from 16 µs to 34 s.
fn latency() -> Histogram {
    Histogram::new(exponential_buckets(16e-6, 2.0, 22))
}

impl Metrics {
    /// Creates the metrics; all counters are 0.
    pub fn new(slow_log: SlowLog) -> Self {
        let mut registry = Registry::with_prefix("stele");
        let seconds = Family::new_with_constructor(latency as fn() -> Histogram);
        let failed = Family::default();
        let stages = Family::new_with_constructor(latency as fn() -> Histogram);
        let unit = || Unit::Seconds;
        registry.register_with_unit(
            "request",
            "Time of requests, by kind",
            unit(),
            seconds.clone(),
        );
        registry.register("requests_failed", "Requests not served, by kind", failed.clone());
        registry.register_with_unit(
            "write_stage",
            "Time of writes, by stage: queue, append, replicate, apply",
            unit(),
            stages.clone(),
        );
        let (of_kinds, of_stages) = Default::default();
        let started = Instant::now();
        Self { registry, seconds, failed, stages, of_kinds, of_stages, slow_log, started }
    }

    /// Records `count` requests that were executed as one and took `took`.
    pub fn requests(
        &self,
        kind: Kind,
        count: usize,
        took: Duration,
        outcome: Outcome,
        stages: Option<Stages>,
    ) {
        let of_kind = &self.of_kinds[kind as usize];
        let seconds =
            of_kind.seconds.get_or_init(|| self.seconds.get_or_create_owned(&Request { kind }));
        (0..count).for_each(|_| seconds.observe(took.as_secs_f64()));
        let outcome = match outcome {
            Outcome::Served => None,
            Outcome::Retry => Some(("retry", &of_kind.retry)),
            Outcome::Final => Some(("final", &of_kind.failed)),
        };
        if let Some((outcome, counter)) = outcome {
            let counter =
                counter.get_or_init(|| self.failed.get_or_create_owned(&Failed { kind, outcome }));
            counter.inc_by(count as u64);
        }
        for (it, (stage, nanos)) in
            self.of_stages.iter().zip(stages.iter().flat_map(Stages::by_name))
        {
            let seconds = it.get_or_init(|| self.stages.get_or_create_owned(&Stage { stage }));
            (0..count).for_each(|_| seconds.observe(nanos as f64 / 1e9));
        }
        let outcome = outcome.map_or("served", |(outcome, _)| outcome);
        self.slow_log.request(kind, took, outcome, stages.as_ref());
    }

    /// Returns the log of slow requests.
    pub fn slow_log(&self) -> &SlowLog {
        &self.slow_log
    }

    /// Returns the time since the node started.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Time of a write, by stage: each stage begins where the one before it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// From arrival to proposal.
    pub queue_nanos: u64,
    /// From proposal to the local disk.
    pub append_nanos: u64,
    /// From the local disk to the commit; 0 if the quorum was faster.
    pub replicate_nanos: u64,
    /// From the commit to the end of the answer.
    pub apply_nanos: u64,
}

impl Stages {
    /// Returns the stages of a write that arrived and was answered at these times, on the clock of
    /// its store.
    pub fn new(arrived_nanos: u64, timings: &Timings, answered_nanos: u64) -> Self {
        let Timings { proposed_nanos, durable_nanos, committed_nanos, .. } = *timings;
        Self {
            // A poll of the store may have begun just before the arrival.
            queue_nanos: proposed_nanos.saturating_sub(arrived_nanos),
            append_nanos: durable_nanos.saturating_sub(proposed_nanos.max(arrived_nanos)),
            replicate_nanos: committed_nanos.saturating_sub(durable_nanos),
            apply_nanos: answered_nanos.saturating_sub(committed_nanos.max(arrived_nanos)),
        }
    }

    /// Adds the stages of a later part of the same request.
    pub fn add(&mut self, later: &Self) {
        self.queue_nanos += later.queue_nanos;
        self.append_nanos += later.append_nanos;
        self.replicate_nanos += later.replicate_nanos;
        self.apply_nanos += later.apply_nanos;
    }

    fn by_name(&self) -> [(&'static str, u64); 4] {
        [
            ("queue", self.queue_nanos),
            ("append", self.append_nanos),
            ("replicate", self.replicate_nanos),
            ("apply", self.apply_nanos),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_of_a_write_sum_to_its_time() {
        // Proposed, durable and committed, for a write that arrived at 100 and was answered at 200;
        // its stages.
        let rows = [
            ([110, 150, 180], [10, 40, 30, 20]),
            ([110, 150, 150], [10, 40, 0, 50]),
            ([90, 150, 180], [0, 50, 30, 20]),
            ([110, 110, 110], [10, 0, 0, 90]),
            ([90, 90, 90], [0, 0, 0, 100]),
        ];
        for ([proposed_nanos, durable_nanos, committed_nanos], expected) in rows {
            let append_began_nanos = proposed_nanos;
            let timings =
                Timings { proposed_nanos, append_began_nanos, durable_nanos, committed_nanos };
            let stages = Stages::new(100, &timings, 200).by_name().map(|(_, nanos)| nanos);
            assert_eq!(stages, expected, "{timings:?}");
            assert_eq!(stages.iter().sum::<u64>(), 100, "{timings:?}");
        }
    }
}
