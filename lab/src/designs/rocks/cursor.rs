//! Snapshot reads.

use super::db::{Db, Tier, check, slice};
use super::ffi;
use std::sync::Arc;
use stele_types::{Error, Result};

pub(super) struct Reading {
    pub(super) raw: *mut ffi::ReadOptions,
}

impl Reading {
    pub(super) fn new(tier: Tier, snapshot: Option<&Snapshot>) -> Self {
        // SAFETY: freed in `drop`; the snapshot exists at every read with these options.
        unsafe {
            let options = ffi::rocksdb_readoptions_create();
            if tier != Tier::All {
                ffi::rocksdb_readoptions_set_read_tier(options, tier as i32);
            }
            if let Some(snapshot) = snapshot {
                ffi::rocksdb_readoptions_set_snapshot(options, snapshot.raw);
            }
            Self { raw: options }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // SAFETY: created in `new`, freed once.
        unsafe { ffi::rocksdb_readoptions_destroy(self.raw) }
    }
}

#[derive(Debug)]
pub(super) struct Snapshot {
    raw: *const ffi::Snapshot,
    db: Arc<Db>,
}

// SAFETY: a snapshot is a number in the library's list, which a lock guards.
unsafe impl Send for Snapshot {}
// SAFETY: as above; reading with it does not change it.
unsafe impl Sync for Snapshot {}

impl Snapshot {
    pub(super) fn new(db: &Arc<Db>) -> Self {
        // SAFETY: the database is open for as long as the snapshot shares it.
        let raw = unsafe { ffi::rocksdb_create_snapshot(db.raw) };
        Self { raw, db: db.clone() }
    }

    /// Passes the value of `key` to `read`. The outer `None` means that it is not in memory, and
    /// only memory may be read.
    pub(super) fn get<T>(
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

    pub(super) fn cursor(&self) -> Cursor<'_> {
        self.db.cursor_with(Reading::new(Tier::All, Some(self)))
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // SAFETY: taken from this database, released once.
        unsafe { ffi::rocksdb_release_snapshot(self.db.raw, self.raw) }
    }
}

pub(crate) struct Cursor<'a> {
    raw: *mut ffi::Iterator,
    db: &'a Db,
    _options: Reading,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(raw: *mut ffi::Iterator, db: &'a Db, options: Reading) -> Self {
        Self { raw, db, _options: options }
    }

    /// Moves to the first key at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        // SAFETY: iterator and key are valid for the call.
        unsafe { ffi::rocksdb_iter_seek(self.raw, key.as_ptr().cast(), key.len()) }
    }

    /// Moves to the last key at or before `key`.
    pub(crate) fn seek_back(&mut self, key: &[u8]) {
        // SAFETY: iterator and key are valid for the call.
        unsafe { ffi::rocksdb_iter_seek_for_prev(self.raw, key.as_ptr().cast(), key.len()) }
    }

    /// Moves one key forward or backward. Requires a current pair.
    pub(crate) fn step(&mut self, forward: bool) {
        // SAFETY: `pair` was `Some`, so the iterator is valid, as both calls require.
        unsafe {
            match forward {
                true => ffi::rocksdb_iter_next(self.raw),
                false => ffi::rocksdb_iter_prev(self.raw),
            }
        }
    }

    /// Returns the current key and value; `None` past the ends.
    pub(crate) fn pair(&self) -> Result<Option<(&[u8], &[u8])>> {
        // SAFETY: on a valid iterator both slices stay valid until it moves, and moving takes `&mut
        // self`.
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
