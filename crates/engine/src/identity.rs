//! The file `STORE`: the directory's store and format. Written first and checked first.
//!
//! ```text
//! STORE := "stele store\n" "format " n "\n" "store " id "\n" "crc32c " hex "\n"
//! ```

use crate::checked_text::{self, CheckedText};
use std::path::Path;
use std::sync::Arc;
use stele_types::limits::FORMAT_VERSION;
use stele_types::{Error, Result, StoreId, mutant};
use stele_vfs::Vfs;

const NAME: &str = "STORE";
const MAGIC: &str = "stele store";
const FILE_BYTES_MAX: u64 = 4096;

/// Entries that make a directory a store, or part of a damaged one.
pub(crate) const PARTS: [&str; 3] = [NAME, "log", "index"];

/// Reads the identity of `dir`, or creates it, at random without `wanted`. Fails with
/// [`Error::NewerFormat`], [`Error::WrongStore`] or [`Error::Corrupt`], having changed nothing.
pub(crate) fn open(vfs: &Arc<dyn Vfs>, dir: &Path, wanted: Option<StoreId>) -> Result<StoreId> {
    let path = dir.join(NAME);
    if !vfs.exists(&path)? {
        // Part of every checksum: no client can make a value that counts as part of the log.
        let id = match wanted {
            Some(wanted) => wanted,
            None if mutant::active("engine.known_identity") => StoreId(1),
            None => StoreId(vfs.random()? | 1),
        };
        create(vfs, dir, id)?;
        return Ok(id);
    }
    let found = parse(&path, &CheckedText::read(vfs, &path, MAGIC, FILE_BYTES_MAX)?)?;
    match wanted {
        Some(wanted) if wanted != found => Err(Error::WrongStore {
            path: dir.to_path_buf(),
            detail: format!("it belongs to store {found}, not to store {wanted}"),
        }),
        _ => Ok(found),
    }
}

fn create(vfs: &Arc<dyn Vfs>, dir: &Path, id: StoreId) -> Result<()> {
    let others =
        vfs.list(dir)?.into_iter().find(|entry| entry.name == "index" || entry.name == "log");
    if let Some(other) = others {
        return Err(Error::Missing {
            path: dir.join(NAME),
            detail: format!("the directory holds `{}` but no identity", other.name),
        });
    }
    let body = format!("{MAGIC}\nformat {FORMAT_VERSION}\nstore {id}\n");
    checked_text::write(vfs, dir, NAME, &body, !mutant::active("engine.identity_unsynced"))
}

fn parse(path: &Path, text: &CheckedText) -> Result<StoreId> {
    let format: u32 = text.number("format")?;
    if format > FORMAT_VERSION {
        let path = path.to_path_buf();
        return Err(Error::NewerFormat { path, found: format, supported: FORMAT_VERSION });
    }
    text.check()?;
    text.number("store").map(StoreId)
}
