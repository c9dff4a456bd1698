//! Times at which an emulated device ends its operations.

use super::{DeviceProfile, Sleep};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

/// An emulated device.
///
/// Invariant: it transfers the bytes of one operation at a time, and at most `queue_depth`
/// operations are in progress. An operation begins when one of the places is free, is transferred
/// after all earlier ones, and ends its latency after that.
#[derive(Debug)]
pub(super) struct Device {
    profile: DeviceProfile,
    clock: Arc<dyn Sleep>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Time at which the last transfer ends.
    transferred_at: u64,
    /// Times at which the operations in progress end; at most `queue_depth`.
    ends: BinaryHeap<Reverse<u64>>,
    /// Time at which the last write ends.
    written_at: u64,
}

impl Device {
    pub(super) fn new(profile: DeviceProfile, clock: Arc<dyn Sleep>) -> Self {
        Self { profile, clock, state: Mutex::default() }
    }

    /// Starts a read; returns the time at which it ends.
    pub(super) fn start_read(&self, bytes: u64) -> u64 {
        let DeviceProfile { read_latency, read_bytes_per_s, .. } = self.profile;
        self.start(read_latency, transfer_nanos(bytes, read_bytes_per_s), &mut self.state.lock())
    }

    /// Starts a write; returns the time at which it ends.
    pub(super) fn start_write(&self, bytes: u64) -> u64 {
        let DeviceProfile { write_latency, write_bytes_per_s, .. } = self.profile;
        let state = &mut self.state.lock();
        let end = self.start(write_latency, transfer_nanos(bytes, write_bytes_per_s), state);
        state.written_at = state.written_at.max(end);
        end
    }

    /// Starts a sync, which begins after all writes before it; returns the time at which it ends.
    pub(super) fn start_sync(&self) -> u64 {
        let written_at = self.state.lock().written_at;
        self.clock.monotonic_nanos().max(written_at) + nanos(self.profile.sync_latency)
    }

    fn start(&self, latency: Duration, transfer: u64, state: &mut State) -> u64 {
        let mut begin = self.clock.monotonic_nanos();
        if state.ends.len() >= self.profile.queue_depth
            && let Some(Reverse(end)) = state.ends.pop()
        {
            begin = begin.max(end);
        }
        // bug vfs.profile_transfers_overlap: skip
        begin = begin.max(state.transferred_at);
        state.transferred_at = begin + transfer;
        let end = begin + transfer + nanos(latency);
        state.ends.push(Reverse(end));
        end
    }

    pub(super) fn wait(&self, end: u64) {
        self.clock.sleep_until(end);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1)
}

fn transfer_nanos(bytes: u64, bytes_per_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1))) as u64
}
