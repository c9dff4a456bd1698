//! Atomic batches of changes.

use super::ffi;
use std::ffi::c_char;

pub(crate) struct Batch {
    pub(super) raw: *mut ffi::WriteBatch,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    pub(crate) fn new() -> Self {
        // SAFETY: freed in `drop`.
        Self { raw: unsafe { ffi::rocksdb_writebatch_create() } }
    }

    /// Sets `key` to the concatenated parts of the value.
    pub(crate) fn put(&mut self, key: &[u8], value: [&[u8]; 2]) {
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

    pub(crate) fn delete(&mut self, key: &[u8]) {
        // SAFETY: the library copies the key.
        unsafe { ffi::rocksdb_writebatch_delete(self.raw, key.as_ptr().cast(), key.len()) }
    }

    /// Deletes the keys from `start` to `end`, exclusive; nothing if the range is empty.
    pub(crate) fn delete_range(&mut self, start: &[u8], end: &[u8]) {
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
