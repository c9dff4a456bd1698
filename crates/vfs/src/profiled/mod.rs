//! Emulated devices: a file system of which reads, writes and syncs take as long as a profile says.
//! Several devices on one disk are then as independent as devices are, and as slow as stated. A
//! [`SlowedVfs`] makes a real device slower by a factor.

mod slowed;

pub use slowed::{DeviceScale, SlowedVfs};

use crate::{AlignedBuf, Open, Vfs, VfsFile};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stele_types::{Cause, Clock, Error, Result};

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

/// An emulated device.
///
/// Invariant: it transfers the bytes of one operation at a time, and at most `queue_depth`
/// operations are in progress. An operation begins when one of the places is free, is transferred
/// after all earlier ones, and ends its latency after that.
#[derive(Debug)]
struct Device {
    profile: DeviceProfile,
    clock: Arc<dyn Sleep>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    transferred_at: u64,
    /// Times at which the operations in progress end; at most `queue_depth`.
    ends: BinaryHeap<Reverse<u64>>,
    written_at: u64,
}

impl Device {
    fn new(profile: DeviceProfile, clock: Arc<dyn Sleep>) -> Self {
        Self { profile, clock, state: Mutex::default() }
    }

    /// Starts a read; returns the time at which it ends.
    fn start_read(&self, bytes: u64) -> u64 {
        let DeviceProfile { read_latency, read_bytes_per_s, .. } = self.profile;
        self.start(read_latency, transfer_nanos(bytes, read_bytes_per_s), &mut self.state.lock())
    }

    /// Starts a write; returns the time at which it ends.
    fn start_write(&self, bytes: u64) -> u64 {
        let DeviceProfile { write_latency, write_bytes_per_s, .. } = self.profile;
        let state = &mut self.state.lock();
        let end = self.start(write_latency, transfer_nanos(bytes, write_bytes_per_s), state);
        state.written_at = state.written_at.max(end);
        end
    }

    /// Starts a sync, which begins after all writes before it; returns the time at which it ends.
    fn start_sync(&self) -> u64 {
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

    fn wait(&self, end: u64) {
        self.clock.sleep_until(end);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX >> 1)
}

fn transfer_nanos(bytes: u64, bytes_per_s: u64) -> u64 {
    (u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1))) as u64
}

/// Hinted reads that are remembered; the oldest is forgotten first.
const HINTS_MAX: usize = 1024;

#[derive(Debug)]
struct ProfiledFile {
    inner: Arc<dyn VfsFile>,
    device: Arc<Device>,
    hinted: Mutex<VecDeque<Hinted>>,
    written_at: Mutex<u64>,
}

#[derive(Debug)]
struct Hinted {
    offset: u64,
    bytes: u64,
    end: u64,
}

impl ProfiledFile {
    fn new(inner: Arc<dyn VfsFile>, device: Arc<Device>) -> Self {
        Self { inner, device, hinted: Mutex::default(), written_at: Mutex::new(0) }
    }

    /// Takes the hint that covers a read; returns the time at which its read ends.
    fn take_hinted(&self, offset: u64, bytes: u64) -> Option<u64> {
        let mut hinted = self.hinted.lock();
        let covers = |it: &Hinted| {
            it.offset <= offset && offset + bytes <= it.offset.saturating_add(it.bytes)
        };
        let at = hinted.iter().position(covers)?;
        hinted.remove(at).map(|it| it.end)
    }

    fn start_writing(&self, bytes: u64) -> u64 {
        let end = self.device.start_write(bytes);
        let mut written_at = self.written_at.lock();
        *written_at = end.max(*written_at);
        end
    }
}

impl crate::FileLayer for ProfiledFile {
    fn below(&self) -> &dyn VfsFile {
        &*self.inner
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let bytes = buffer.len() as u64;
        let hinted = self.take_hinted(offset, bytes);
        let end = hinted.unwrap_or_else(|| self.device.start_read(bytes));
        let got = self.inner.read_at(buffer, offset)?;
        self.device.wait(end);
        Ok(got)
    }

    fn read_cached_at(&self, _: &mut [u8], _: u64) -> Result<bool> {
        Ok(false)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        let end = self.device.start_read(bytes);
        let mut hinted = self.hinted.lock();
        if hinted.len() >= HINTS_MAX {
            hinted.pop_front();
        }
        hinted.push_back(Hinted { offset, bytes, end });
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()> {
        let bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let end = self.start_writing(bytes);
        self.inner.write_at(buffers, offset, cause)?;
        self.device.wait(end);
        Ok(())
    }

    fn start_write(
        &self,
        part: AlignedBuf,
        offset: u64,
        cause: Cause,
    ) -> Result<Option<AlignedBuf>> {
        let end = self.start_writing(part.len() as u64);
        let written = self.inner.start_write(part, offset, cause)?;
        if written.is_some() {
            self.device.wait(end);
        }
        Ok(written)
    }

    fn finish_writes(&self) -> Result<Vec<AlignedBuf>> {
        let written = self.inner.finish_writes()?;
        let end = *self.written_at.lock();
        self.device.wait(end);
        Ok(written)
    }

    fn sync_data(&self) -> Result<()> {
        let end = self.device.start_sync();
        self.inner.sync_data()?;
        self.device.wait(end);
        Ok(())
    }
}
