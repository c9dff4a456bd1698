//! Measuring: the clock of a store beside the times of its device.

use super::DeviceTimes;
use crate::VfsFile;
use std::sync::Arc;
use stele_types::{Clock, Result};

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
        if file.read_cached_at(buffer, offset)? {
            return Ok(buffer.len());
        }
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
