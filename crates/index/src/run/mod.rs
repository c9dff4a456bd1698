//! Runs: immutable sorted files, key → value or its place or "deleted".
//!
//! ```text
//! run  := block* fences filter hash-index footer
//! ```
//! Every part ends with a checksum that also depends on the run's number and the part's place, so a
//! part written elsewhere by mistake is not taken for the right one. See `block`, `fences`,
//! `filter`, `hash_index` and `footer` for their layouts.
//!
//! In memory per key: filter 1.25 bytes, fences about 0.4, and the hash index 4.7 where the block
//! cache grants it (at most a quarter of its limit). A get touches one key block either way: by the
//! hash index without any search, else by the fences and a search inside the block.

mod block;
mod cursor;
mod fences;
mod filter;
mod footer;
mod hash_index;
mod inspect;
mod key_hash;
mod meta;
mod open_damaged;
mod prefetch;
mod reader;
mod sample;
#[cfg(test)]
mod tests;
mod trailer;
mod unreadable_blocks;
mod verify;
mod writer;

pub(crate) use block::Block;
pub use cursor::RunCursor;
pub use inspect::{RunItem, RunPart, RunRecord, inspect_run, inspect_run_items};
pub use key_hash::key_hash;
pub(crate) use meta::AGE_MAX;
pub use meta::{Live, RunExtra, RunMeta};
pub use reader::Run;
pub use unreadable_blocks::{LostBlock, ScrubbedBlocks};
pub use verify::RunVerified;
pub use writer::{ClosedRun, RunWriter};

use std::path::{Path, PathBuf};
use stele_types::RunId;

/// How runs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Size at which a key block is cut; held to 512 B … 32 KiB. Default 4 KiB.
    pub block_bytes: usize,
    /// Bits of filter per key; 0 for no filter. Default 10.
    pub filter_bits_per_key: usize,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { block_bytes: 4 << 10, filter_bits_per_key: 10 }
    }
}

/// Ends the name of a file that is to become a run.
pub(crate) const TMP_SUFFIX: &str = ".tmp";

/// The name of a run's file.
pub fn run_file_name(id: RunId) -> String {
    format!("{:08x}.run", id.0)
}

/// Where a run's file lies.
pub fn run_path(dir: &Path, id: RunId) -> PathBuf {
    dir.join(run_file_name(id))
}

/// Where a run lies until it is whole.
pub(crate) fn run_tmp_path(dir: &Path, id: RunId) -> PathBuf {
    dir.join(run_file_name(id) + TMP_SUFFIX)
}

/// The inverse of [`run_file_name`].
pub fn parse_run_file_name(name: &str) -> Option<RunId> {
    let digits = name.strip_suffix(".run")?;
    let id = RunId(u64::from_str_radix(digits, 16).ok()?);
    (run_file_name(id) == name).then_some(id)
}
