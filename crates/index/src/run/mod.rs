//! Runs: immutable sorted files, key → value, location or tombstone.
//!
//! ```text
//! run  := block* fences filter hash-index footer
//! ```
//! Every part ends with a checksum that also depends on the run's number and the part's offset, so
//! a misplaced part is detected. See `block`, `fences`, `filter`, `hash_index` and `footer` for
//! their layouts.
//!
//! In memory per key: filter 1.25 bytes, fences about 0.4, and the hash index 4.7 where the block
//! cache grants it (at most a quarter of its limit). A get reads one key block in both cases: with
//! the hash index without any search, otherwise by the fences and a search inside the block.
//!
//! Filter and fences have a limit of their own, for which the newest runs come first. The others
//! are cold: a get reads a page of 4 KiB of the filter, and of the fences, unless the block cache
//! has them. See `parts`, `cold` and `page_table`.

mod block;
mod cold;
#[cfg(test)]
mod cold_tests;
mod cursor;
mod damage;
mod fences;
mod filter;
mod footer;
mod hash_index;
mod inspect;
mod meta;
mod page_table;
mod parts;
mod reader;
#[cfg(test)]
mod tests;
mod verify;
mod writer;

pub(crate) use block::Block;
pub use cursor::RunCursor;
pub(crate) use cursor::Walk;
pub use damage::{LostBlock, ScrubbedBlocks};
pub(crate) use fences::Fences;
pub use hash_index::key_hash;
pub use inspect::{RunItem, RunPart, RunRecord, inspect_run, inspect_run_items};
pub(crate) use meta::AGE_MAX;
pub use meta::{Live, RunExtra, RunMeta};
pub(crate) use parts::RunParts;
pub use reader::Run;
pub use verify::RunVerified;
pub(crate) use writer::ClosedRun;
pub use writer::RunWriter;

use std::path::{Path, PathBuf};
use stele_types::RunId;

/// Options for writing runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Size at which a key block ends; clamped to 512 B … 32 KiB. Default 4 KiB.
    pub block_bytes: usize,
    /// Filter bits per key; 0 disables the filter. Default 10.
    pub filter_bits_per_key: usize,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { block_bytes: 4 << 10, filter_bits_per_key: 10 }
    }
}

pub(crate) const TMP_SUFFIX: &str = ".tmp";

/// Returns the name of a run's file.
pub fn run_file_name(id: RunId) -> String {
    format!("{:08x}.run", id.0)
}

pub(crate) fn run_path(dir: &Path, id: RunId) -> PathBuf {
    dir.join(run_file_name(id))
}

pub(crate) fn run_tmp_path(dir: &Path, id: RunId) -> PathBuf {
    dir.join(run_file_name(id) + TMP_SUFFIX)
}

/// Parses a name of [`run_file_name`].
pub fn parse_run_file_name(name: &str) -> Option<RunId> {
    let digits = name.strip_suffix(".run")?;
    let id = RunId(u64::from_str_radix(digits, 16).ok()?);
    (run_file_name(id) == name).then_some(id)
}
