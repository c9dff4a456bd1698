//! Windows of HTTP/2: bytes that clients may send before a request is read. Each connection has one.
//! Few connections get large ones, many get small ones, so that their sum is bounded.

use parking_lot::Mutex;

/// Smallest window, which HTTP/2 prescribes. A connection has it even if no share is left.
pub(super) const WINDOW_BYTES_MIN: u32 = 65_535;
/// Part of what is left that a connection gets.
const PART: u64 = 32;

#[derive(Debug)]
pub(super) struct Windows {
    bytes_max: u64,
    bytes: Mutex<u64>,
}

impl Windows {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, bytes: Mutex::new(0) }
    }

    pub(super) fn bytes(&self) -> u64 {
        *self.bytes.lock()
    }

    /// Returns whether new connections get only what HTTP/2 prescribes.
    pub(super) fn is_used_up(&self) -> bool {
        *self.bytes.lock() >= self.bytes_max
    }

    /// Returns the window of a new connection.
    pub(super) fn take(&self, window_bytes_max: u32) -> u32 {
        let mut bytes = self.bytes.lock();
        let part = self.bytes_max.saturating_sub(*bytes) / PART;
        let window_bytes = (part.min(u64::from(window_bytes_max)) as u32).max(WINDOW_BYTES_MIN);
        *bytes += u64::from(window_bytes);
        window_bytes
    }

    /// Returns the window of a connection that has ended.
    pub(super) fn give_back(&self, window_bytes: u32) {
        let mut bytes = self.bytes.lock();
        *bytes = bytes.saturating_sub(u64::from(window_bytes));
    }
}
