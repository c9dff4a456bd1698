//! Reads of independent values: each is handed out as soon as it is read.

use crate::Log;
use bytes::Bytes;
use stele_types::{Locator, Result};

/// Bytes that are requested from the device before the first of them is awaited. A longer value is
/// requested by itself.
const REQUESTED_BYTES_MAX: u64 = 4 << 20;

impl Log {
    /// Reads each value and passes it to `take` with its place in `at`: first those that the page
    /// cache holds, then the others in the order of their positions. The device works on many of
    /// them at the same time. Each value has its own buffer and its own result.
    pub fn read_each(&self, at: &[Locator], mut take: impl FnMut(usize, Result<Bytes>)) {
        let mut order: Vec<(usize, &Locator)> = at.iter().enumerate().collect();
        order.sort_unstable_by_key(|(_, at)| (at.file, at.offset));
        if order.len() > 1 {
            // A failed lookup is repeated as a read.
            order.retain(|&(i, at)| match self.get_cached(at) {
                Ok(Some(value)) => {
                    take(i, Ok(value));
                    false
                }
                _ => true,
            });
        }
        let (mut requested, mut pending_bytes) = (0, 0);
        for (read, &(i, at)) in order.iter().enumerate() {
            // The last one alone is read at once.
            while order.len() > read + 1
                && let Some((_, next)) = order.get(requested)
                && (pending_bytes < REQUESTED_BYTES_MAX || requested == read)
            {
                self.will_read(next);
                pending_bytes += u64::from(next.length);
                requested += 1;
            }
            let is_one = order.len() == 1;
            let value = if is_one { self.get(at) } else { self.shared.get_requested(at) };
            take(i, value);
            pending_bytes = pending_bytes.saturating_sub(u64::from(at.length));
        }
    }

    /// Requests a value from the device. A failure shows when the value is read.
    fn will_read(&self, at: &Locator) {
        let shared = &self.shared;
        let file = shared.value_name(at.file).and_then(|name| shared.handle(name));
        if let Ok(file) = file {
            file.will_read(u64::from(at.offset), u64::from(at.length));
        }
    }
}
