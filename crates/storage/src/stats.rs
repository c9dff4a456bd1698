//! Statistics that every engine reports.

/// Sizes and counts of one store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Bytes of keys and values in applied operations.
    pub user_bytes: u64,
    /// Bytes written to the device, by cause name.
    pub written_bytes: Vec<(&'static str, u64)>,
    /// Bytes that the store takes on the device.
    pub disk_bytes: u64,
    /// Estimated bytes of live pairs, with what an engine stores beside each of them. A pair that was
    /// replaced or deleted counts until a merge has found that.
    pub live_bytes_estimate: u64,
    /// Bytes of memory in memtables and caches.
    pub memory_bytes: u64,
    /// Bytes of it in filters, fences and footers of the index, without cached pages.
    pub index_memory_bytes: u64,
    /// Reads of filters and fences that were not in memory.
    pub index_cold_reads: u64,
    /// Size of the device, shared with its other users; 0 when unknown.
    pub device_bytes: u64,
    /// Free bytes of the device, with those that it holds for this store.
    pub device_free_bytes: u64,
}

impl EngineStats {
    /// Returns write amplification: device bytes written per user byte.
    pub fn write_amp(&self) -> f64 {
        let written: u64 = self.written_bytes.iter().map(|(_, bytes)| bytes).sum();
        ratio(written, self.user_bytes)
    }

    /// Returns space amplification: device bytes per live byte, as estimated.
    pub fn space_amp(&self) -> f64 {
        ratio(self.disk_bytes, self.live_bytes_estimate)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
