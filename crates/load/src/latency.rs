//! Latency histograms per kind of operation.

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Get of one key.
    Read,
    /// Put of a key that exists.
    Update,
    /// Put of a new key.
    Insert,
    /// Some pairs from a key on.
    Scan,
    /// Get of a key and put of the same.
    ReadModifyWrite,
    /// Delete of one key.
    Delete,
}

impl Kind {
    /// All kinds, in the order of the reports.
    pub const ALL: [Self; 6] =
        [Self::Read, Self::Update, Self::Insert, Self::Scan, Self::ReadModifyWrite, Self::Delete];

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "read_modify_write",
            Self::Delete => "delete",
        }
    }
}

const NANOS_MAX: u64 = 600_000_000_000;

fn empty() -> Option<Histogram<u64>> {
    // Three significant digits, as in the original YCSB. The bounds are valid, so this is never
    // `None`.
    Histogram::new_with_bounds(100, NANOS_MAX, 3).ok()
}

/// Latencies that one thread has measured since the last drain.
#[derive(Debug, Default)]
pub struct Recorder {
    kinds: Mutex<Latencies>,
}

impl Recorder {
    /// Adds one operation.
    pub fn record(&self, kind: Kind, latency: Duration) {
        self.kinds.lock().record(kind, latency);
    }

    /// Moves the latencies to `into`.
    pub fn drain(&self, into: &mut Latencies) {
        let taken = std::mem::take(&mut *self.kinds.lock());
        into.add(&taken);
    }
}

/// Histograms in nanoseconds, in the order of [`Kind::ALL`].
#[derive(Clone, Debug, Default)]
pub struct Latencies {
    kinds: [Option<Histogram<u64>>; Kind::ALL.len()],
}

impl Latencies {
    fn record(&mut self, kind: Kind, latency: Duration) {
        let Some(slot) = self.kinds.get_mut(kind as usize) else { return };
        if slot.is_none() {
            *slot = empty();
        }
        if let Some(histogram) = slot {
            let nanos = u64::try_from(latency.as_nanos()).unwrap_or(NANOS_MAX);
            histogram.saturating_record(nanos);
        }
    }

    /// Adds the latencies of `other`.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            let Some(theirs) = theirs else { continue };
            match mine {
                // Both have the same bounds, so nothing is out of range.
                Some(mine) => {
                    let _ = mine.add(theirs);
                }
                None => *mine = Some(theirs.clone()),
            }
        }
    }

    /// Summarizes all kinds together.
    pub fn all(&self) -> Summary {
        self.of(|_| true)
    }

    /// Summarizes the kinds that write and do not read.
    pub fn writes(&self) -> Summary {
        self.of(|kind| matches!(kind, Kind::Update | Kind::Insert | Kind::Delete))
    }

    fn of(&self, is_meant: impl Fn(Kind) -> bool) -> Summary {
        let mut whole = empty();
        if let Some(whole) = &mut whole {
            let meant = Kind::ALL.iter().zip(&self.kinds).filter(|(kind, _)| is_meant(**kind));
            for histogram in meant.filter_map(|(_, histogram)| histogram.as_ref()) {
                let _ = whole.add(histogram);
            }
        }
        whole.as_ref().map(Summary::of).unwrap_or_default()
    }

    /// Returns one object per kind that occurred.
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        for (kind, histogram) in Kind::ALL.iter().zip(&self.kinds) {
            if let Some(histogram) = histogram {
                object.insert(kind.name().to_owned(), Summary::of(histogram).to_json());
            }
        }
        Value::Object(object)
    }
}

/// Summary of a distribution, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Summary {
    /// Number of operations.
    pub count: u64,
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
}

impl Summary {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        Self {
            count: histogram.len(),
            mean_us: histogram.mean() / 1000.0,
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: histogram.max() as f64 / 1000.0,
        }
    }

    /// Returns one object.
    pub fn to_json(self) -> Value {
        json!({
            "count": self.count,
            "mean_us": self.mean_us,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "p999_us": self.p999_us,
            "max_us": self.max_us,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_threads_measured_adds_up() {
        let (a, b) = (Recorder::default(), Recorder::default());
        for ms in 1..=100 {
            a.record(Kind::Read, Duration::from_millis(ms));
            b.record(Kind::Scan, Duration::from_secs(3600));
        }
        let mut total = Latencies::default();
        a.drain(&mut total);
        b.drain(&mut total);
        a.drain(&mut total);
        assert_eq!((total.all().count, total.writes().count), (200, 0));
        a.record(Kind::Insert, Duration::from_millis(1));
        a.drain(&mut total);
        assert_eq!((total.all().count, total.writes().count), (201, 1));
        let read = &total.to_json()["read"];
        assert_eq!(read["count"], 100);
        assert!((read["p50_us"].as_f64().unwrap() - 50_000.0).abs() < 100.0, "{read}");
        assert!(total.to_json().get("update").is_none());
    }
}
