//! Device space that the file system holds for one store: the blocks of a file without content.
//! What frees space takes blocks from it. Stores of one file system thus hold different blocks.

use super::{Shared, place};
use crate::Options;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Error, Result};
use stele_vfs::{Create, Open, Vfs, VfsFile};

/// Name of the file that holds space, in the directory of a store.
pub const NAME: &str = "RESERVE";

#[derive(Debug, Default)]
pub(crate) struct Reserve {
    /// `None` where the file system reserves nothing, and without a reserve.
    file: Option<Arc<dyn VfsFile>>,
    held_bytes: u64,
}

impl Reserve {
    /// Opens the file of an earlier start, or creates it, before the store writes anything else. On a
    /// device with less than `least_bytes` free, its blocks are returned: recovery may need them.
    pub(crate) fn open(vfs: &Arc<dyn Vfs>, dir: &Path, least_bytes: u64) -> Result<Self> {
        if !vfs.can_reserve(dir)? {
            return Ok(Self::default());
        }
        let path: PathBuf = dir.join(NAME);
        if least_bytes == 0 {
            if vfs.exists(&path)? {
                vfs.unlink(&path)?;
            }
            return Ok(Self::default());
        }
        let how = Open { create: Create::IfMissing, ..Open::WRITE };
        let file = vfs.open(&path, how)?;
        let mut reserve = Self { held_bytes: file.len()?, file: Some(file) };
        if vfs.free_bytes(dir)? < least_bytes {
            reserve.shrink(0)?;
        }
        Ok(reserve)
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    pub(crate) fn can_hold(&self) -> bool {
        self.file.is_some()
    }

    /// Returns blocks to the file system, until `bytes` are held.
    pub(crate) fn shrink(&mut self, bytes: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if bytes < self.held_bytes {
            file.set_len(bytes)?;
            self.held_bytes = bytes;
        }
        Ok(())
    }

    /// Takes blocks from the file system, until `bytes` are held. On a full device it holds what it
    /// held before.
    ///
    /// Invariant: the length covers all allocated blocks, so that a truncation returns them.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if bytes <= self.held_bytes {
            return Ok(());
        }
        match file.set_len(bytes).and_then(|()| file.allocate(bytes)) {
            Ok(()) => self.held_bytes = bytes,
            Err(Error::NoSpace(_)) => file.set_len(self.held_bytes)?,
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// Bytes kept for a store without data: the begin of a segment, a sidecar, an edit of the manifest with
/// its repetition, tombstones.
const LEAST_BYTES: u64 = 4 << 20;
/// Bytes that a batch takes on the device at least.
const BLOCK_BYTES: u64 = 4 << 10;
/// Part of the data, and of the least reserve, that may be written before the reserve is grown again.
const GRANT_OF_DATA: u64 = 8;
const GRANT_OF_LEAST: u64 = 4;
/// Number of files above which a store counts as large: puts do not wait for a look at each of them.
const MANY_FILES: usize = 128;

/// Bounds of the reserve. Its size follows the data, because a job writes at most what the store
/// has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReserveSize {
    least_bytes: u64,
    most_bytes: u64,
}

impl ReserveSize {
    /// Returns the bounds: an explicit size is kept from the start. `set` are the settings before they
    /// were fitted to the device, `fitted` those in force.
    pub(crate) fn of(set: &Options, fitted: &Options) -> Self {
        let most_bytes = fitted.reserved_bytes;
        let is_default = set.reserved_bytes == Options::default().reserved_bytes;
        let least_bytes = if is_default { LEAST_BYTES.min(most_bytes) } else { most_bytes };
        Self { least_bytes, most_bytes }
    }

    /// Returns whether anything is kept.
    pub(crate) fn is_limited(&self) -> bool {
        self.most_bytes > 0
    }

    /// Returns the reserve of a store with so many bytes of files.
    ///
    /// Invariant: beside the quarter that is kept for deletes, it holds a copy of each value file, of
    /// all runs and of a manifest edit, up to the size that is set: all of them are part of the data.
    pub(crate) fn for_data(&self, data_bytes: u64) -> u64 {
        let for_copies = data_bytes.saturating_add(data_bytes / 3);
        self.least_bytes.saturating_add(for_copies).min(self.most_bytes)
    }

    /// Returns the bytes that may be appended where so many are free above the reserve, which grows
    /// with them by a third more.
    pub(crate) fn room(&self, data_bytes: u64, above_bytes: u64) -> u64 {
        let growth_max = self.most_bytes - self.for_data(data_bytes);
        above_bytes.saturating_sub(growth_max).max(above_bytes / 7 * 3)
    }

    /// Returns the bytes that may be written before the device is read again.
    pub(crate) fn grant(&self, data_bytes: u64, room_bytes: u64) -> u64 {
        let most = match self.is_full_size(data_bytes) {
            true => self.most_bytes / 2,
            false => data_bytes / GRANT_OF_DATA + self.least_bytes / GRANT_OF_LEAST,
        };
        room_bytes.min(most)
    }

    /// Whether the reserve does not grow with more data.
    pub(crate) fn is_full_size(&self, data_bytes: u64) -> bool {
        self.for_data(data_bytes) == self.most_bytes
    }
}

pub(crate) fn written_bytes(batch_bytes: u64) -> u64 {
    batch_bytes.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(batch_bytes)
}

/// Returns the bytes of the store's files, or more than any reserve if the last count, which statistics
/// repeat, found many of them.
pub(crate) fn data_bytes(shared: &Shared) -> u64 {
    if place::files_counted(shared) > MANY_FILES {
        return u64::MAX;
    }
    place::disk_bytes(shared).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const SIZE: ReserveSize = ReserveSize { least_bytes: 4 * MIB, most_bytes: 256 * MIB };

    #[test]
    fn beside_what_is_kept_for_deletes_a_copy_of_all_data_fits_up_to_the_size_that_is_set() {
        assert_eq!(SIZE.for_data(0), 4 * MIB);
        for data in (0..189).map(|mib| mib * MIB + 12_345) {
            let reserve = SIZE.for_data(data);
            assert!(reserve / 4 * 3 >= data, "{reserve} for {data}");
        }
        assert_eq!(SIZE.for_data(189 * MIB), 256 * MIB);
        assert_eq!(SIZE.for_data(u64::MAX), 256 * MIB);
    }

    #[test]
    fn what_is_appended_fits_beside_the_reserve_that_grows_with_it() {
        for data in [0, 50 * MIB, 188 * MIB, 500 * MIB] {
            for above in [0, 4096, MIB, 100 * MIB, 400 * MIB, 1 << 40] {
                let room = SIZE.room(data, above);
                let grown = SIZE.for_data(data + room) - SIZE.for_data(data);
                assert!(room + grown <= above + 7, "{room} and {grown} of {above}");
                let grant = SIZE.grant(data, room);
                assert!(grant <= room && (grant > 0 || room == 0));
            }
        }
        assert_eq!(SIZE.room(189 * MIB, MIB), MIB);
    }

    #[test]
    fn an_explicit_size_is_kept_from_the_start_and_the_default_grows() {
        let of = |reserved_bytes: u64, device_bytes: u64| {
            let set = Options { reserved_bytes, ..Options::default() };
            let size = ReserveSize::of(&set, &set.clone().within_device(device_bytes));
            (size.for_data(0), size.for_data(u64::MAX))
        };
        assert_eq!(of(256 * MIB, 1 << 40), (4 * MIB, 256 * MIB));
        assert_eq!(of(256 * MIB, 1 << 30), (4 * MIB, 64 * MIB));
        assert_eq!(of(256 * MIB, 16 * MIB), (MIB, MIB));
        assert_eq!(of(100 * MIB, 1 << 30), (100 * MIB, 100 * MIB));
        assert_eq!(of(0, 1 << 30), (0, 0));
    }

    #[test]
    fn a_batch_takes_whole_blocks() {
        assert_eq!([1, 4096, 4097, u64::MAX].map(written_bytes), [4096, 4096, 8192, u64::MAX]);
    }
}
