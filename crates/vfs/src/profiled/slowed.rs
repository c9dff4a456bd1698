//! A device that is slower than the real one by a factor, which may change while it is in use.

use super::Sleep;
use crate::{AlignedBuf, Open, Vfs, VfsFile};
use parking_lot::Mutex;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use stele_types::{Cause, Error, Result};

/// Factor by which the operations of a device take longer; shared by the device and by the caller
/// that changes it.
#[derive(Debug)]
pub struct DeviceScale(AtomicU32);

impl DeviceScale {
    /// Greatest factor.
    pub const FACTOR_MAX: u32 = 1000;

    /// Creates the factor 1: the device is as fast as it is.
    pub fn new() -> Self {
        Self(AtomicU32::new(1))
    }

    /// Changes the factor; operations that end later take so many times as long. Fails with `Invalid`
    /// outside 1 to [`Self::FACTOR_MAX`].
    pub fn set(&self, factor: u32) -> Result<()> {
        if !(1..=Self::FACTOR_MAX).contains(&factor) {
            let text =
                format!("a device can be 1 to {} times slower, not {factor}", Self::FACTOR_MAX);
            return Err(Error::invalid(text));
        }
        self.0.store(factor, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the factor.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for DeviceScale {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Default for DeviceScale {
    fn default() -> Self {
        Self::new()
    }
}

/// A file system of which reads, writes and syncs take a [`DeviceScale`] of their real time.
#[derive(Debug)]
pub struct SlowedVfs {
    inner: Arc<dyn Vfs>,
    device: Scaled,
}

#[derive(Clone, Debug)]
struct Scaled {
    scale: Arc<DeviceScale>,
    clock: Arc<dyn Sleep>,
}

impl SlowedVfs {
    /// Makes the device of `inner` slower by `scale`.
    pub fn new(inner: Arc<dyn Vfs>, scale: Arc<DeviceScale>, clock: Arc<dyn Sleep>) -> Self {
        Self { inner, device: Scaled { scale, clock } }
    }
}

impl Scaled {
    fn now(&self) -> u64 {
        self.clock.monotonic_nanos()
    }

    /// Invariant: an operation that began at `begin` returns when the factor of its real time is over;
    /// the factor is that at its end.
    fn stretch(&self, begin: u64) {
        let factor = self.scale.get();
        // bug vfs.scale_ignored: always
        if factor <= 1 {
            return;
        }
        let real = self.now().saturating_sub(begin);
        self.clock.sleep_until(begin.saturating_add(real.saturating_mul(factor.into())));
    }

    fn run<T>(&self, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let begin = self.now();
        let result = operation();
        self.stretch(begin);
        result
    }
}

impl crate::VfsLayer for SlowedVfs {
    fn below(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        let inner = self.inner.open(path, how)?;
        let device = self.device.clone();
        Ok(Arc::new(ScaledFile { inner, device, started: Mutex::new(None) }))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.device.run(|| self.inner.sync_dir(dir))
    }
}

/// A file on it. Reads of the page cache stay as fast: it is not the device.
#[derive(Debug)]
struct ScaledFile {
    inner: Arc<dyn VfsFile>,
    device: Scaled,
    /// Start of the first of the writes that are not finished.
    started: Mutex<Option<u64>>,
}

impl crate::FileLayer for ScaledFile {
    fn below(&self) -> &dyn VfsFile {
        &*self.inner
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.device.run(|| self.inner.read_at(buffer, offset))
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()> {
        self.device.run(|| self.inner.write_at(buffers, offset, cause))
    }

    fn start_write(
        &self,
        part: AlignedBuf,
        offset: u64,
        cause: Cause,
    ) -> Result<Option<AlignedBuf>> {
        let begin = self.device.now();
        let written = self.inner.start_write(part, offset, cause)?;
        match written {
            Some(_) => self.device.stretch(begin),
            None => {
                self.started.lock().get_or_insert(begin);
            }
        }
        Ok(written)
    }

    fn finish_writes(&self) -> Result<Vec<AlignedBuf>> {
        let written = self.inner.finish_writes();
        if let Some(begin) = self.started.lock().take() {
            self.device.stretch(begin);
        }
        written
    }

    fn sync_data(&self) -> Result<()> {
        self.device.run(|| self.inner.sync_data())
    }
}
