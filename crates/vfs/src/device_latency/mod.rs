//! Times of a device as a store measures them by its clock: the cost of its operations by their
//! size over the last seconds, and the age of the operation under way.

mod fit;
mod window;

use crate::VfsFile;
use parking_lot::Mutex;
use std::sync::Arc;
use stele_types::{Clock, DeviceSpeed, Result};
use window::Window;

/// Times of the operations of one device. A few kilobytes, whatever the load.
///
/// Every call states the time, so that a simulation can note durations that it draws.
#[derive(Debug, Default)]
pub struct DeviceTimes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    prior: DeviceSpeed,
    writes: Window,
    reads: Window,
    /// Starts of the appends under way; at most one for each thread that appends.
    under_way: Vec<u64>,
}

impl DeviceTimes {
    /// Creates the times of a device of which nothing is known.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the estimate that counts until enough operations are measured.
    pub fn set_prior(&self, prior: DeviceSpeed) {
        self.0.lock().prior = DeviceSpeed { writes: 0, reads: 0, ..prior };
    }

    /// Notes a write of `bytes` with its sync.
    pub fn note_write(&self, begin_nanos: u64, end_nanos: u64, bytes: u64) {
        self.0.lock().writes.note(end_nanos, bytes, end_nanos.saturating_sub(begin_nanos));
    }

    /// Notes a read of `bytes` that needed the device.
    pub fn note_read(&self, begin_nanos: u64, end_nanos: u64, bytes: u64) {
        self.0.lock().reads.note(end_nanos, bytes, end_nanos.saturating_sub(begin_nanos));
    }

    /// Notes that an append begins; [`DeviceTimes::append_ended`] names the same time.
    pub fn append_began(&self, now_nanos: u64) {
        self.0.lock().under_way.push(now_nanos);
    }

    /// Notes that the append that began at `began_nanos` ended, or failed.
    pub fn append_ended(&self, began_nanos: u64) {
        let under_way = &mut self.0.lock().under_way;
        if let Some(at) = under_way.iter().position(|began| *began == began_nanos) {
            under_way.swap_remove(at);
        }
    }

    /// Returns the age of the oldest append under way; 0 without one.
    pub fn append_age_nanos(&self, now_nanos: u64) -> u64 {
        let oldest = self.0.lock().under_way.iter().min().copied();
        oldest.map_or(0, |began| now_nanos.saturating_sub(began))
    }

    /// Returns the 99th percentile of the writes in the window, and at least the age of the append
    /// under way; 0 without any.
    ///
    /// Invariant: a device that hangs shows. Its write does not end, so that no duration tells.
    pub fn write_p99_nanos(&self, now_nanos: u64) -> u64 {
        let age_nanos = self.append_age_nanos(now_nanos);
        // bug vfs.hanging_write_unseen: let age_nanos = 0;
        self.0.lock().writes.p99_nanos(now_nanos).max(age_nanos)
    }

    /// Returns the speed of the device over the last seconds; the estimate, with a count of 0, for
    /// operations of which too few were measured.
    pub fn speed(&self, now_nanos: u64) -> DeviceSpeed {
        let state = self.0.lock();
        let (write, writes) = state.writes.cost(now_nanos, state.prior.write);
        let (read, reads) = state.reads.cost(now_nanos, state.prior.read);
        DeviceSpeed { write, read, writes, reads }
    }
}

/// Times of a device, and the clock that measures them.
#[derive(Clone, Debug)]
pub struct DeviceTimer {
    times: Arc<DeviceTimes>,
    clock: Arc<dyn Clock>,
}

/// An append under way, until it is dropped.
#[derive(Debug)]
pub struct UnderWay<'a> {
    times: &'a DeviceTimes,
    began_nanos: u64,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.times.append_ended(self.began_nanos);
    }
}

impl DeviceTimer {
    /// Creates the times of a device, measured by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { times: Arc::default(), clock }
    }

    /// Returns the times.
    pub fn times(&self) -> &Arc<DeviceTimes> {
        &self.times
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Notes an append under way. Called before it waits for any lock, so that its age also shows a
    /// device that hangs in another thread's write.
    pub fn append(&self) -> UnderWay<'_> {
        let began_nanos = self.clock.monotonic_nanos();
        self.times.append_began(began_nanos);
        UnderWay { times: &self.times, began_nanos }
    }

    /// Returns the time at which a write begins.
    pub fn write_begins(&self) -> u64 {
        self.clock.monotonic_nanos()
    }

    /// Notes the end of a write of `bytes` and its sync.
    pub fn write_ended(&self, begin_nanos: u64, bytes: u64) {
        self.times.note_write(begin_nanos, self.clock.monotonic_nanos(), bytes);
    }

    /// Reads like [`VfsFile::read_at`]. Measures the read if the page cache does not hold all of it.
    pub fn read_at(&self, file: &dyn VfsFile, buffer: &mut [u8], offset: u64) -> Result<usize> {
        match file.read_cached_at(buffer, offset)? {
            true => Ok(buffer.len()),
            false => self.read_missed_at(file, buffer, offset),
        }
    }

    /// Reads like [`VfsFile::read_at`] and measures the read: the page cache did not hold all of it.
    pub fn read_missed_at(
        &self,
        file: &dyn VfsFile,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        let begin_nanos = self.clock.monotonic_nanos();
        let got = file.read_at(buffer, offset)?;
        self.times.note_read(begin_nanos, self.clock.monotonic_nanos(), got as u64);
        Ok(got)
    }

    /// The same for [`VfsFile::read_exact_at`].
    pub fn read_exact_at(&self, file: &dyn VfsFile, buffer: &mut [u8], offset: u64) -> Result<()> {
        if file.read_cached_at(buffer, offset)? {
            return Ok(());
        }
        let begin_nanos = self.clock.monotonic_nanos();
        file.read_exact_at(buffer, offset)?;
        self.times.note_read(begin_nanos, self.clock.monotonic_nanos(), buffer.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::OpCost;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_speed_is_the_estimate_until_enough_operations_are_measured() {
        let times = DeviceTimes::new();
        assert_eq!(times.speed(0), DeviceSpeed::default());
        let write = OpCost { fixed_nanos: 1_000, picos_per_byte: 10 };
        times.set_prior(DeviceSpeed { write, writes: 99, ..DeviceSpeed::default() });
        assert_eq!(times.speed(SECOND), DeviceSpeed { write, ..DeviceSpeed::default() });
        for n in 0..10 {
            times.note_write(SECOND, SECOND + 50_000 + n * 4096, n * 4096);
            times.note_read(SECOND, SECOND + 90_000, 4096);
        }
        let speed = times.speed(SECOND);
        assert_eq!(speed.write, OpCost { fixed_nanos: 50_000, picos_per_byte: 1_000 });
        assert_eq!(speed.read, OpCost { fixed_nanos: 90_000, picos_per_byte: 0 });
        assert_eq!((speed.writes, speed.reads), (10, 10));
        assert_eq!(times.speed(60 * SECOND).write, write, "an idle device is estimated again");
    }

    #[test]
    fn an_append_that_does_not_end_counts_with_its_age() {
        let times = DeviceTimes::new();
        times.note_write(0, 1_000, 4096);
        times.append_began(1_000);
        times.append_began(3_000);
        assert_eq!(times.append_age_nanos(5_000), 4_000);
        assert_eq!(times.write_p99_nanos(5_000), 4_000);
        times.append_ended(1_000);
        assert_eq!(times.append_age_nanos(5_000), 2_000);
        times.append_ended(3_000);
        assert_eq!((times.append_age_nanos(5_000), times.write_p99_nanos(5_000)), (0, 1_000));
    }
}
