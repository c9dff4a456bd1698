//! Emulated devices: a file system of which reads, writes and syncs take as long as a profile says.
//! Several devices on one disk are then as independent as devices are, and as slow as stated. A
//! [`SlowedVfs`] makes a real device slower by a factor.

mod device;
mod file;
mod slowed;
#[cfg(test)]
mod tests;

use crate::{Open, Vfs, VfsFile};
use device::Device;
use file::ProfiledFile;
pub use slowed::{DeviceScale, SlowedVfs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stele_types::{Clock, Error, Result};

/// A clock by which a caller can wait.
pub trait Sleep: Clock {
    /// Returns when [`Clock::monotonic_nanos`] is at least `monotonic_nanos`. Sleeps until then: a
    /// caller that waits for a device uses no processor.
    fn sleep_until(&self, monotonic_nanos: u64);
}

/// Times of an emulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProfile {
    /// Time of a read in addition to the transfer of its bytes.
    pub read_latency: Duration,
    /// The same for a write.
    pub write_latency: Duration,
    /// Time of a sync after the writes before it have ended.
    pub sync_latency: Duration,
    /// Bytes per second of reads; the device transfers the bytes of one operation at a time.
    pub read_bytes_per_s: u64,
    /// Bytes per second of writes.
    pub write_bytes_per_s: u64,
    /// Operations that the device serves at the same time: their latencies overlap.
    pub queue_depth: usize,
}

impl DeviceProfile {
    /// A flash device with writes in a protected buffer, about as fast as one of 2019.
    pub const FLASH: Self = Self {
        read_latency: Duration::from_micros(90),
        write_latency: Duration::from_micros(20),
        sync_latency: Duration::from_micros(50),
        read_bytes_per_s: 3_000_000_000,
        write_bytes_per_s: 1_200_000_000,
        queue_depth: 128,
    };

    /// Returns the profile of a stripe over `devices` such devices: their bandwidth and depth in
    /// one device.
    pub fn striped(&self, devices: usize) -> Self {
        Self {
            read_bytes_per_s: self.read_bytes_per_s.saturating_mul(devices as u64),
            write_bytes_per_s: self.write_bytes_per_s.saturating_mul(devices as u64),
            queue_depth: self.queue_depth.saturating_mul(devices),
            ..*self
        }
    }

    fn validate(&self) -> Result<()> {
        let all_set =
            self.read_bytes_per_s > 0 && self.write_bytes_per_s > 0 && self.queue_depth > 0;
        if all_set {
            return Ok(());
        }
        Err(Error::invalid("bandwidth and queue depth of a device profile must be above 0"))
    }
}

/// A file system on one emulated device.
///
/// It forwards every operation, and returns from reads, writes and syncs of files when the device
/// would have ended them. No read is answered from a page cache, so that each is a read of the
/// device. A hint ([`VfsFile::will_read`]) starts its read.
#[derive(Debug)]
pub struct ProfiledVfs {
    inner: Arc<dyn Vfs>,
    device: Arc<Device>,
}

impl ProfiledVfs {
    /// Creates a device with this profile on `inner`. Fails for a profile without bandwidth.
    pub fn new(inner: Arc<dyn Vfs>, profile: DeviceProfile, clock: Arc<dyn Sleep>) -> Result<Self> {
        profile.validate()?;
        Ok(Self { inner, device: Arc::new(Device::new(profile, clock)) })
    }
}

impl crate::VfsLayer for ProfiledVfs {
    fn below(&self) -> &dyn Vfs {
        &*self.inner
    }

    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>> {
        let inner = self.inner.open(path, how)?;
        Ok(Arc::new(ProfiledFile::new(inner, self.device.clone())))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        let end = self.device.start_sync();
        self.inner.sync_dir(dir)?;
        self.device.wait(end);
        Ok(())
    }
}
