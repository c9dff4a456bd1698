//! Alignment that direct I/O needs on a file.

use crate::aligned::MEMORY_ALIGN_BYTES;
use crate::{AlignedBuf, FsKind};
use rustix::fs::{AtFlags, Mode, OFlags, StatFs, StatxFlags};
use std::fs::File;
use std::path::Path;

/// Returns the alignment of offsets and lengths for `file`, already open with `O_DIRECT`: as
/// reported by the kernel (since Linux 6.1), otherwise found by a probe in the same directory.
/// Returns `None` when direct writes do not work there, or go through the page cache.
pub(super) fn block_bytes(file: &File, path: &Path) -> Option<usize> {
    match reported(file) {
        Some(block_bytes) => usable(block_bytes),
        None if is_in_name_only(file) => None,
        None => probe(path.parent()?),
    }
}

fn is_in_name_only(file: &File) -> bool {
    let stat = rustix::fs::fstatfs(file).ok();
    stat.is_some_and(|stat| kind_of(&stat).is_direct_in_name_only())
}

/// Returns the kind of a file system.
pub(super) fn kind_of(stat: &StatFs) -> FsKind {
    // The field is signed on some machines; the numbers have 32 bits.
    FsKind::of_number(u64::from(stat.f_type as u32))
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

/// Tries writes into an unnamed file, smallest block first.
fn probe(dir: &Path) -> Option<usize> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let file = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).ok()?;
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
