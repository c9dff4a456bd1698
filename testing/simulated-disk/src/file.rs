//! An open file of the simulated disk.

use super::Shared;
use super::names::InodeId;
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use stele_types::{Cause, Error, Result};
use stele_vfs::check_direct;
use stele_vfs::{AlignedBuf, VfsFile};

pub(super) struct SimFile {
    pub shared: Arc<Shared>,
    pub id: InodeId,
    pub path: PathBuf,
    pub block_bytes: Option<usize>,
    pub write: bool,
    /// Writes in progress. They change the file only when they are finished.
    pub started: Mutex<Vec<(AlignedBuf, u64, Cause)>>,
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({}, block {:?})", self.path.display(), self.block_bytes)
    }
}

impl SimFile {
    fn writable(&self, op: &'static str) -> Result<()> {
        if self.write {
            return Ok(());
        }
        Err(Error::io(op, &self.path, io::ErrorKind::PermissionDenied.into()))
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.shared.disk.lock().close(self.id);
    }
}

impl VfsFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        check_direct("read", &self.path, buffer, offset, self.block_bytes)?;
        let done = self.shared.disk.lock().read(self.id, &self.path, buffer, offset);
        let (got, stalled) = done?;
        self.shared.meter.count_read(got as u64);
        if stalled {
            self.shared.stall(&self.path);
        }
        Ok(got)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool> {
        let is_cached = self.shared.is_cached.load(Ordering::Relaxed);
        if self.block_bytes.is_some() || !is_cached {
            return Ok(false);
        }
        Ok(self.read_at(buffer, offset)? == buffer.len())
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()> {
        self.writable("write")?;
        let mut data = Vec::with_capacity(buffers.iter().map(|buffer| buffer.len()).sum());
        for buffer in buffers {
            let at = offset + data.len() as u64;
            check_direct("write", &self.path, buffer, at, self.block_bytes)?;
            data.extend_from_slice(buffer);
        }
        let bytes = data.len() as u64;
        let done = self.shared.disk.lock().write(self.id, &self.path, data.into(), offset, cause);
        let stalled = done?;
        self.shared.meter.count_write(cause, bytes);
        if stalled {
            self.shared.stall(&self.path);
        }
        Ok(())
    }

    fn start_write(
        &self,
        part: AlignedBuf,
        offset: u64,
        cause: Cause,
    ) -> Result<Option<AlignedBuf>> {
        self.writable("write")?;
        check_direct("write", &self.path, &part, offset, self.block_bytes)?;
        self.started.lock().push((part, offset, cause));
        Ok(None)
    }

    /// Finishes the writes in reverse order: no caller may depend on an order.
    fn finish_writes(&self) -> Result<Vec<AlignedBuf>> {
        let started = std::mem::take(&mut *self.started.lock());
        for (part, offset, cause) in started.iter().rev() {
            self.write_at(&[IoSlice::new(part)], *offset, *cause)?;
        }
        Ok(started.into_iter().map(|(part, _, _)| part).collect())
    }

    fn sync_data(&self) -> Result<()> {
        let done = self.shared.disk.lock().sync(self.id, &self.path);
        let stalled = done?;
        self.shared.meter.count_sync();
        if stalled {
            self.shared.stall(&self.path);
        }
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        self.writable("allocate")?;
        self.shared.disk.lock().allocate(self.id, &self.path, bytes)
    }

    fn write_zeroes(&self, bytes: u64) -> Result<bool> {
        self.writable("write zeroes")?;
        let mut disk = self.shared.disk.lock();
        if !disk.options.writes_zeroes {
            return Ok(false);
        }
        disk.allocate(self.id, &self.path, bytes)?;
        let longer = disk.len(self.id, &self.path)? < bytes;
        if longer { disk.set_len(self.id, &self.path, bytes).map(|()| true) } else { Ok(true) }
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.writable("set length")?;
        self.shared.disk.lock().set_len(self.id, &self.path, bytes)
    }

    fn len(&self) -> Result<u64> {
        self.shared.disk.lock().len(self.id, &self.path)
    }

    fn block_bytes(&self) -> Option<usize> {
        self.block_bytes
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
