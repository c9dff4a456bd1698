//! Observability: Prometheus metrics named after the stages of the write path, and the slow log.

mod edges;
mod exposition;
mod http;
mod latencies;
mod log;
mod scrape;
mod slow_log;

pub use edges::EdgeCounts;
pub use http::{Health, probes, routes};
pub use log::{LogWriter, log_lines_lost};
pub use scrape::counts;
pub use slow_log::SlowLog;

use latencies::Latencies;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};
use std::fmt::{self, Write};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use stele_replica::{Stage, StageNanos};

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
    /// Puts and deletes of many keys.
    Write,
    /// Read of an index that covers all acknowledged writes of a region.
    ReadIndex,
    /// Redis commands on names of one region.
    Redis,
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
            Self::Write => "write",
            Self::ReadIndex => "read_index",
            Self::Redis => "redis",
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

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfStage {
    stage: &'static str,
}

/// Counters and histograms of one node.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    seconds: Family<Request, Latencies>,
    failed: Family<Failed, Counter>,
    stages: Family<OfStage, Latencies>,
    of_kinds: [OfKind; Kind::COUNT],
    of_stages: [OnceLock<Latencies>; Stage::COUNT],
    slow_log: SlowLog,
    started: Instant,
}

/// Members of the families for one kind. Looked up once: a look-up hashes the label under a lock.
#[derive(Debug, Default)]
struct OfKind {
    seconds: OnceLock<Latencies>,
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

impl Metrics {
    /// Creates the metrics; all counters are 0.
    pub fn new(slow_log: SlowLog) -> Self {
        let mut registry = Registry::with_prefix("stele");
        let seconds = Family::default();
        let failed = Family::default();
        let stages = Family::default();
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
            "Time of writes, by stage: queue, append_wait, append, replicate, apply",
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
        stages: Option<StageNanos>,
    ) {
        let of_kind = &self.of_kinds[kind as usize];
        let seconds =
            of_kind.seconds.get_or_init(|| self.seconds.get_or_create_owned(&Request { kind }));
        seconds.observe(took, count as u64);
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
            self.of_stages.iter().zip(stages.iter().flat_map(StageNanos::iter))
        {
            let label = || OfStage { stage: stage.name() };
            let seconds = it.get_or_init(|| self.stages.get_or_create_owned(&label()));
            seconds.observe(Duration::from_nanos(nanos), count as u64);
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
