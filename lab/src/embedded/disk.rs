//! Speed of the disk itself.

use crate::machine::forget_cached;
use anyhow::Result;
use std::fs;
use std::io::IoSlice;
use std::path::Path;
use std::time::Instant;
use stele_types::{Cause, Prng};
use stele_vfs::{AlignedBuf, Create, Open, RealVfs, Vfs, VfsFile};

const CHUNK_BYTES: usize = 1 << 20;

/// Returns the MB/s of reading a cold file of `bytes` sequentially in large pieces: the better of
/// reads through the page cache (with read-ahead) and direct reads.
pub(super) fn sequential_read_mb_s(folder: &Path, bytes: u64) -> Result<f64> {
    let vfs = RealVfs::new();
    let path = folder.join("sequential");
    let chunk = chunk(CHUNK_BYTES);
    let file = vfs.open(&path, Open { write: true, create: Create::New, direct: true })?;
    let chunks = bytes.div_ceil(CHUNK_BYTES as u64);
    for at in 0..chunks {
        file.write_at(&[IoSlice::new(&chunk)], at * CHUNK_BYTES as u64, Cause::Log)?;
    }
    file.sync_data()?;
    let mut best = 0.0f64;
    for direct in [false, true] {
        forget_cached(folder)?;
        let file = vfs.open(&path, Open { direct, ..Open::READ })?;
        let started = Instant::now();
        let mut buffer = AlignedBuf::zeroed(CHUNK_BYTES);
        for at in 0..chunks {
            file.read_exact_at(&mut buffer, at * CHUNK_BYTES as u64)?;
        }
        let mb = (chunks * CHUNK_BYTES as u64) as f64 / 1e6;
        best = best.max(mb / started.elapsed().as_secs_f64());
    }
    drop(file);
    fs::remove_file(&path)?;
    Ok(best)
}

pub(super) struct BareFile {
    file: std::sync::Arc<dyn VfsFile>,
    chunk: AlignedBuf,
    at: u64,
    bytes_max: u64,
}

impl BareFile {
    /// Creates a growing file, or, with `reused`, one with all blocks already written.
    pub(super) fn create(
        folder: &Path,
        write_bytes: usize,
        bytes_max: u64,
        reused: bool,
    ) -> Result<Self> {
        let vfs = RealVfs::new();
        let how = Open { write: true, create: Create::New, direct: true };
        let file = vfs.open(&folder.join("bare"), how)?;
        let mut bare = Self { file, chunk: chunk(write_bytes), at: 0, bytes_max };
        if reused {
            while bare.at < bytes_max {
                bare.write()?;
            }
            bare.file.sync_data()?;
            bare.at = 0;
        }
        Ok(bare)
    }

    fn write(&mut self) -> Result<()> {
        self.file.write_at(&[IoSlice::new(&self.chunk)], self.at, Cause::Log)?;
        self.at += self.chunk.len() as u64;
        Ok(())
    }

    /// Writes and syncs once; continues at the start of the file after its end.
    pub(super) fn write_and_sync(&mut self) -> Result<()> {
        if self.at >= self.bytes_max {
            self.at = 0;
        }
        self.write()?;
        Ok(self.file.sync_data()?)
    }
}

fn chunk(bytes: usize) -> AlignedBuf {
    let mut chunk = AlignedBuf::zeroed(bytes);
    let mut random = Prng::new(bytes as u64);
    chunk.iter_mut().for_each(|byte| *byte = random.draw() as u8);
    chunk
}
