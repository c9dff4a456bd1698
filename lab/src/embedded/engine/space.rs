//! Occupied space of a store, and settling: the same steps for every store.

use super::Durable;
use crate::machine::wait_until_idle;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;
/// Time without writes after which a store counts as idle.
const QUIET: Duration = Duration::from_millis(300);
/// Limit of compactions. fjall frees only what an earlier compaction found dead; further ones find
/// nothing new.
const COMPACTIONS_MAX: u32 = 6;

/// Returns the bytes of the blocks that files below `folder` occupy, as `du` does, without what a store
/// only holds in reserve.
pub(super) fn disk_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let path = entry?.path();
        // A store may remove the file meanwhile.
        let Ok(info) = path.symlink_metadata() else { continue };
        if path.file_name().is_some_and(|name| name == stele_engine::RESERVE_FILE) {
            continue;
        }
        bytes += info.blocks() * BLOCK_BYTES;
        if info.is_dir() {
            bytes += disk_bytes(&path)?;
        }
    }
    Ok(bytes)
}

/// Flushes, waits for background work, and with a bound compacts while more bytes are on disk.
/// Returns the number of compactions.
pub(super) fn settle(
    store: &mut dyn Durable,
    folder: &Path,
    bytes_max: Option<u64>,
) -> Result<u32> {
    store.settle()?;
    wait_until_idle(QUIET)?;
    let Some(bytes_max) = bytes_max else { return Ok(0) };
    for compactions in 0..COMPACTIONS_MAX {
        if disk_bytes(folder)? <= bytes_max {
            return Ok(compactions);
        }
        store.compact()?;
        wait_until_idle(QUIET)?;
    }
    Ok(COMPACTIONS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_all_files_but_the_reserve_count() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        let empty = disk_bytes(folder.path()).unwrap();
        let path = folder.path().join("inner/file");
        fs::write(&path, vec![1; 100_000]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        fs::write(folder.path().join("inner/RESERVE"), vec![1; 100_000]).unwrap();
        let grown = disk_bytes(folder.path()).unwrap() - empty;
        assert!((100_000..120_000).contains(&grown), "{grown}");
    }
}
