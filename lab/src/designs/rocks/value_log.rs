//! WiscKey's value log, one append-only file: keys and values in apply order. Pointers to it are in
//! RocksDB. There is no garbage collection.
//!
//! ```text
//! record := key_bytes:u32be value_bytes:u32be key value
//! ```

use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use stele_types::{Error, Result, checksum};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pointer {
    pub offset: u64,
    pub length: u32,
    pub crc: u32,
}

#[derive(Debug)]
pub(super) struct ValueLog {
    file: File,
    path: PathBuf,
    end: Mutex<u64>,
}

/// Values to be written together by [`ValueLog::write`].
#[derive(Default)]
pub(super) struct Pending {
    bytes: Vec<u8>,
    begin: u64,
}

impl Pending {
    /// Adds a record. Returns the pointer to its value.
    pub(super) fn push(&mut self, key: &[u8], value: &[u8], crc: u32) -> Pointer {
        self.bytes.extend_from_slice(&(key.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(key);
        let offset = self.begin + self.bytes.len() as u64;
        self.bytes.extend_from_slice(value);
        Pointer { offset, length: value.len() as u32, crc }
    }
}

impl ValueLog {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |source| Error::io("open", path, source);
        let mut how = OpenOptions::new();
        let file = how.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(failed)?;
        let end = file.metadata().map_err(failed)?.len();
        Ok(Self { file, path: path.to_path_buf(), end: Mutex::new(end) })
    }

    /// Begins a write at the end. Only one thread may write.
    pub(super) fn begin(&self) -> Pending {
        Pending { bytes: Vec::new(), begin: *self.end.lock() }
    }

    /// Writes the added records to the page cache.
    pub(super) fn write(&self, pending: &Pending) -> Result<()> {
        let written = self.file.write_all_at(&pending.bytes, pending.begin);
        written.map_err(|source| Error::io("write", &self.path, source))?;
        *self.end.lock() = pending.begin + pending.bytes.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| Error::io("sync", &self.path, source))
    }

    /// Reads a value. Fails with `Corrupt` if it does not match its checksum.
    pub(super) fn read(&self, pointer: Pointer) -> Result<Vec<u8>> {
        let mut value = vec![0; pointer.length as usize];
        let read = self.file.read_exact_at(&mut value, pointer.offset);
        read.map_err(|source| Error::io("read", &self.path, source))?;
        if checksum::crc32c(&value) != pointer.crc {
            return Err(Error::corrupt(&self.path, pointer.offset, "a value fails its checksum"));
        }
        Ok(value)
    }
}
