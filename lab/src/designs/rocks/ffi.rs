//! Part of RocksDB's C interface (`rocksdb/c.h`) that is used here. The interface is stable: these
//! declarations fit every release since 6.

#![allow(missing_docs)]

use std::ffi::{c_char, c_int, c_uchar, c_void};

/// Object of the library, known only by its address.
macro_rules! opaque {
    ($($name:ident),+) => {
        $(#[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        })+
    };
}

opaque!(
    Database,
    Options,
    ReadOptions,
    WriteOptions,
    FlushOptions,
    WriteBatch,
    Iterator,
    Snapshot,
    PinnableSlice,
    Checkpoint
);

#[link(name = "rocksdb")]
unsafe extern "C" {
    pub(super) fn rocksdb_options_create() -> *mut Options;
    pub(super) fn rocksdb_options_destroy(options: *mut Options);
    pub(super) fn rocksdb_get_options_from_string(
        base: *const Options,
        text: *const c_char,
        new: *mut Options,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_open(
        options: *const Options,
        path: *const c_char,
        error: *mut *mut c_char,
    ) -> *mut Database;
    pub(super) fn rocksdb_open_for_read_only(
        options: *const Options,
        path: *const c_char,
        fails_if_log_exists: c_uchar,
        error: *mut *mut c_char,
    ) -> *mut Database;
    pub(super) fn rocksdb_close(db: *mut Database);
    pub(super) fn rocksdb_free(memory: *mut c_void);

    pub(super) fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    pub(super) fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    pub(super) fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, sync: c_uchar);
    pub(super) fn rocksdb_writeoptions_disable_WAL(options: *mut WriteOptions, disable: c_int);
    pub(super) fn rocksdb_write(
        db: *mut Database,
        options: *const WriteOptions,
        batch: *mut WriteBatch,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_flush_wal(db: *mut Database, sync: c_uchar, error: *mut *mut c_char);
    pub(super) fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    pub(super) fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);
    pub(super) fn rocksdb_compact_range(
        db: *mut Database,
        start: *const c_char,
        start_bytes: usize,
        end: *const c_char,
        end_bytes: usize,
    );
    pub(super) fn rocksdb_flush(
        db: *mut Database,
        options: *const FlushOptions,
        error: *mut *mut c_char,
    );

    pub(super) fn rocksdb_checkpoint_object_create(
        db: *mut Database,
        error: *mut *mut c_char,
    ) -> *mut Checkpoint;
    pub(super) fn rocksdb_checkpoint_create(
        checkpoint: *mut Checkpoint,
        path: *const c_char,
        log_size_for_flush: u64,
        error: *mut *mut c_char,
    );
    pub(super) fn rocksdb_checkpoint_object_destroy(checkpoint: *mut Checkpoint);

    pub(super) fn rocksdb_writebatch_create() -> *mut WriteBatch;
    pub(super) fn rocksdb_writebatch_destroy(batch: *mut WriteBatch);
    pub(super) fn rocksdb_writebatch_putv(
        batch: *mut WriteBatch,
        keys: c_int,
        key_parts: *const *const c_char,
        key_bytes: *const usize,
        values: c_int,
        value_parts: *const *const c_char,
        value_bytes: *const usize,
    );
    pub(super) fn rocksdb_writebatch_delete(
        batch: *mut WriteBatch,
        key: *const c_char,
        bytes: usize,
    );
    pub(super) fn rocksdb_writebatch_delete_range(
        batch: *mut WriteBatch,
        start: *const c_char,
        start_bytes: usize,
        end: *const c_char,
        end_bytes: usize,
    );

    pub(super) fn rocksdb_readoptions_create() -> *mut ReadOptions;
    pub(super) fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    pub(super) fn rocksdb_readoptions_set_snapshot(
        options: *mut ReadOptions,
        snapshot: *const Snapshot,
    );
    pub(super) fn rocksdb_readoptions_set_read_tier(options: *mut ReadOptions, tier: c_int);
    pub(super) fn rocksdb_create_snapshot(db: *mut Database) -> *const Snapshot;
    pub(super) fn rocksdb_release_snapshot(db: *mut Database, snapshot: *const Snapshot);
    pub(super) fn rocksdb_get_pinned(
        db: *mut Database,
        options: *const ReadOptions,
        key: *const c_char,
        bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut PinnableSlice;
    pub(super) fn rocksdb_pinnableslice_value(
        slice: *const PinnableSlice,
        bytes: *mut usize,
    ) -> *const c_char;
    pub(super) fn rocksdb_pinnableslice_destroy(slice: *mut PinnableSlice);

    pub(super) fn rocksdb_create_iterator(
        db: *mut Database,
        options: *const ReadOptions,
    ) -> *mut Iterator;
    pub(super) fn rocksdb_iter_destroy(iter: *mut Iterator);
    pub(super) fn rocksdb_iter_valid(iter: *const Iterator) -> c_uchar;
    pub(super) fn rocksdb_iter_seek(iter: *mut Iterator, key: *const c_char, bytes: usize);
    pub(super) fn rocksdb_iter_seek_for_prev(iter: *mut Iterator, key: *const c_char, bytes: usize);
    pub(super) fn rocksdb_iter_next(iter: *mut Iterator);
    pub(super) fn rocksdb_iter_prev(iter: *mut Iterator);
    pub(super) fn rocksdb_iter_key(iter: *const Iterator, bytes: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_value(iter: *const Iterator, bytes: *mut usize) -> *const c_char;
    pub(super) fn rocksdb_iter_get_error(iter: *const Iterator, error: *mut *mut c_char);

    pub(super) fn rocksdb_property_int(
        db: *mut Database,
        name: *const c_char,
        value: *mut u64,
    ) -> c_int;
}
