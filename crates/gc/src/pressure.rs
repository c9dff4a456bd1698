//! Share of garbage collection that writers do themselves. It is extrapolated between two
//! observations of the store: during one long job, a burst writes gigabytes that an observation
//! would notice only afterwards.

use crate::options::GcOptions;

/// Work for each byte written, at the hard limit of space: twice the cost of emptying files that
/// are half live.
const SPACE_ASSIST_AT_HARD: f64 = 4.0;
/// Work for each byte written when there are twice the wanted tiers.
const TIERS_ASSIST: f64 = 0.25;
/// Work from which a writer waits for its turn to work instead of passing by: the worker alone is
/// too slow.
pub(crate) const ASSIST_WAITS: f64 = 1.0;

/// Load of the store at the last observation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Bytes on the device without dead ones that garbage collection cannot free.
    pub disk_bytes: u64,
    pub live_bytes: u64,
    /// Share of new records that replace an older one; 0 to 1.
    pub overwrite_ratio: f64,
    /// User bytes at that time.
    pub user_bytes: u64,
    pub tiers: usize,
}

impl Load {
    /// Returns the work for each byte written when users have written `user_bytes` in all. It
    /// starts at the target, so that writers slow down before the hard limit is reached.
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
