//! Log of slow requests with their stages. The number of lines per second is bounded: otherwise a
//! stall would hide its own cause.

use super::Kind;
use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stele_replica::StageNanos;

const LINES_PER_SECOND: u32 = 20;

/// Log of slow requests.
#[derive(Debug)]
pub struct SlowLog {
    /// Milliseconds; 0 disables the log.
    threshold_ms: AtomicU64,
    window: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u32,
    left_out: u64,
}

impl SlowLog {
    /// Logs requests of at least `threshold_ms`; 0 disables the log.
    pub fn new(threshold_ms: u64) -> Self {
        let window = Window { began: Instant::now(), lines: 0, left_out: 0 };
        Self { threshold_ms: AtomicU64::new(threshold_ms), window: Mutex::new(window) }
    }

    pub(crate) fn set_threshold_ms(&self, threshold_ms: u64) {
        self.threshold_ms.store(threshold_ms, Ordering::Relaxed);
    }

    pub(super) fn request(
        &self,
        kind: Kind,
        took: Duration,
        outcome: &str,
        at: Option<&StageNanos>,
    ) {
        let threshold_ms = self.threshold_ms.load(Ordering::Relaxed);
        if threshold_ms == 0 || took < Duration::from_millis(threshold_ms) {
            return;
        }
        if let Some(left_out) = self.admit() {
            tracing::warn!(target: "slow", "{}", line(kind, took, outcome, at, left_out));
        }
    }

    /// Admits a line; returns how many were left out since the last one, or `None` above the limit.
    fn admit(&self) -> Option<u64> {
        let mut window = self.window.lock();
        if window.began.elapsed() >= Duration::from_secs(1) {
            (window.began, window.lines) = (Instant::now(), 0);
        }
        if window.lines >= LINES_PER_SECOND {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }
}

/// Formats `slow put: 1204.1 ms served; queue 0.1, append_wait 0.0, append 1200.9, replicate 3.0, apply 0.1`.
fn line(
    kind: Kind,
    took: Duration,
    outcome: &str,
    at: Option<&StageNanos>,
    left_out: u64,
) -> String {
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let mut line = format!("slow {}: {:.1} ms {outcome}", kind.name(), took.as_secs_f64() * 1e3);
    let mut known = 0;
    for (nth, (stage, nanos)) in at.iter().flat_map(|at| at.iter()).enumerate() {
        let mark = if nth == 0 { ';' } else { ',' };
        known += nanos;
        // Writing to a string cannot fail.
        let _ = write!(line, "{mark} {} {:.1}", stage.name(), ms(nanos));
    }
    if at.is_none() {
        let _ = write!(line, "; read {:.1}", took.as_secs_f64() * 1e3);
    } else {
        let _ = write!(line, ", other {:.1}", ms((took.as_nanos() as u64).saturating_sub(known)));
    }
    if left_out > 0 {
        let _ = write!(line, " ({left_out} more not shown)");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_replica::Stage;

    #[test]
    fn a_line_splits_the_time_by_stage() {
        let mut at = StageNanos::default();
        at[Stage::Queue] = 100_000;
        at[Stage::Append] = 1_200_900_000;
        at[Stage::Replicate] = 3_000_000;
        at[Stage::Apply] = 100_000;
        let text = line(Kind::Put, Duration::from_micros(1_204_300), "served", Some(&at), 0);
        let stages =
            "queue 0.1, append_wait 0.0, append 1200.9, replicate 3.0, apply 0.1, other 0.2";
        assert_eq!(text, format!("slow put: 1204.3 ms served; {stages}"));
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let log = SlowLog::new(1);
        let admitted = (0..100).filter(|_| log.admit().is_some()).count();
        assert_eq!(admitted, LINES_PER_SECOND as usize);
        log.window.lock().began = Instant::now().checked_sub(Duration::from_secs(2)).unwrap();
        assert_eq!(log.admit(), Some(80));
    }
}
