//! Settings of garbage collection. All have defaults; sizes are in bytes, ratios without unit.

use stele_types::{Error, Result};

/// Policy that selects files, times and the order of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PolicyKind {
    /// Relocates the cheapest victims within the byte budget; sorts ranges that scans pay for.
    #[default]
    Adaptive,
    /// Rewrites every value in key order whenever the unsorted part reaches the threshold (Nezha,
    /// final compacted storage).
    Nezha,
    /// Relocates the oldest files first and never sorts (WiscKey).
    Wisckey,
}

/// Settings of garbage collection. [`GcOptions::validate`] checks them when a store opens.
#[derive(Clone, Debug, PartialEq)]
pub struct GcOptions {
    /// Selection policy. Default [`PolicyKind::Adaptive`].
    pub policy: PolicyKind,
    /// Bytes that merging and relocating may write for each byte a user writes. Default 0.25. The
    /// budget rises above `space_amp_target` and is unlimited above `space_amp_hard`.
    pub budget_ratio: f64,
    /// Accepted bytes on the device for each live byte. Default 2.0.
    pub space_amp_target: f64,
    /// Dead bytes accepted regardless of the number of live bytes. In a small store, moving values
    /// costs more than it frees, and further updates empty the files. Default 0.
    pub space_slack_bytes: u64,
    /// Space amplification above which the budget does not apply and writers are slowed. Default
    /// 2.5.
    pub space_amp_hard: f64,
    /// Tiers of runs above which the newest ones are merged. A read probes one filter for each
    /// tier. Default 4.
    pub tiers_max: usize,
    /// Largest size of the next older tier that a merge includes, as a multiple of the tiers
    /// already included. Default 2.0.
    pub size_ratio: f64,
    /// Seconds without a write after which tiers are merged although there are few, within the
    /// budget, because a scan reads from each. Default 5; 0 disables this.
    pub merge_idle_s: u64,
    /// Bytes written since the last such job below which no flush or merge runs only to discover
    /// dead bytes. Default 256 MiB. In a small store it is a quarter of the live bytes if that is
    /// less, but at least 32 MiB.
    pub discover_bytes_min: u64,
    /// Size at which a relocation or sort starts its next value file. Default 128 MiB, at most
    /// 2 GiB.
    pub value_file_bytes_max: u64,
    /// Policy `nezha`: live bytes outside sorted files that trigger a sort of everything. Default 4
    /// GiB.
    pub sort_threshold_bytes: u64,
    /// Seconds between sorts of everything, for every policy but `wisckey`. Default 0; 0 disables
    /// this.
    pub sort_interval_s: u64,
    /// Part of that interval by which the times of the sorts are moved: stores with different parts
    /// sort at different times. From 0 to 1; default 0.
    pub sort_phase: f64,
    /// Bytes scanned for each byte sorted: a range is rewritten in key order after it was scanned
    /// this many times, half as many if its values are as long as a page, a quarter if they are at
    /// most 1 KiB long. Default 2.0; 0 disables this.
    pub scan_load_ratio: f64,
    /// Longest time in seconds that a change stays unflushed, so that a deleted range is freed
    /// although there are no writes. Default 300; 0 disables this.
    pub flush_interval_s: u64,
    /// Bytes of entries of idle regions that are re-appended at once, to free the segments they
    /// pin. Default 1 MiB.
    pub reappend_bytes_max: u64,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            policy: PolicyKind::Adaptive,
            budget_ratio: 0.25,
            space_amp_target: 2.0,
            space_slack_bytes: 0,
            space_amp_hard: 2.5,
            tiers_max: 4,
            size_ratio: 2.0,
            merge_idle_s: 5,
            discover_bytes_min: 256 << 20,
            value_file_bytes_max: 128 << 20,
            sort_threshold_bytes: 4 << 30,
            sort_interval_s: 0,
            sort_phase: 0.0,
            scan_load_ratio: 2.0,
            flush_interval_s: 300,
            reappend_bytes_max: 1 << 20,
        }
    }
}

impl GcOptions {
    /// Returns the live bytes for ratios of space: at least so many that the slack is within the
    /// target.
    pub(crate) fn weighed(&self, live_bytes: u64) -> u64 {
        let least = (live_bytes + self.space_slack_bytes) as f64 / self.space_amp_target;
        if self.space_slack_bytes == 0 { live_bytes } else { live_bytes.max(least as u64) }
    }

    /// Fails with [`Error::Invalid`] naming the first setting out of bounds.
    pub fn validate(&self) -> Result<()> {
        let within = |name: &str, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::invalid(format!("gc {name} is {value}; allowed are {low} to {high}")))
        };
        within("budget_ratio", self.budget_ratio, 0.0, 100.0)?;
        within("space_amp_target", self.space_amp_target, 1.05, 100.0)?;
        within("space_amp_hard", self.space_amp_hard, self.space_amp_target, 1000.0)?;
        within("space_slack_bytes", self.space_slack_bytes as f64, 0.0, (1u64 << 50) as f64)?;
        within("tiers_max", self.tiers_max as f64, 1.0, 64.0)?;
        within("size_ratio", self.size_ratio, 1.0, 100.0)?;
        within("discover_bytes_min", self.discover_bytes_min as f64, 0.0, (1u64 << 40) as f64)?;
        let file_max = (2u64 << 30) as f64;
        within("value_file_bytes_max", self.value_file_bytes_max as f64, 4096.0, file_max)?;
        within("sort_threshold_bytes", self.sort_threshold_bytes as f64, 1.0, (1u64 << 50) as f64)?;
        within("sort_interval_s", self.sort_interval_s as f64, 0.0, 1e9)?;
        within("sort_phase", self.sort_phase, 0.0, 1.0)?;
        within("scan_load_ratio", self.scan_load_ratio, 0.0, 1e6)?;
        within("reappend_bytes_max", self.reappend_bytes_max as f64, 4096.0, file_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_bounds_are_named() {
        assert!(GcOptions::default().validate().is_ok());
        let bad = GcOptions { space_amp_hard: 1.5, ..GcOptions::default() };
        assert!(bad.validate().unwrap_err().to_string().contains("space_amp_hard"));
        let bad = GcOptions { budget_ratio: f64::NAN, ..GcOptions::default() };
        assert!(bad.validate().unwrap_err().to_string().contains("budget_ratio"));
    }
}
