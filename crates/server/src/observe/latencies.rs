//! Histogram of latencies. Requests and their stages are recorded by many threads, several for each
//! put, so that a bucket is one atomic number; the client library's histogram takes a lock.

use prometheus_client::encoding::{EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::{MetricType, TypedMetric};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bound of the first bucket. Each further one is twice that before it, up to 34 s.
const FIRST_NANOS: u64 = 16_000;
const BOUNDS: usize = 22;

/// Clones record into the same histogram.
#[derive(Clone, Debug, Default)]
pub(super) struct Latencies(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// The last one has no bound.
    buckets: [AtomicU64; BOUNDS + 1],
    nanos: AtomicU64,
}

impl Latencies {
    /// Records `count` latencies of this length.
    pub(super) fn observe(&self, took: Duration, count: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.0.buckets.get(bucket_of(nanos)) {
            bucket.fetch_add(count, Relaxed);
        }
        self.0.nanos.fetch_add(nanos.saturating_mul(count), Relaxed);
    }
}

/// Returns the bucket of which the bound is the least at or above `nanos`.
fn bucket_of(nanos: u64) -> usize {
    let whole = nanos.saturating_sub(1) / FIRST_NANOS;
    ((u64::BITS - whole.leading_zeros()) as usize).min(BOUNDS)
}

impl EncodeMetric for Latencies {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let bounds = (0..BOUNDS).map(|bucket| (FIRST_NANOS << bucket) as f64 / 1e9);
        let counts = self.0.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let buckets: Vec<(f64, u64)> = bounds.chain([f64::INFINITY]).zip(counts).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let seconds = self.0.nanos.load(Relaxed) as f64 / 1e9;
        encoder.encode_histogram::<NoLabelSet>(seconds, count, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

impl TypedMetric for Latencies {
    const TYPE: MetricType = MetricType::Histogram;
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
    use prometheus_client::registry::{Metric, Registry};

    #[test]
    fn it_prints_what_the_histogram_of_the_client_library_prints() {
        let (ours, theirs) =
            (Latencies::default(), Histogram::new(exponential_buckets(16e-6, 2.0, BOUNDS as u16)));
        for nanos in [0, 1, 16_000, 16_001, 32_000, 33_000, 1 << 20, 40_000_000_000] {
            for _ in 0..3 {
                theirs.observe(nanos as f64 / 1e9);
            }
            ours.observe(Duration::from_nanos(nanos), 2);
            ours.observe(Duration::from_nanos(nanos), 1);
        }
        assert_eq!(printed(ours), printed(theirs));
    }

    /// Returns the text of a metric without its sum, which is rounded in another order.
    fn printed(metric: impl Metric) -> String {
        let (mut registry, mut text) = (Registry::default(), String::new());
        registry.register("latency", "Time", metric);
        encode(&mut text, &registry).unwrap();
        text.lines().filter(|line| !line.contains("_sum")).collect::<Vec<_>>().join("\n")
    }
}
