//! A file of which the changed chunks are in memory and all others below.

use crate::content::{CHUNK_BYTES, Content, pieces};
use crate::{Meter, VfsFile};
use parking_lot::RwLock;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stele_types::size::format_bytes;
use stele_types::{Cause, Error, Result};

#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    used_bytes: AtomicU64,
}

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, used_bytes: AtomicU64::new(0) }
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.used_bytes.load(Ordering::Relaxed))
    }

    /// Takes `bytes`; returns false, having taken nothing, if fewer are left.
    fn take(&self, bytes: u64) -> bool {
        let sum = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct CowInode {
    below: Option<Below>,
    body: RwLock<Body>,
    budget: Arc<Budget>,
}

#[derive(Debug)]
struct Below {
    file: Arc<dyn VfsFile>,
    path: PathBuf,
}

#[derive(Debug, Default)]
struct Body {
    /// Bytes of the file below that are visible: fewer than it has after it was shortened here.
    below_bytes: u64,
    /// Length, and all chunks that were written here, completely.
    changes: Content,
}

impl Body {
    /// Returns how many of `bytes` at `offset` are below.
    fn part_below(&self, offset: u64, bytes: usize) -> usize {
        self.below_bytes.saturating_sub(offset).min(bytes as u64) as usize
    }
}

impl CowInode {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self { below: None, body: RwLock::default(), budget }
    }

    pub(super) fn of_below(
        file: Arc<dyn VfsFile>,
        path: &Path,
        budget: Arc<Budget>,
    ) -> Result<Self> {
        let mut body = Body { below_bytes: file.len()?, ..Body::default() };
        body.changes.set_len(body.below_bytes);
        let below = Some(Below { file, path: path.to_path_buf() });
        Ok(Self { below, body: RwLock::new(body), budget })
    }

    /// Returns the path of the file below; `None` if it was created here.
    pub(super) fn path_below(&self) -> Option<&PathBuf> {
        self.below.as_ref().map(|below| &below.path)
    }

    pub(super) fn len(&self) -> u64 {
        self.body.read().changes.len
    }

    fn read(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let body = self.body.read();
        let left = body.changes.len.saturating_sub(offset);
        let total = left.min(buffer.len() as u64) as usize;
        self.read_below(&body, &mut buffer[..total], offset)?;
        body.changes.read_chunks(&mut buffer[..total], offset);
        Ok(total)
    }

    /// Fills `buffer` from below; with zeros where nothing is below.
    fn read_below(&self, body: &Body, buffer: &mut [u8], offset: u64) -> Result<()> {
        let (old, new) = buffer.split_at_mut(body.part_below(offset, buffer.len()));
        new.fill(0);
        match &self.below {
            Some(below) if !old.is_empty() => below.file.read_exact_at(old, offset),
            _ => Ok(()),
        }
    }

    fn write(&self, data: &[u8], offset: u64, path: &Path) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let mut body = self.body.write();
        let new = pieces(offset, data.len()).filter(|(chunk, ..)| !body.changes.has_chunk(*chunk));
        let new_bytes = (new.count() * CHUNK_BYTES) as u64;
        if !self.budget.take(new_bytes) {
            return Err(Error::Refused(format!(
                "changes to {} would take more than {} of memory, where a command that changes \
                 nothing keeps them; start the node of the directory, or run `stele compact` on an \
                 embedded store, and repeat the command afterwards",
                path.display(),
                format_bytes(self.budget.bytes_max)
            )));
        }
        let copied = self.copy_edges(&mut body, data.len(), offset);
        if let Err(error) = copied {
            self.budget.give_back(new_bytes);
            return Err(error);
        }
        body.changes.write(data, offset);
        Ok(())
    }

    /// Copies the chunks from below that a write changes only in part.
    fn copy_edges(&self, body: &mut Body, bytes: usize, offset: u64) -> Result<()> {
        let mut copies = Vec::new();
        for (chunk, _, _, part) in pieces(offset, bytes) {
            let start = chunk * CHUNK_BYTES as u64;
            let below = body.part_below(start, CHUNK_BYTES);
            if part == CHUNK_BYTES || below == 0 || body.changes.has_chunk(chunk) {
                continue;
            }
            let mut old = vec![0; below];
            self.read_below(body, &mut old, start)?;
            copies.push((old, start));
        }
        copies.into_iter().for_each(|(old, start)| body.changes.write(&old, start));
        Ok(())
    }

    fn set_len(&self, len: u64) {
        let mut body = self.body.write();
        let before = body.changes.allocated_bytes(0);
        body.changes.set_len(len);
        self.budget.give_back(before - body.changes.allocated_bytes(0));
        // Bytes of a later, greater length are zeros.
        body.below_bytes = body.below_bytes.min(len);
    }
}

impl Drop for CowInode {
    fn drop(&mut self) {
        self.budget.give_back(self.body.get_mut().changes.allocated_bytes(0));
    }
}

/// A handle. Writes are complete when they return; syncs have nothing to do.
#[derive(Debug)]
pub(super) struct CopyFile {
    pub inode: Arc<CowInode>,
    pub path: PathBuf,
    pub write: bool,
    pub meter: Arc<Meter>,
}

impl CopyFile {
    fn writable(&self, op: &'static str) -> Result<()> {
        match self.write {
            true => Ok(()),
            false => Err(Error::io(op, &self.path, io::ErrorKind::PermissionDenied.into())),
        }
    }
}

impl VfsFile for CopyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        let got = self.inode.read(buffer, offset)?;
        self.meter.count_read(got as u64);
        Ok(got)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool> {
        let body = self.inode.body.read();
        let is_below = body.part_below(offset, buffer.len()) == buffer.len();
        match &self.inode.below {
            Some(below) if is_below && !body.changes.has_chunks(offset, buffer.len()) => {
                below.file.read_cached_at(buffer, offset)
            }
            _ => Ok(false),
        }
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        if let Some(below) = &self.inode.below {
            below.file.will_read(offset, bytes);
        }
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()> {
        self.writable("write")?;
        let mut at = offset;
        for buffer in buffers {
            self.inode.write(buffer, at, &self.path)?;
            at += buffer.len() as u64;
        }
        self.meter.count_write(cause, at - offset);
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        self.meter.count_sync();
        Ok(())
    }

    fn allocate(&self, _bytes: u64) -> Result<()> {
        self.writable("allocate")
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.writable("set length")?;
        self.inode.set_len(bytes);
        Ok(())
    }

    fn len(&self) -> Result<u64> {
        Ok(self.inode.len())
    }

    /// Returns `None`: every handle works like one through the page cache.
    fn block_bytes(&self) -> Option<usize> {
        None
    }

    fn path(&self) -> &Path {
        &self.path
    }
}
