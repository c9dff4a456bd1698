//! An open file of the machine, and the alignment that direct I/O needs on it.

use super::batch::KernelFile;
use super::or_current_dir;
use super::queue::{Queue, Queues, Write};
use super::zeroes::Zeroes;
use crate::aligned::{MEMORY_ALIGN_BYTES, check_direct};
use crate::{AlignedBuf, FsKind, Meter, VfsFile};
use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, FallocateFlags, Mode, OFlags, StatFs, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, Result};

/// Maximum buffers of one `pwritev` (`IOV_MAX` of Linux).
const BUFFERS_MAX: usize = 1024;

/// Longer direct reads are split into parts. Of two concurrent readers, each got 1.2 GB/s in parts
/// of 1 MiB and 0.7 GB/s in parts of 4 MiB (a virtio disk; one part is one request there).
const DIRECT_READ_BYTES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct RealFile {
    pub file: File,
    pub path: PathBuf,
    pub block_bytes: Option<usize>,
    pub meter: Arc<Meter>,
    pub queues: Arc<Queues>,
    pub queue: Mutex<Option<Queue>>,
    pub zeroes: Arc<Zeroes>,
}

impl RealFile {
    fn error(&self, op: &'static str, source: impl Into<io::Error>) -> Error {
        Error::io(op, &self.path, source.into())
    }

    /// Writes all bytes. Continues after partial writes (a signal, a nearly full device).
    fn write_one(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = retry_on_intr(|| rustix::io::pwrite(&self.file, bytes, offset))?;
            bytes = bytes.get(written..).filter(|_| written > 0).ok_or(io::ErrorKind::WriteZero)?;
            offset += written as u64;
        }
        Ok(())
    }

    /// Completes a write with the part that the queue did not write.
    fn finish_one(&self, write: Write, result: i64) -> io::Result<AlignedBuf> {
        let Write { part, offset, cause } = write;
        let written = match usize::try_from(result) {
            Ok(written) => written,
            Err(_) => return Err(io::Error::from_raw_os_error(-result as i32)),
        };
        self.write_one(part.get(written..).unwrap_or_default(), offset + written as u64)?;
        self.meter.count_write(cause, part.len() as u64);
        Ok(part)
    }

    /// Reads in several concurrent parts. Returns the number of bytes read from the front.
    fn read_parts(&self, buffer: &mut [u8], offset: u64, part_bytes: usize) -> usize {
        if buffer.len() <= part_bytes {
            return 0;
        }
        let Some(mut queue) = self.queues.take() else { return 0 };
        let got = queue.read(&self.file, buffer, offset, part_bytes);
        self.queues.put_back(queue);
        got
    }

    fn write_many(&self, buffers: &[IoSlice<'_>], mut offset: u64) -> io::Result<()> {
        let mut owned = buffers.to_vec();
        let mut rest = owned.as_mut_slice();
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(BUFFERS_MAX)];
            let written = retry_on_intr(|| rustix::io::pwritev(&self.file, some, offset))?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut rest, written);
            offset += written as u64;
        }
        Ok(())
    }
}

impl VfsFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize> {
        check_direct("read", &self.path, buffer, offset, self.block_bytes)?;
        let part_bytes = self.block_bytes.map_or(usize::MAX, |_| DIRECT_READ_BYTES_MAX);
        let mut got = self.read_parts(buffer, offset, part_bytes);
        // A direct read that ends inside a block has reached the end of the file; the next one
        // would start misaligned.
        let is_aligned =
            |got: usize| self.block_bytes.is_none_or(|bytes| got.is_multiple_of(bytes));
        while got < buffer.len() && is_aligned(got) {
            let end = buffer.len().min(got.saturating_add(part_bytes));
            match self.file.read_at(&mut buffer[got..end], offset + got as u64) {
                Ok(0) => break,
                Ok(bytes) => got += bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::failed_read(&self.path, offset + got as u64, e)),
            }
        }
        self.meter.count_read(got as u64);
        Ok(got)
    }

    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool> {
        if self.block_bytes.is_some() {
            return Ok(false);
        }
        let wanted = buffer.len();
        let mut buffers = [IoSliceMut::new(buffer)];
        // On any failure the caller falls back to a read that may wait and reports errors.
        let got = rustix::io::preadv2(&self.file, &mut buffers, offset, ReadWriteFlags::NOWAIT);
        let is_whole = got == Ok(wanted);
        if is_whole {
            self.meter.count_read(wanted as u64);
        }
        Ok(is_whole)
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        // A direct handle has no cache to read into.
        if self.block_bytes.is_none() {
            let bytes = std::num::NonZeroU64::new(bytes);
            let _hint_refused = rustix::fs::fadvise(&self.file, offset, bytes, Advice::WillNeed);
        }
    }

    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()> {
        let mut at = offset;
        for buffer in buffers {
            check_direct("write", &self.path, buffer, at, self.block_bytes)?;
            at += buffer.len() as u64;
        }
        let done = match buffers {
            [one] => self.write_one(one, offset),
            many => self.write_many(many, offset),
        };
        done.map_err(|e| self.error("write", e))?;
        self.meter.count_write(cause, at - offset);
        Ok(())
    }

    fn start_write(
        &self,
        part: AlignedBuf,
        offset: u64,
        cause: Cause,
    ) -> Result<Option<AlignedBuf>> {
        check_direct("write", &self.path, &part, offset, self.block_bytes)?;
        let mut write = Write { part, offset, cause };
        // Through the page cache a queued write would wait as well.
        if self.block_bytes.is_some() {
            let mut queue = self.queue.lock();
            if queue.is_none() {
                *queue = self.queues.take();
            }
            if let Some(queue) = queue.as_mut() {
                write = match queue.start(&self.file, write) {
                    Ok(()) => return Ok(None),
                    Err(write) => write,
                };
            }
        }
        self.write_at(&[IoSlice::new(&write.part)], offset, cause)?;
        Ok(Some(write.part))
    }

    fn finish_writes(&self) -> Result<Vec<AlignedBuf>> {
        let Some(mut queue) = self.queue.lock().take() else { return Ok(Vec::new()) };
        let writes = queue.finish().map_err(|e| self.error("write", e))?;
        self.queues.put_back(queue);
        let done = writes.into_iter().map(|(write, result)| self.finish_one(write, result));
        done.collect::<io::Result<Vec<_>>>().map_err(|e| self.error("write", e))
    }

    fn sync_data(&self) -> Result<()> {
        // Success means durable, including the length: counted only after the device confirmed.
        // bug vfs.skip_data_sync: return Ok(());
        retry_on_intr(|| rustix::fs::fdatasync(&self.file)).map_err(|e| self.error("sync", e))?;
        self.meter.count_sync();
        Ok(())
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let keep = FallocateFlags::KEEP_SIZE;
        match retry_on_intr(|| rustix::fs::fallocate(&self.file, keep, 0, bytes)) {
            Err(e) if e != Errno::OPNOTSUPP && e != Errno::NOSYS => Err(self.error("allocate", e)),
            _ => Ok(()),
        }
    }

    fn write_zeroes(&self, bytes: u64) -> Result<bool> {
        let device = self.file.metadata().map_err(|e| self.error("stat", e))?.dev();
        let done = self.zeroes.write(device, |flags| {
            retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, 0, bytes))
        });
        done.map_err(|e| self.error("write zeroes", e))
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.file.set_len(bytes).map_err(|e| self.error("set length", e))
    }

    fn len(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(|e| self.error("stat", e))?.len())
    }

    fn block_bytes(&self) -> Option<usize> {
        self.block_bytes
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn kernel_file(&self) -> Option<KernelFile<'_>> {
        let Self { file, queues, meter, .. } = self;
        self.block_bytes.map(|_| KernelFile { file, queues, meter })
    }
}

/// Returns the alignment of offsets and lengths for `file`, already open with `O_DIRECT`: as
/// reported by the kernel (since Linux 6.1), otherwise found by a probe in the same directory.
/// Returns `None` when direct writes do not work there, or go through the page cache.
pub(super) fn block_bytes(file: &File, path: &Path) -> Option<usize> {
    match reported(file) {
        Some(block_bytes) => usable(block_bytes),
        None if is_in_name_only(file, path) => None,
        None => probe(path.parent()?),
    }
}

fn is_in_name_only(file: &File, path: &Path) -> bool {
    let kind = rustix::fs::fstatfs(file).ok().zip(path.parent());
    kind.is_some_and(|(stat, dir)| kind_of(&stat, dir).is_direct_in_name_only())
}

/// Returns the kind of the file system of a directory. A layer hides what is below it, but a direct
/// write through it shows whether that one writes directly: then it refuses a length that is not a
/// multiple of the block.
pub(super) fn kind_of(stat: &StatFs, dir: &Path) -> FsKind {
    // The field is signed on some machines; the numbers have 32 bits.
    match FsKind::of_number(u64::from(stat.f_type as u32)) {
        FsKind::Overlay if accepts_any_length(dir).unwrap_or(false) => FsKind::BufferedOverlay,
        kind => kind,
    }
}

/// Returns whether a direct write of a part of a block succeeds; `None` if none can be tried.
fn accepts_any_length(dir: &Path) -> Option<bool> {
    const PART_BYTES: usize = 100;
    let zeros = AlignedBuf::zeroed(MEMORY_ALIGN_BYTES);
    let written = rustix::io::pwrite(unnamed(dir)?, zeros.get(..PART_BYTES)?, 0);
    Some(written.is_ok_and(|written| written == PART_BYTES))
}

/// Accepts only alignments that [`AlignedBuf`] also provides in memory.
fn usable(block_bytes: usize) -> Option<usize> {
    (block_bytes.is_power_of_two() && block_bytes <= MEMORY_ALIGN_BYTES).then_some(block_bytes)
}

fn reported(file: &File) -> Option<usize> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    // Memory must be aligned as well; one number for both keeps the requirement simple.
    Some(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize)
}

fn unnamed(dir: &Path) -> Option<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(or_current_dir(dir), flags, Mode::RUSR | Mode::WUSR).ok()
}

/// Tries writes into an unnamed file, smallest block first.
fn probe(dir: &Path) -> Option<usize> {
    let file = unnamed(dir)?;
    let zeros = AlignedBuf::zeroed(2 * MEMORY_ALIGN_BYTES);
    [512, MEMORY_ALIGN_BYTES].into_iter().find(|&block| {
        let part = &zeros[block..2 * block];
        rustix::io::pwrite(&file, part, block as u64).is_ok_and(|written| written == block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_agrees_with_what_the_kernel_reports() {
        let dir = std::env::temp_dir();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT;
        let Ok(file) = rustix::fs::open(&dir, flags, Mode::RUSR | Mode::WUSR) else { return };
        let Some(reported) = reported(&File::from(file)) else { return };
        if reported == 0 {
            return;
        }
        assert!(probe(&dir).is_some_and(|probed| probed <= reported.max(512)));
    }
}
