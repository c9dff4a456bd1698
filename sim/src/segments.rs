//! Positions of log entries on a disk.

use crate::world::DIR;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_log::inspect::{Row, What, dump};
use stele_simulated_disk::{Fault, SimVfs};
use stele_storage::LostEntry;
use stele_types::{LogIndex, Prng, RegionId, Term, keyspace};
use stele_vfs::Vfs;

/// Identity of a log entry.
pub type Name = (RegionId, LogIndex, Term);

/// Payload of a log entry.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Entry that it belongs to.
    pub entry: Name,
    path: PathBuf,
    offset: u64,
    bytes: u64,
    /// The entry changes the store's local records.
    pub is_local: bool,
    /// Engine keys of the pairs that it puts.
    pub keys: Vec<Vec<u8>>,
    /// Frames of the log after its own.
    pub frames_after: usize,
}

impl Payload {
    /// Returns a fault that flips one of its bits.
    pub fn flip(&self, prng: &mut Prng) -> Fault {
        let offset = self.offset + prng.below(self.bytes);
        Fault::FlipBit { path: self.path.clone(), offset, bit: prng.below(8) as u8 }
    }

    /// Returns true if it belongs to that entry.
    pub fn is(&self, lost: &LostEntry) -> bool {
        self.entry == (lost.region, lost.index, lost.term)
    }

    /// Returns true if it lies in this file.
    pub fn is_in(&self, path: &Path) -> bool {
        self.path == path
    }

    /// Returns its file and offset.
    pub fn place(&self) -> (&Path, u64) {
        (&self.path, self.offset)
    }
}

/// Returns the segments of a log, oldest first.
pub fn segments(disk: &SimVfs) -> Vec<PathBuf> {
    let log = Path::new(DIR).join("log");
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.starts_with(&log) && name.ends_with(".seg") && !name.starts_with("free-")
    };
    let mut segments: Vec<PathBuf> = disk.paths().into_iter().filter(is_segment).collect();
    segments.sort();
    segments
}

/// Returns all payloads in intact frames, in log order, up to the first damage in each segment.
pub fn payloads(disk: &SimVfs) -> Vec<Payload> {
    // Reading must not trigger the faults planned for the store.
    let copy = disk.fork();
    copy.clear_faults();
    copy.no_crash();
    let copy: Arc<dyn Vfs> = Arc::new(copy);
    let (mut found, mut frames) = (Vec::new(), 0);
    for path in segments(disk) {
        let mut before = None;
        let mut take = |row: Row| match row.what {
            What::Batch { crc, chain, .. } => {
                // Frames of the file's previous use do not continue the chain.
                let continues = before.is_none_or(|before| before == chain);
                before = Some(crc);
                frames += usize::from(continues);
                continues
            }
            What::Entry { region, term, index, bytes, .. } => {
                if bytes > 0 {
                    found.push(Payload {
                        entry: (region, index, term),
                        path: path.clone(),
                        offset: row.offset,
                        bytes: u64::from(bytes),
                        is_local: false,
                        keys: Vec::new(),
                        frames_after: frames,
                    });
                }
                true
            }
            What::Put { key, .. } if key.first() == Some(&keyspace::LOCAL) => {
                found.last_mut().into_iter().for_each(|payload| payload.is_local = true);
                true
            }
            What::Put { key, .. } => {
                found.last_mut().into_iter().for_each(|payload| payload.keys.push(key.clone()));
                true
            }
            What::Damage { .. } => false,
            _ => true,
        };
        // Unreadable parts hold no payload.
        let _ = dump(&copy, &path, &mut take);
    }
    found.iter_mut().for_each(|payload| payload.frames_after = frames - payload.frames_after);
    found
}
