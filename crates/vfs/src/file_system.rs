//! The file system that holds a store: what it is, how files in it are read and written, and what
//! to warn of. [`warnings`] is a pure function of these facts. A file system over another one is a
//! layer, which states only the calls that it changes.

use crate::{AlignedBuf, DirEntry, DirLock, Meter, Open, Pinned, Vfs, VfsFile};
use std::fmt::{self, Debug};
use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use stele_types::{Cause, Place, Result};

/// Kind of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsKind {
    /// ext2, ext3 or ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs: copies on write, and checks what it reads.
    Btrfs,
    /// Memory.
    Tmpfs,
    /// A layer over another file system, as in a container.
    Overlay,
    /// Such a layer over btrfs, tmpfs, or another one with direct I/O in name only.
    BufferedOverlay,
    /// A file system of another machine, with its name.
    Network(&'static str),
    /// A program serves the files.
    Fuse,
    /// Another one on a device, with its name.
    Local(&'static str),
    /// A simulated disk.
    Simulated,
    /// Unknown, with the number that the system returns for it; 0 if it returned none.
    Other(u64),
    /// It was not read.
    #[default]
    Unread,
}

impl fmt::Display for FsKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
            Self::Overlay | Self::BufferedOverlay => "overlay",
            Self::Network(name) | Self::Local(name) => name,
            Self::Fuse => "fuse",
            Self::Simulated => "simulated",
            Self::Other(number) => return write!(f, "unknown ({number:#x})"),
            Self::Unread => "unknown",
        })
    }
}

impl FsKind {
    /// Returns the kind with this number (`f_type` of `statfs`).
    pub(crate) fn of_number(number: u64) -> Self {
        match number {
            0xef53 => Self::Ext4,
            0x5846_5342 => Self::Xfs,
            0x9123_683e => Self::Btrfs,
            0x0102_1994 | 0x8584_58f6 => Self::Tmpfs,
            0x794c_7630 => Self::Overlay,
            0x6573_5546 => Self::Fuse,
            0x6969 => Self::Network("nfs"),
            0x517b | 0xfe53_4d42 | 0xff53_4d42 => Self::Network("smb"),
            0x00c3_6400 => Self::Network("ceph"),
            0x0102_1997 => Self::Network("9p"),
            0x5346_414f | 0x6b41_4653 => Self::Network("afs"),
            0x0bd0_0bd0 => Self::Network("lustre"),
            0x0116_1970 => Self::Network("gfs2"),
            0x7461_636f => Self::Network("ocfs2"),
            0x2fc1_2fc1 => Self::Local("zfs"),
            0xf2f5_2010 => Self::Local("f2fs"),
            0xca45_1a4e => Self::Local("bcachefs"),
            0x4d44 => Self::Local("vfat"),
            0x2011_bab0 => Self::Local("exfat"),
            number => Self::Other(number),
        }
    }

    /// Whether direct writes go through the page cache in spite of the name. Then files are read and
    /// written through the page cache: on btrfs a synced write costs the same in both modes (7 writes
    /// and 2 flushes of the device, also without copying on write), and a direct one of less than 4 KiB
    /// reads its block back, about once a write.
    pub(crate) fn is_direct_in_name_only(self) -> bool {
        matches!(self, Self::Btrfs | Self::Tmpfs | Self::BufferedOverlay)
    }

    /// Whether bytes that were allocated can be written later on a device that became full. btrfs
    /// writes each block to a new place, memory is promised to no file, and a network or a program
    /// promises nothing.
    pub fn can_reserve(self) -> bool {
        match self {
            Self::Btrfs | Self::Tmpfs | Self::BufferedOverlay => false,
            Self::Network(_) | Self::Fuse => false,
            Self::Local(name) => !matches!(name, "zfs" | "bcachefs"),
            _ => true,
        }
    }
}

/// Facts about the file system of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystem {
    /// Kind.
    pub kind: FsKind,
    /// Size of its blocks; 0 if unknown.
    pub block_bytes: u64,
    /// Alignment of direct operations; `None` where files go through the page cache.
    pub direct_bytes: Option<u64>,
}

impl FileSystem {
    /// Returns the name of how files are read and written.
    pub fn mode(&self) -> &'static str {
        if self.direct_bytes.is_some() { "direct" } else { "buffered" }
    }

    /// Returns the size of the unit in which files are written: that of direct operations, otherwise
    /// that of the file system's blocks.
    pub fn unit_bytes(&self) -> u64 {
        self.direct_bytes.unwrap_or(self.block_bytes)
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, mode, unit) = (self.kind, self.mode(), self.unit_bytes());
        write!(f, "{kind}, {mode}, blocks of {unit} bytes")
    }
}

/// Returns what an operator should know about a store on this file system, with the remedy.
pub fn warnings(of: &FileSystem) -> Vec<String> {
    const DEVICE: &str = "use a device of its own with ext4 or xfs";
    let mut warnings = Vec::new();
    match of.kind {
        FsKind::Btrfs => warnings.push(format!(
            "btrfs writes 72 KiB for each synced block of 4 KiB, and reserves no space for a full \
             device: {DEVICE}"
        )),
        FsKind::Tmpfs => warnings.push(format!(
            "tmpfs is memory: a restart of the machine loses everything that was acknowledged, and no \
             space is reserved; {DEVICE}"
        )),
        FsKind::BufferedOverlay => warnings.push(
            "the overlay lies on a file system such as btrfs or tmpfs, which has direct I/O in name only \
             and reserves no space for a full device, and its files go with the container: mount a \
             volume of ext4 or xfs for the store"
                .to_owned(),
        ),
        FsKind::Overlay => warnings.push(
            "an overlay belongs to a container, and its files go with it: mount a volume for the store"
                .to_owned(),
        ),
        FsKind::Network(name) => warnings.push(format!(
            "{name} is a file system of the network: a lock or a sync may not hold when it fails, and \
             replicas on it fail together; {DEVICE}, replicas replace shared storage"
        )),
        FsKind::Fuse => warnings.push(format!(
            "a program serves this file system (FUSE), and syncs are as durable as it makes them: \
             {DEVICE}"
        )),
        FsKind::Local("zfs" | "bcachefs") => warnings.push(format!(
            "{} copies on write and reserves no space for a full device: {DEVICE}",
            of.kind
        )),
        FsKind::Local("vfat" | "exfat") => warnings.push(format!(
            "{} has no journal, and a power cut may lose directories: {DEVICE}",
            of.kind
        )),
        FsKind::Ext4 | FsKind::Xfs if of.direct_bytes.is_none() => warnings.push(format!(
            "{} refuses direct I/O here, so values take room in the page cache: check the options of \
             the mount",
            of.kind
        )),
        FsKind::Other(_) => warnings.push(format!(
            "the file system is not one that Stele is tried on ({}): {DEVICE}",
            of.kind
        )),
        FsKind::Ext4 | FsKind::Xfs | FsKind::Local(_) | FsKind::Simulated | FsKind::Unread => {}
    }
    warnings
}

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
    fn write_zeroes(&self, bytes: u64) -> Result<bool>;
    fn set_len(&self, bytes: u64) -> Result<()>;
    fn len(&self) -> Result<u64>;
    fn block_bytes(&self) -> Option<usize>;
    fn path(&self) -> &Path;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_of(number: u64, direct_bytes: Option<u64>) -> FsKind {
        match FsKind::of_number(number) {
            FsKind::Overlay if direct_bytes.is_none() => FsKind::BufferedOverlay,
            kind => kind,
        }
    }

    #[test]
    fn each_file_system_has_its_mode_its_reserve_and_its_warning_with_a_remedy() {
        // Number of the system, alignment of direct operations; name, reserve, words of the warning.
        let direct = Some(512);
        let rows: [(u64, Option<u64>, &str, bool, &str); 14] = [
            (0xef53, direct, "ext4, direct, blocks of 512 bytes", true, ""),
            (0xef53, None, "ext4, buffered, blocks of 4096 bytes", true, "options of the mount"),
            (0x5846_5342, direct, "xfs, direct, blocks of 512 bytes", true, ""),
            (0x9123_683e, None, "btrfs, buffered, blocks of 4096 bytes", false, "ext4 or xfs"),
            (0x0102_1994, None, "tmpfs, buffered, blocks of 4096 bytes", false, "memory"),
            (0x794c_7630, direct, "overlay, direct, blocks of 512 bytes", true, "mount a volume"),
            (0x794c_7630, None, "overlay, buffered, blocks of 4096 bytes", false, "btrfs or tmpfs"),
            (0x6969, None, "nfs, buffered, blocks of 4096 bytes", false, "fail together"),
            (0xff53_4d42, None, "smb, buffered, blocks of 4096 bytes", false, "fail together"),
            (0x0102_1997, None, "9p, buffered, blocks of 4096 bytes", false, "fail together"),
            (0x6573_5546, None, "fuse, buffered, blocks of 4096 bytes", false, "FUSE"),
            (0x2fc1_2fc1, direct, "zfs, direct, blocks of 512 bytes", false, "reserves no space"),
            (0xf2f5_2010, direct, "f2fs, direct, blocks of 512 bytes", true, ""),
            (0x77, direct, "unknown (0x77), direct, blocks of 512 bytes", true, "not one that"),
        ];
        for (number, direct_bytes, text, can_reserve, words) in rows {
            let kind = kind_of(number, direct_bytes);
            let of = FileSystem { kind, block_bytes: 4096, direct_bytes };
            assert_eq!(of.to_string(), text);
            assert_eq!(kind.can_reserve(), can_reserve, "{text}");
            let warnings = warnings(&of).join("; ");
            assert_eq!(warnings.is_empty(), words.is_empty(), "{text}: {warnings}");
            assert!(warnings.contains(words), "{text}: {warnings}");
        }
        let unread = FileSystem::default();
        assert!(warnings(&unread).is_empty(), "nothing is said of what was not read");
        let in_name_only: Vec<FsKind> = rows.map(|(number, at, ..)| kind_of(number, at)).into();
        let expected = [FsKind::Btrfs, FsKind::Tmpfs, FsKind::BufferedOverlay];
        let in_name_only = in_name_only.into_iter().filter(|kind| kind.is_direct_in_name_only());
        assert_eq!(in_name_only.collect::<Vec<_>>(), expected);
    }
}
