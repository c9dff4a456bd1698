//! RocksDB wrapper: every object frees itself, every failure is an [`Error`].
//!
//! The library is used through its C interface and not through a crate, because the crates build
//! the library from source or require one particular release.

use super::batch::Batch;
use super::cursor::{Cursor, Reading};
use super::ffi;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr;
use std::time::Duration;
use stele_types::{Error, Result};

/// Sources that a read may use (`rocksdb::ReadTier`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tier {
    /// Memory and device.
    All = 0,
    /// Memory only.
    Memory = 1,
    /// Data that survives a crash if there is no write-ahead log.
    Persisted = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    /// In the write-ahead log, synced.
    Synced,
    /// In the write-ahead log, not synced.
    Logged,
    /// In memory only.
    Volatile,
}

/// Properties that count background work.
const BACKGROUND: [&CStr; 4] = [
    c"rocksdb.mem-table-flush-pending",
    c"rocksdb.num-running-flushes",
    c"rocksdb.compaction-pending",
    c"rocksdb.num-running-compactions",
];
const SETTLE_POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Db {
    pub(super) raw: *mut ffi::Database,
    pub(super) path: PathBuf,
}

// SAFETY: RocksDB's `DB` may be used from any number of threads at once (c.h uses it as is).
unsafe impl Send for Db {}
// SAFETY: as above.
unsafe impl Sync for Db {}

/// Runs a call that reports failure through its last argument.
pub(super) fn check<T>(
    path: &Path,
    op: &'static str,
    call: impl FnOnce(*mut *mut c_char) -> T,
) -> Result<T> {
    let mut error: *mut c_char = ptr::null_mut();
    let out = call(&mut error);
    if error.is_null() {
        return Ok(out);
    }
    // SAFETY: a non-null error is a C string that the library allocated for its caller.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above; it is not used afterwards.
    unsafe { ffi::rocksdb_free(error.cast()) };
    match text.contains("No space left") {
        true => Err(Error::NoSpace(path.to_path_buf())),
        false => {
            Err(Error::Io { op, path: path.to_path_buf(), source: std::io::Error::other(text) })
        }
    }
}

/// Returns the bytes at `data`; empty for a null pointer.
///
/// # Safety
/// `data` is null, or points to `bytes` bytes that are valid and unchanged for `'a`.
pub(super) unsafe fn slice<'a>(data: *const c_char, bytes: usize) -> &'a [u8] {
    if data.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: required of the caller.
    unsafe { std::slice::from_raw_parts(data.cast(), bytes) }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid("a text for RocksDB contains a zero byte"))
}

impl Db {
    /// Opens the database in `path` with options in RocksDB's format (`name=value;..`).
    pub(crate) fn open(path: &Path, options: &str) -> Result<Self> {
        // SAFETY: as `open_by` requires.
        Self::open_by(path, options, |options, name, error| unsafe {
            ffi::rocksdb_open(options, name, error)
        })
    }

    /// Opens the database read-only.
    pub(crate) fn open_to_read(path: &Path, options: &str) -> Result<Self> {
        // SAFETY: as `open_by` requires.
        Self::open_by(path, options, |options, name, error| unsafe {
            ffi::rocksdb_open_for_read_only(options, name, 0, error)
        })
    }

    /// Opens with `call`; its options and name are valid until it returns.
    fn open_by(
        path: &Path,
        options: &str,
        call: impl FnOnce(*const ffi::Options, *const c_char, *mut *mut c_char) -> *mut ffi::Database,
    ) -> Result<Self> {
        let name = c_string(&path.to_string_lossy())?;
        let text = c_string(options)?;
        // SAFETY: both objects are created here and freed below; the strings outlive the calls.
        unsafe {
            let (base, new) = (ffi::rocksdb_options_create(), ffi::rocksdb_options_create());
            let parsed = check(path, "parsing the options", |error| {
                ffi::rocksdb_get_options_from_string(base, text.as_ptr(), new, error);
            });
            let raw = parsed
                .and_then(|()| check(path, "opening", |error| call(new, name.as_ptr(), error)));
            ffi::rocksdb_options_destroy(base);
            ffi::rocksdb_options_destroy(new);
            Ok(Self { raw: raw?, path: path.to_path_buf() })
        }
    }

    pub(crate) fn write(&self, batch: &Batch, durability: Durability) -> Result<()> {
        // SAFETY: the options are valid in this block; the batch is not used meanwhile.
        unsafe {
            let options = ffi::rocksdb_writeoptions_create();
            ffi::rocksdb_writeoptions_set_sync(options, u8::from(durability == Durability::Synced));
            let volatile = i32::from(durability == Durability::Volatile);
            ffi::rocksdb_writeoptions_disable_WAL(options, volatile);
            let done = check(&self.path, "writing", |error| {
                ffi::rocksdb_write(self.raw, options, batch.raw, error);
            });
            ffi::rocksdb_writeoptions_destroy(options);
            done
        }
    }

    pub(crate) fn sync_log(&self) -> Result<()> {
        // SAFETY: the database is open while `self` exists.
        check(&self.path, "syncing the log", |error| unsafe {
            ffi::rocksdb_flush_wal(self.raw, 1, error);
        })
    }

    pub(crate) fn flush(&self) -> Result<()> {
        // SAFETY: the options are valid in this block and wait by default.
        unsafe {
            let options = ffi::rocksdb_flushoptions_create();
            let done = check(&self.path, "flushing", |error| {
                ffi::rocksdb_flush(self.raw, options, error);
            });
            ffi::rocksdb_flushoptions_destroy(options);
            done
        }
    }

    /// Flushes, and waits until no flush or compaction runs or is due.
    pub(crate) fn settle(&self) -> Result<()> {
        self.flush()?;
        while BACKGROUND.iter().any(|name| self.figure(name) > 0) {
            std::thread::sleep(SETTLE_POLL);
        }
        Ok(())
    }

    pub(crate) fn compact(&self) {
        // SAFETY: the database is open while `self` exists; null pointers are the ends of the key space.
        unsafe { ffi::rocksdb_compact_range(self.raw, ptr::null(), 0, ptr::null(), 0) }
    }

    /// Flushes, and creates a database of the same tables in `dir`, by hard links.
    pub(crate) fn checkpoint(&self, dir: &Path) -> Result<()> {
        let name = c_string(&dir.to_string_lossy())?;
        // SAFETY: database and name outlive the calls; the object is used and freed once, here.
        unsafe {
            let checkpoint = check(&self.path, "preparing a checkpoint", |error| {
                ffi::rocksdb_checkpoint_object_create(self.raw, error)
            })?;
            let done = check(dir, "making a checkpoint", |error| {
                ffi::rocksdb_checkpoint_create(checkpoint, name.as_ptr(), 0, error);
            });
            ffi::rocksdb_checkpoint_object_destroy(checkpoint);
            done
        }
    }

    /// Returns an integer property of the library (`rocksdb.` and its name); 0 if unknown.
    pub(crate) fn figure(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: both pointers are valid for the call.
        let found = unsafe { ffi::rocksdb_property_int(self.raw, name.as_ptr(), &mut value) };
        if found == 0 { value } else { 0 }
    }

    pub(crate) fn get<T>(
        &self,
        key: &[u8],
        tier: Tier,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        let options = Reading::new(tier, None);
        self.get_with(key, &options, read)
    }

    pub(super) fn get_with<T>(
        &self,
        key: &[u8],
        options: &Reading,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        // SAFETY: key and options are valid for the call; the slice is freed after its last use.
        unsafe {
            let found = check(&self.path, "reading", |error| {
                ffi::rocksdb_get_pinned(
                    self.raw,
                    options.raw,
                    key.as_ptr().cast(),
                    key.len(),
                    error,
                )
            })?;
            if found.is_null() {
                return Ok(None);
            }
            let mut bytes = 0;
            let data = ffi::rocksdb_pinnableslice_value(found, &mut bytes);
            let out = read(slice(data, bytes));
            ffi::rocksdb_pinnableslice_destroy(found);
            Ok(Some(out))
        }
    }

    pub(crate) fn cursor(&self) -> Cursor<'_> {
        self.cursor_with(Reading::new(Tier::All, None))
    }

    /// Reads up to `limit` pairs from `from` on. Returns their number and the bytes of their values.
    pub(crate) fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut pairs, mut bytes) = (0, 0);
        let mut cursor = self.cursor();
        cursor.seek(from);
        while pairs < limit
            && let Some((_, value)) = cursor.pair()?
        {
            (pairs, bytes) = (pairs + 1, bytes + value.len());
            cursor.step(true);
        }
        Ok((pairs, bytes))
    }

    pub(super) fn cursor_with(&self, options: Reading) -> Cursor<'_> {
        // SAFETY: database and options outlive the iterator, as the cursor's lifetime and field
        // ensure.
        let raw = unsafe { ffi::rocksdb_create_iterator(self.raw, options.raw) };
        Cursor::new(raw, self, options)
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; cursors and snapshots borrow or share `self`.
        unsafe { ffi::rocksdb_close(self.raw) }
    }
}
