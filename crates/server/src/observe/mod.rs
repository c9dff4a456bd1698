//! Observability: Prometheus metrics named after the stages of the write path, and the slow log.

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
use std::time::{Duration, Instant};
use stele_raftstore::Timings;

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
    /// Compare-and-swap.
    Cas,
    /// Checksum of a range.
    Checksum,
}

impl Kind {
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
            Self::Cas => "cas",
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
    slow_log: SlowLog,
    started: Instant,
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
        Self { registry, seconds, failed, stages, slow_log, started: Instant::now() }
    }

    /// Records `count` requests that were executed as one and took `took`.
    pub fn requests(
        &self,
        kind: Kind,
        count: usize,
        took: Duration,
        outcome: Outcome,
        stages: Option<Timings>,
    ) {
        let seconds = self.seconds.get_or_create_owned(&Request { kind });
        (0..count).for_each(|_| seconds.observe(took.as_secs_f64()));
        let outcome = match outcome {
            Outcome::Served => None,
            Outcome::Retry => Some("retry"),
            Outcome::Final => Some("final"),
        };
        if let Some(outcome) = outcome {
            self.failed.get_or_create(&Failed { kind, outcome }).inc_by(count as u64);
        }
        for (stage, nanos) in stages.iter().flat_map(stages_of) {
            let seconds = self.stages.get_or_create_owned(&Stage { stage });
            (0..count).for_each(|_| seconds.observe(nanos as f64 / 1e9));
        }
        self.slow_log.request(kind, took, outcome.unwrap_or("served"), stages.as_ref());
    }

    /// Returns the time since the node started.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Returns a write's stages by name, in nanoseconds.
fn stages_of(timings: &Timings) -> [(&'static str, u64); 4] {
    [
        ("queue", timings.queue_nanos),
        ("append", timings.append_nanos),
        ("replicate", timings.replicate_nanos),
        ("apply", timings.apply_nanos),
    ]
}
