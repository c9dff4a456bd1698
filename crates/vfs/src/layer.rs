//! File systems and files over others of their kind: a layer states only the calls that it changes.

use crate::{AlignedBuf, DirEntry, DirLock, FileSystem, Meter, Open, Pinned, Vfs, VfsFile};
use std::fmt::Debug;
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use stele_types::{Cause, Place, Result};

/// Defines the trait of layers over `$base`, of which every call goes below unless a layer states it.
macro_rules! layer {
    ($(#[$doc:meta])* $layer:ident: $base:ident;
     $(fn $name:ident(&self $(, $part:ident: $kind:ty)*) -> $result:ty;)*) => {
        $(#[$doc])*
        pub trait $layer: Send + Sync + Debug {
            /// Returns what is below.
            fn below(&self) -> &dyn $base;
            $(
                #[doc = concat!("Replaces [`", stringify!($base), "::", stringify!($name), "`].")]
                fn $name(&self $(, $part: $kind)*) -> $result {
                    self.below().$name($($part),*)
                }
            )*
        }

        impl<L: $layer> $base for L {
            $(fn $name(&self $(, $part: $kind)*) -> $result {
                $layer::$name(self $(, $part)*)
            })*
        }
    };
}

layer! {
    /// A file system over another one. Not to be imported beside [`Vfs`]: it has the same calls.
    VfsLayer: Vfs;
    fn open(&self, path: &Path, how: Open) -> Result<Arc<dyn VfsFile>>;
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    fn unlink(&self, path: &Path) -> Result<()>;
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    fn exists(&self, path: &Path) -> Result<bool>;
    fn lock(&self, path: &Path) -> Result<Box<dyn DirLock>>;
    fn lock_for_reading(&self, path: &Path) -> Result<Option<Box<dyn DirLock>>>;
    fn pin(&self, path: &Path) -> Result<Box<dyn Pinned>>;
    fn file_system(&self, file: &Path) -> Result<FileSystem>;
    fn free_bytes(&self, dir: &Path) -> Result<u64>;
    fn total_bytes(&self, dir: &Path) -> Result<u64>;
    fn can_reserve(&self, dir: &Path) -> Result<bool>;
    fn device_number(&self, dir: &Path) -> Result<u64>;
    fn place(&self, dir: &Path) -> Result<Option<Place>>;
    fn keeps_changes(&self) -> bool;
    fn random(&self) -> Result<u64>;
    fn meter(&self) -> &Meter;
}

layer! {
    /// A file over another one. Not to be imported beside [`VfsFile`]: it has the same calls.
    FileLayer: VfsFile;
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize>;
    fn read_cached_at(&self, buffer: &mut [u8], offset: u64) -> Result<bool>;
    fn will_read(&self, offset: u64, bytes: u64) -> ();
    fn write_at(&self, buffers: &[IoSlice<'_>], offset: u64, cause: Cause) -> Result<()>;
    fn start_write(&self, part: AlignedBuf, offset: u64, cause: Cause) -> Result<Option<AlignedBuf>>;
    fn finish_writes(&self) -> Result<Vec<AlignedBuf>>;
    fn sync_data(&self) -> Result<()>;
    fn allocate(&self, bytes: u64) -> Result<()>;
    fn set_len(&self, bytes: u64) -> Result<()>;
    fn len(&self) -> Result<u64>;
    fn block_bytes(&self) -> Option<usize>;
    fn path(&self) -> &Path;
}
