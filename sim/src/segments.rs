//! Where the entries of a log lie on its disk.

use crate::world::DIR;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_log::inspect::{Row, What, dump};
use stele_storage::LostEntry;
use stele_types::{LogIndex, Prng, RegionId, Term, keyspace};
use stele_vfs::{Fault, SimVfs, Vfs};

/// An entry of a log.
pub type Name = (RegionId, LogIndex, Term);

/// The payload of an entry.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Whose it is.
    pub entry: Name,
    path: PathBuf,
    offset: u64,
    bytes: u64,
    /// It changes what the store knows of its regions.
    pub is_own: bool,
    /// Frames of the log that follow its own.
    pub frames_behind: usize,
}

impl Payload {
    /// A bit of it, drawn.
    pub fn flip(&self, prng: &mut Prng) -> Fault {
        let offset = self.offset + prng.below(self.bytes);
        Fault::FlipBit { path: self.path.clone(), offset, bit: prng.below(8) as u8 }
    }

    /// Whether it is of that entry.
    pub fn is(&self, lost: &LostEntry) -> bool {
        self.entry == (lost.region, lost.index, lost.term)
    }

    /// Whether it lies in this file.
    pub fn is_in(&self, path: &Path) -> bool {
        self.path == path
    }

    /// Where it lies.
    pub fn place(&self) -> (&Path, u64) {
        (&self.path, self.offset)
    }
}

/// The segments of a log, oldest first.
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

/// All payloads in whole frames, in the order of the log, up to the first damage in each segment.
pub fn payloads(disk: &SimVfs) -> Vec<Payload> {
    // Reading must not meet the faults that wait for the store.
    let copy = disk.fork();
    copy.clear_faults();
    copy.no_crash();
    let copy: Arc<dyn Vfs> = Arc::new(copy);
    let (mut found, mut frames) = (Vec::new(), 0);
    for path in segments(disk) {
        let mut before = None;
        let mut take = |row: Row| match row.what {
            What::Batch { crc, chain, .. } => {
                // What an earlier life of the file left does not continue its chain.
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
                        is_own: false,
                        frames_behind: frames,
                    });
                }
                true
            }
            What::Put { key, .. } if key.first() == Some(&keyspace::LOCAL) => {
                found.last_mut().into_iter().for_each(|payload| payload.is_own = true);
                true
            }
            What::Damage { .. } => false,
            _ => true,
        };
        // What can't be read is no payload.
        let _ = dump(&copy, &path, &mut take);
    }
    found.iter_mut().for_each(|payload| payload.frames_behind = frames - payload.frames_behind);
    found
}
