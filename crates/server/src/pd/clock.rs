//! Timestamps for clients that open the stream and never use them: increasing on this node.

use parking_lot::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};
use stele_proto::pdpb::Timestamp;

/// Logical numbers of one millisecond: 18 bits.
const LOGICAL_MAX: i64 = 1 << 18;

/// Source of timestamps.
#[derive(Debug, Default)]
pub(super) struct Timestamps {
    last: Mutex<(i64, i64)>,
}

impl Timestamps {
    /// Allocates `count` timestamps, unique on this node, and returns the last.
    pub fn take(&self, count: u32) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.take_at(since.as_millis() as i64, count)
    }

    fn take_at(&self, now_ms: i64, count: u32) -> Timestamp {
        let count = i64::from(count).clamp(1, LOGICAL_MAX - 1);
        let mut last = self.last.lock();
        if now_ms > last.0 {
            *last = (now_ms, 0);
        }
        if last.1 + count >= LOGICAL_MAX {
            *last = (last.0 + 1, 0);
        }
        last.1 += count;
        Timestamp { physical: last.0, logical: last.1, suffix_bits: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Catalogue: 38.
    #[test]
    fn timestamps_grow_also_when_the_clock_goes_back_and_when_a_millisecond_is_used_up() {
        let timestamps = Timestamps::default();
        let mut last = (0, 0);
        for (now, count) in [(10, 1), (10, 200_000), (9, 100_000), (11, 5), (5, 1)] {
            let at = timestamps.take_at(now, count);
            assert!((at.physical, at.logical - i64::from(count)) >= last, "{at:?} after {last:?}");
            last = (at.physical, at.logical);
        }
    }
}
