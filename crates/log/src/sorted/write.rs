//! Writer of a sorted value file.

use super::{RECORD_HEADER_BYTES, RecordFields, SortedTotals};
use crate::FileKind;
use crate::catalog::FileMeta;
use crate::dir::Name;
use crate::format::header::{FILE_HEADER_BYTES, FOOTER_BYTES};
use crate::format::{FileHeader, Footer, Magic};
use crate::segment::sidecar::record_bytes;
use crate::shared::Shared;
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use stele_types::checksum::crc32c;
use stele_types::command::check_pair;
use stele_types::{Cause, Error, FileId, Locator, Lsn, Result};
use stele_vfs::{AlignedBuf, VfsFile};

/// Bytes written at once: a device takes this much in few requests.
const BUFFER_BYTES: usize = 1 << 20;
/// Maximum bytes of a snapshot's file that are not synced.
const SYNC_BYTES: u64 = 8 << 20;

/// Writes values in key order to a new file, past the page cache if the options say so: data that
/// accumulates there is written when the file is synced, and the log's syncs wait for it. Dropping
/// an unfinished writer removes the file.
#[derive(Debug)]
pub struct SortedWriter {
    shared: Arc<Shared>,
    id: FileId,
    file: Arc<dyn VfsFile>,
    temporary: PathBuf,
    cause: Cause,
    /// Bytes before `buffer`: whole blocks if the file bypasses the page cache.
    written: u64,
    synced: u64,
    buffer: AlignedBuf,
    totals: SortedTotals,
    finished: bool,
}

impl SortedWriter {
    pub(crate) fn create(shared: Arc<Shared>, cause: Cause) -> Result<Self> {
        shared.poison.check()?;
        let id = shared.allocate_file();
        let temporary = shared.dir.path.join(format!("{}.tmp", Name::Sorted(id)));
        let file = shared.dir.create(&temporary, shared.dir.direct)?;
        let header = FileHeader { magic: Magic::Sorted, store: shared.dir.store, file: id };
        let mut buffer = AlignedBuf::in_large_pages();
        buffer.extend_from_slice(&header.encode());
        debug_assert_eq!(buffer.len(), FILE_HEADER_BYTES);
        let totals = SortedTotals::new();
        let (written, synced, finished) = (0, 0, false);
        Ok(Self { shared, id, file, temporary, cause, written, synced, buffer, totals, finished })
    }

    /// Returns the file's number.
    pub fn file(&self) -> FileId {
        self.id
    }

    /// Returns the bytes so far.
    pub fn bytes(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Adds a value. `version` is that of the operation that first wrote it. The locator is
    /// readable after [`SortedWriter::finish`]. Fails with `Invalid` when the file would exceed 4
    /// GiB.
    pub fn append(
        &mut self,
        key: &[u8],
        version: Lsn,
        expires_at_s: u64,
        value: &[u8],
    ) -> Result<Locator> {
        self.append_with_crc(key, version, expires_at_s, value, crc32c(value))
    }

    /// [`SortedWriter::append`] of a value with a known CRC-32C. A moved value keeps the checksum
    /// of its first write, which reveals damage on the way.
    pub fn append_with_crc(
        &mut self,
        key: &[u8],
        version: Lsn,
        expires_at_s: u64,
        value: &[u8],
        value_crc: u32,
    ) -> Result<Locator> {
        check_pair(key, value)?;
        let begin = self.bytes();
        let whole = (RECORD_HEADER_BYTES + 2 + key.len() + value.len() + FOOTER_BYTES) as u64;
        if begin + whole > u64::from(u32::MAX) {
            return Err(Error::invalid(
                "a sorted value file holds at most 4 GiB; finish it and begin another",
            ));
        }
        let mut fields = RecordFields {
            value_bytes: value.len() as u32,
            value_crc,
            version,
            expires_at_s,
            key_bytes: key.len() as u16,
            crc: 0,
        };
        fields.crc = fields.checksum(self.shared.dir.store, Lsn::new(self.id, begin as u32), key);
        self.buffer.extend_from_slice(&fields.encode());
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(&fields.key_bytes.to_le_bytes());
        let offset = self.bytes() as u32;
        self.buffer.extend_from_slice(value);
        self.count(key, version, value);
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        let (length, crc) = (fields.value_bytes, fields.value_crc);
        Ok(Locator { file: self.id, offset, length, crc })
    }

    /// Makes the file durable under its name and readable. Returns its number.
    pub fn finish(self) -> Result<FileId> {
        let shared = self.shared.clone();
        let mut sealed = [self.seal()?];
        publish(&shared, &mut sealed)?;
        let [sealed] = sealed;
        let id = sealed.id;
        sealed.keep();
        Ok(id)
    }

    /// Completes the file, staged: durable, but neither named nor readable.
    pub fn seal(mut self) -> Result<SealedFile> {
        self.shared.poison.check()?;
        let footer = Footer {
            magic: Magic::Sorted,
            file: self.id,
            data_end: self.bytes(),
            fields: self.totals.fields(),
        };
        self.buffer.extend_from_slice(&footer.encode());
        let end = self.bytes();
        let block_bytes = self.block_bytes();
        self.buffer.pad_to_multiple(block_bytes);
        self.write(self.buffer.len())?;
        if self.written > end {
            self.file.set_len(end).map_err(|error| self.shared.poison.unless_full(error))?;
        }
        // Durable before anything may refer to it: the file that held the values is removed next.
        // bug log.sorted_skip_sync: skip
        self.sync()?;
        self.finished = true;
        let meta = FileMeta {
            kind: FileKind::Sorted,
            bytes: end,
            payload_bytes: self.totals.payload_bytes,
            min_lsn: self.totals.min_version,
            max_lsn: self.totals.max_version,
            end: None,
            is_damaged: false,
        };
        let path = std::mem::take(&mut self.temporary);
        Ok(SealedFile { shared: self.shared.clone(), id: self.id, path, meta, is_kept: false })
    }

    fn count(&mut self, key: &[u8], version: Lsn, value: &[u8]) {
        let totals = &mut self.totals;
        totals.records += 1;
        totals.payload_bytes += record_bytes(key.len(), value.len() as u32);
        totals.min_version = totals.min_version.min(version);
        totals.max_version = totals.max_version.max(version);
    }

    /// Writes the whole blocks of the buffer. A snapshot's file is synced in between, so that the
    /// last sync, and concurrent syncs of the log, wait for little.
    fn flush(&mut self) -> Result<()> {
        self.write(self.buffer.len() / self.block_bytes() * self.block_bytes())?;
        if self.cause == Cause::Snapshot && self.written - self.synced >= SYNC_BYTES {
            self.sync()?;
        }
        Ok(())
    }

    /// Writes the first `bytes` of the buffer; the rest moves to the front.
    fn write(&mut self, bytes: usize) -> Result<()> {
        let (front, _) = self.buffer.split_at(bytes);
        let written = self.file.write_at(&[IoSlice::new(front)], self.written, self.cause);
        written.map_err(|error| self.shared.poison.unless_full(error))?;
        self.written += bytes as u64;
        self.buffer.copy_within(bytes.., 0);
        self.buffer.resize(self.buffer.len() - bytes);
        self.buffer.shrink_to(2 * BUFFER_BYTES);
        Ok(())
    }

    fn block_bytes(&self) -> usize {
        self.file.block_bytes().unwrap_or(1)
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync_data().map_err(|error| self.shared.poison.set(error))?;
        self.synced = self.written;
        Ok(())
    }
}

impl Drop for SortedWriter {
    fn drop(&mut self) {
        if !self.finished {
            // The next open removes what cannot be removed now.
            let _ = self.shared.dir.unlink(&self.temporary);
        }
    }
}

/// A complete, staged value file. Dropping it removes it, unless it was kept.
#[derive(Debug)]
pub struct SealedFile {
    shared: Arc<Shared>,
    id: FileId,
    path: PathBuf,
    meta: FileMeta,
    is_kept: bool,
}

impl SealedFile {
    /// Keeps the file: something durable refers to it, or may. It now belongs to the log.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for SealedFile {
    fn drop(&mut self) {
        // bug log.sealed_left: never
        if !self.is_kept {
            self.shared.catalog.write().remove(self.id);
            self.shared.handles.forget(u64::from(self.id.0));
            // The next open removes what cannot be removed now.
            let _ = self.shared.dir.unlink(&self.path);
        }
    }
}

pub(crate) fn publish(shared: &Shared, files: &mut [SealedFile]) -> Result<()> {
    shared.poison.check()?;
    let poison = |error| shared.poison.unless_full(error);
    let dir = &shared.dir;
    for file in files.iter_mut() {
        let path = dir.path_of(Name::Sorted(file.id));
        dir.vfs.rename(&file.path, &path).map_err(poison)?;
        file.path = path;
    }
    if !files.is_empty() {
        dir.sync().map_err(poison)?;
    }
    let mut catalog = shared.catalog.write();
    files.iter().for_each(|file| catalog.insert(file.id, file.meta));
    Ok(())
}
