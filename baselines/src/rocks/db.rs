//! RocksDB, owned: every object frees itself, every failure is an [`Error`].
//!
//! The library is reached through its C interface and not through a crate, because the crates build
//! the library from source or want one certain release of it.

use super::ffi;
use std::ffi::{CStr, CString, c_char};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::Arc;
use stele_types::{Error, Result};

/// What a read may look at (`rocksdb::ReadTier`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Everything.
    All = 0,
    /// What is in memory.
    Memory = 1,
    /// What a crash leaves, where there is no write-ahead log.
    Persisted = 2,
}

/// What becomes of a write before it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// In the write-ahead log, and the log on the device.
    Synced,
    /// In the write-ahead log, which the system writes when it likes.
    Logged,
    /// In memory.
    Volatile,
}

/// An open database.
#[derive(Debug)]
pub struct Db {
    raw: *mut ffi::Database,
    path: PathBuf,
}

// SAFETY: RocksDB's `DB` may be used from any number of threads at once (c.h uses it as is).
unsafe impl Send for Db {}
// SAFETY: as above.
unsafe impl Sync for Db {}

/// Runs a call that reports failure through its last argument.
fn check<T>(path: &Path, op: &'static str, call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error: *mut c_char = ptr::null_mut();
    let out = call(&mut error);
    if error.is_null() {
        return Ok(out);
    }
    // SAFETY: a non-null error is a C string that the library allocated for its caller.
    let text = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above; nothing refers to it any more.
    unsafe { ffi::rocksdb_free(error.cast()) };
    match text.contains("No space left") {
        true => Err(Error::NoSpace(path.to_path_buf())),
        false => Err(Error::Io { op, path: path.to_path_buf(), source: std::io::Error::other(text) }),
    }
}

/// The bytes at `data`; none when there are none.
///
/// # Safety
/// `data` is null, or points to `bytes` bytes that live and do not change for `'a`.
unsafe fn slice<'a>(data: *const c_char, bytes: usize) -> &'a [u8] {
    if data.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: what this function asks of its caller.
    unsafe { std::slice::from_raw_parts(data.cast(), bytes) }
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid("a text for RocksDB holds a zero byte"))
}

impl Db {
    /// Opens the database in `path` with options in RocksDB's own words (`name=value;..`).
    pub fn open(path: &Path, options: &str) -> Result<Self> {
        let name = c_string(&path.to_string_lossy())?;
        let text = c_string(options)?;
        // SAFETY: both objects are created here and freed below; the strings outlive the calls.
        unsafe {
            let (base, new) = (ffi::rocksdb_options_create(), ffi::rocksdb_options_create());
            let parsed = check(path, "parsing the options", |error| {
                ffi::rocksdb_get_options_from_string(base, text.as_ptr(), new, error);
            });
            let raw = parsed.and_then(|()| {
                check(path, "opening", |error| ffi::rocksdb_open(new, name.as_ptr(), error))
            });
            ffi::rocksdb_options_destroy(base);
            ffi::rocksdb_options_destroy(new);
            Ok(Self { raw: raw?, path: path.to_path_buf() })
        }
    }

    /// All of the batch, or nothing.
    pub fn write(&self, batch: &Batch, durability: Durability) -> Result<()> {
        // SAFETY: the options live from here to the end of the block; the batch is not used meanwhile.
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

    /// Puts the write-ahead log on the device.
    pub fn sync_log(&self) -> Result<()> {
        // SAFETY: the database is open for as long as `self` lives.
        check(&self.path, "syncing the log", |error| unsafe {
            ffi::rocksdb_flush_wal(self.raw, 1, error);
        })
    }

    /// Puts what is in memory on the device as tables.
    pub fn flush(&self) -> Result<()> {
        // SAFETY: the options live from here to the end of the block and wait by default.
        unsafe {
            let options = ffi::rocksdb_flushoptions_create();
            let done = check(&self.path, "flushing", |error| {
                ffi::rocksdb_flush(self.raw, options, error);
            });
            ffi::rocksdb_flushoptions_destroy(options);
            done
        }
    }

    /// A figure of the library (`rocksdb.` and its name), 0 when it has none of that name.
    pub fn figure(&self, name: &CStr) -> u64 {
        let mut value = 0;
        // SAFETY: both pointers are valid for the call.
        let found = unsafe { ffi::rocksdb_property_int(self.raw, name.as_ptr(), &mut value) };
        if found == 0 { value } else { 0 }
    }

    /// Gives the value under `key` to `read`.
    pub fn get<T>(&self, key: &[u8], tier: Tier, read: impl FnOnce(&[u8]) -> T) -> Result<Option<T>> {
        let options = Reading::new(tier, None);
        self.get_with(key, &options, read)
    }

    fn get_with<T>(
        &self,
        key: &[u8],
        options: &Reading,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>> {
        // SAFETY: key and options are valid for the call; the slice is freed after its last use.
        unsafe {
            let found = check(&self.path, "reading", |error| {
                ffi::rocksdb_get_pinned(self.raw, options.0, key.as_ptr().cast(), key.len(), error)
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

    /// A cursor over what is there now.
    pub fn cursor(&self) -> Cursor<'_> {
        self.cursor_with(Reading::new(Tier::All, None))
    }

    fn cursor_with(&self, options: Reading) -> Cursor<'_> {
        // SAFETY: database and options outlive the iterator, which the cursor's lifetime and its
        // field see to.
        let raw = unsafe { ffi::rocksdb_create_iterator(self.raw, options.0) };
        Cursor { raw, db: self, _options: options }
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; cursors and snapshots borrow or share `self`.
        unsafe { ffi::rocksdb_close(self.raw) }
    }
}

/// Read options.
struct Reading(*mut ffi::ReadOptions);

impl Reading {
    fn new(tier: Tier, snapshot: Option<&Snapshot>) -> Self {
        // SAFETY: freed in `drop`; the snapshot is alive at every read that is given these options.
        unsafe {
            let options = ffi::rocksdb_readoptions_create();
            if tier != Tier::All {
                ffi::rocksdb_readoptions_set_read_tier(options, tier as i32);
            }
            if let Some(snapshot) = snapshot {
                ffi::rocksdb_readoptions_set_snapshot(options, snapshot.raw);
            }
            Self(options)
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // SAFETY: created in `new`, freed once.
        unsafe { ffi::rocksdb_readoptions_destroy(self.0) }
    }
}

/// One point in time of a database.
#[derive(Debug)]
pub struct Snapshot {
    raw: *const ffi::Snapshot,
    db: Arc<Db>,
}

// SAFETY: a snapshot is a number in the library's list, which a lock guards.
unsafe impl Send for Snapshot {}
// SAFETY: as above; reading with it does not change it.
unsafe impl Sync for Snapshot {}

impl Snapshot {
    /// What `db` holds now.
    pub fn new(db: &Arc<Db>) -> Self {
        // SAFETY: the database is open for as long as the snapshot shares it.
        let raw = unsafe { ffi::rocksdb_create_snapshot(db.raw) };
        Self { raw, db: db.clone() }
    }

    /// Gives the value under `key` to `read`. `None` outside: it is not in memory, where only that
    /// may be looked at.
    pub fn get<T>(
        &self,
        key: &[u8],
        tier: Tier,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<Option<T>>> {
        match self.db.get_with(key, &Reading::new(tier, Some(self)), read) {
            Ok(found) => Ok(Some(found)),
            Err(Error::Io { source, .. }) if source.to_string().contains("Result incomplete") => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A cursor over that time.
    pub fn cursor(&self) -> Cursor<'_> {
        self.db.cursor_with(Reading::new(Tier::All, Some(self)))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // SAFETY: taken from this database, released once.
        unsafe { ffi::rocksdb_release_snapshot(self.db.raw, self.raw) }
    }
}

/// A place in the order of keys.
pub struct Cursor<'a> {
    raw: *mut ffi::Iterator,
    db: &'a Db,
    _options: Reading,
}

impl Cursor<'_> {
    /// To the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        // SAFETY: iterator and key are valid for the call.
        unsafe { ffi::rocksdb_iter_seek(self.raw, key.as_ptr().cast(), key.len()) }
    }

    /// To the last key at or before `key`.
    pub fn seek_back(&mut self, key: &[u8]) {
        // SAFETY: iterator and key are valid for the call.
        unsafe { ffi::rocksdb_iter_seek_for_prev(self.raw, key.as_ptr().cast(), key.len()) }
    }

    /// One key on, or back. On a pair only.
    pub fn step(&mut self, forward: bool) {
        // SAFETY: `pair` was `Some`, so the iterator is valid, as both calls ask.
        unsafe {
            match forward {
                true => ffi::rocksdb_iter_next(self.raw),
                false => ffi::rocksdb_iter_prev(self.raw),
            }
        }
    }

    /// Key and value here; `None` past the ends.
    pub fn pair(&self) -> Result<Option<(&[u8], &[u8])>> {
        // SAFETY: on a valid iterator both slices live until it moves, and moving takes `&mut self`.
        unsafe {
            if ffi::rocksdb_iter_valid(self.raw) == 0 {
                return check(&self.db.path, "iterating", |error| {
                    ffi::rocksdb_iter_get_error(self.raw, error);
                    None
                });
            }
            let (mut key_bytes, mut value_bytes) = (0, 0);
            let key = ffi::rocksdb_iter_key(self.raw, &mut key_bytes);
            let value = ffi::rocksdb_iter_value(self.raw, &mut value_bytes);
            Ok(Some((slice(key, key_bytes), slice(value, value_bytes))))
        }
    }
}

impl Drop for Cursor<'_> {
    fn drop(&mut self) {
        // SAFETY: created with the cursor, freed once, before its options.
        unsafe { ffi::rocksdb_iter_destroy(self.raw) }
    }
}

/// Changes that are made together.
pub struct Batch {
    raw: *mut ffi::WriteBatch,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// No change yet.
    pub fn new() -> Self {
        // SAFETY: freed in `drop`.
        Self { raw: unsafe { ffi::rocksdb_writebatch_create() } }
    }

    /// Sets `key` to the parts of the value, one after the other.
    pub fn put(&mut self, key: &[u8], value: [&[u8]; 2]) {
        let data = value.map(|part| part.as_ptr().cast::<c_char>());
        let bytes = value.map(<[u8]>::len);
        let (key, key_bytes) = (key.as_ptr().cast::<c_char>(), key.len());
        // SAFETY: one key and two parts, each with its length; the library copies them.
        unsafe {
            ffi::rocksdb_writebatch_putv(
                self.raw,
                1,
                &key,
                &key_bytes,
                2,
                data.as_ptr(),
                bytes.as_ptr(),
            );
        }
    }

    /// Removes `key`.
    pub fn delete(&mut self, key: &[u8]) {
        // SAFETY: the library copies the key.
        unsafe { ffi::rocksdb_writebatch_delete(self.raw, key.as_ptr().cast(), key.len()) }
    }

    /// Removes `start` (included) to `end` (excluded), unless that is nothing.
    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) {
        if start >= end {
            return;
        }
        // SAFETY: the library copies both keys.
        unsafe {
            ffi::rocksdb_writebatch_delete_range(
                self.raw,
                start.as_ptr().cast(),
                start.len(),
                end.as_ptr().cast(),
                end.len(),
            );
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: created in `new`, freed once.
        unsafe { ffi::rocksdb_writebatch_destroy(self.raw) }
    }
}
