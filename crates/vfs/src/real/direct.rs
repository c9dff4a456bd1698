//! Alignment that direct I/O needs on a file.

use super::or_current_dir;
use crate::aligned::MEMORY_ALIGN_BYTES;
use crate::{AlignedBuf, FsKind};
use rustix::fs::{AtFlags, Mode, OFlags, StatFs, StatxFlags};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Returns the alignment of offsets and lengths for `file`, already open with `O_DIRECT`: as
/// reported by the kernel (since Linux 6.1), otherwise found by a probe in the same directory.
/// Returns `None` when direct writes do not work there, or go through the page cache.
pub(super) fn block_bytes(file: &File, path: &Path) -> Option<usize> {
    match reported(file) {
        Some(block_bytes) => usable(block_bytes),
        None if is_in_name_only(file, path) => None,
        None => probe(path.parent()?),
    }
}

fn is_in_name_only(file: &File, path: &Path) -> bool {
    let kind = rustix::fs::fstatfs(file).ok().zip(path.parent());
    kind.is_some_and(|(stat, dir)| kind_of(&stat, dir).is_direct_in_name_only())
}

/// Returns the kind of the file system of a directory. A layer hides what is below it, but a direct
/// write through it shows whether that one writes directly: then it refuses a length that is not a
/// multiple of the block.
pub(super) fn kind_of(stat: &StatFs, dir: &Path) -> FsKind {
    // The field is signed on some machines; the numbers have 32 bits.
    match FsKind::of_number(u64::from(stat.f_type as u32)) {
        FsKind::Overlay if accepts_any_length(dir).unwrap_or(false) => FsKind::BufferedOverlay,
        kind => kind,
    }
}

/// Returns whether a direct write of a part of a block succeeds; `None` if none can be tried.
fn accepts_any_length(dir: &Path) -> Option<bool> {
    const PART_BYTES: usize = 100;
    let zeros = AlignedBuf::zeroed(MEMORY_ALIGN_BYTES);
    let written = rustix::io::pwrite(unnamed(dir)?, zeros.get(..PART_BYTES)?, 0);
    Some(written.is_ok_and(|written| written == PART_BYTES))
}

/// Accepts only alignments that [`AlignedBuf`] also provides in memory.
fn usable(block_bytes: usize) -> Option<usize> {
    (block_bytes.is_power_of_two() && block_bytes <= MEMORY_ALIGN_BYTES).then_some(block_bytes)
}

fn reported(file: &File) -> Option<usize> {
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        return None;
    }
    // Memory must be aligned as well; one number for both keeps the requirement simple.
    Some(stat.stx_dio_offset_align.max(stat.stx_dio_mem_align) as usize)
}

/// Opens an unnamed file of a directory for direct I/O.
fn unnamed(dir: &Path) -> Option<OwnedFd> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    rustix::fs::open(or_current_dir(dir), flags, Mode::RUSR | Mode::WUSR).ok()
}

/// Tries writes into an unnamed file, smallest block first.
fn probe(dir: &Path) -> Option<usize> {
    let file = unnamed(dir)?;
    let zeros = AlignedBuf::zeroed(2 * MEMORY_ALIGN_BYTES);
    [512, MEMORY_ALIGN_BYTES].into_iter().find(|&block| {
        let part = &zeros[block..2 * block];
        rustix::io::pwrite(&file, part, block as u64).is_ok_and(|written| written == block)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_agrees_with_what_the_kernel_reports() {
        let dir = std::env::temp_dir();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT;
        let Ok(file) = rustix::fs::open(&dir, flags, Mode::RUSR | Mode::WUSR) else { return };
        let Some(reported) = reported(&File::from(file)) else { return };
        if reported == 0 {
            return;
        }
        assert!(probe(&dir).is_some_and(|probed| probed <= reported.max(512)));
    }
}
