//! How much collection writers do themselves. Estimated between two looks at the store: a burst
//! writes gigabytes while one long job runs, and would be noticed only after it.

use crate::options::GcOptions;

/// Bytes of work asked for each byte written, at the hard limit of space: what emptying files that
/// are half live costs, twice.
const SPACE_ASSIST_AT_HARD: f64 = 4.0;
/// Asked when there are twice the tiers there should be.
const TIERS_ASSIST: f64 = 0.25;
/// From here on a writer waits for its turn to work instead of passing by: the one who works alone
/// is too slow.
pub(crate) const ASSIST_WAITS: f64 = 1.0;

/// The store as it was when someone last looked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Bytes on the device without dead ones that collection cannot free.
    pub disk_bytes: u64,
    pub live_bytes: u64,
    /// Share of new records that replace an older one; 0 to 1.
    pub overwrite_ratio: f64,
    /// User bytes at that time.
    pub user_bytes: u64,
    pub tiers: usize,
}

impl Load {
    /// Bytes of work for each byte written, now that users wrote `user_bytes` in all. It begins at
    /// the target, so that the hard limit is not reached before it is felt.
    pub fn assist(&self, user_bytes: u64, options: &GcOptions) -> f64 {
        let span = (options.space_amp_hard - options.space_amp_target).max(0.01);
        let over = (self.space_amp(user_bytes, options) - options.space_amp_target) / span;
        let tiers = self.tiers as f64 / (2 * options.tiers_max) as f64;
        let tiers = if tiers > 1.0 { TIERS_ASSIST * tiers * tiers } else { 0.0 };
        (SPACE_ASSIST_AT_HARD * over.max(0.0)).max(tiers)
    }

    fn space_amp(&self, user_bytes: u64, options: &GcOptions) -> f64 {
        let written = user_bytes.saturating_sub(self.user_bytes) as f64;
        let live = self.live_bytes as f64 + written * (1.0 - self.overwrite_ratio);
        (self.disk_bytes as f64 + written) / options.weighed(live as u64).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_felt_before_anyone_looks_again_and_inserts_are_no_burst() {
        let options = GcOptions::default();
        let seen = Load { disk_bytes: 1900, live_bytes: 1000, ..Load::default() };
        let updates = Load { overwrite_ratio: 1.0, ..seen };
        assert_eq!(updates.assist(100, &options), 0.0, "at the target");
        assert_eq!(updates.assist(225, &options), 1.0);
        assert_eq!(updates.assist(600, &options), 4.0, "at the hard limit");
        assert!(updates.assist(1100, &options) > 7.0);
        assert_eq!(seen.assist(5000, &options), 0.0, "each new record is live");
    }
}
