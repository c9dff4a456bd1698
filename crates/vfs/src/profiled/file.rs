//! A file on an emulated device.

use super::device::Device;
use crate::{AlignedBuf, VfsFile};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use stele_types::{Cause, Result};

/// Hinted reads that are remembered; the oldest is forgotten first.
const HINTS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct ProfiledFile {
    inner: Arc<dyn VfsFile>,
    device: Arc<Device>,
    hinted: Mutex<VecDeque<Hinted>>,
    /// Time at which the started writes of this file end.
    written_at: Mutex<u64>,
}

/// A read that was started by a hint.
#[derive(Debug)]
struct Hinted {
    offset: u64,
    bytes: u64,
    end: u64,
}

impl ProfiledFile {
    pub(super) fn new(inner: Arc<dyn VfsFile>, device: Arc<Device>) -> Self {
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
