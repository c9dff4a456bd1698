//! The file `STORE`: the directory's store and format. Written first and checked first.
//!
//! ```text
//! STORE := "stele store\n" "format " n "\n" "store " id "\n" "crc32c " hex "\n"
//! ```

use std::io::IoSlice;
use std::path::Path;
use std::sync::Arc;
use stele_types::limits::FORMAT_VERSION;
use stele_types::{Cause, Error, Result, StoreId, checksum};
use stele_vfs::{Create, Open, Vfs};

const NAME: &str = "STORE";
const MAGIC: &str = "stele store";
const FILE_BYTES_MAX: u64 = 4096;

/// Reads the identity of `dir`, or creates it. Fails with [`Error::NewerFormat`],
/// [`Error::WrongStore`] or [`Error::Corrupt`], having changed nothing.
pub(crate) fn open(vfs: &Arc<dyn Vfs>, dir: &Path, wanted: Option<StoreId>) -> Result<StoreId> {
    let path = dir.join(NAME);
    if !vfs.exists(&path)? {
        let id = wanted.unwrap_or(StoreId(1));
        create(vfs, dir, id)?;
        return Ok(id);
    }
    let file = vfs.open(&path, Open::READ)?;
    let mut bytes = vec![0; file.len()?.min(FILE_BYTES_MAX) as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let found = parse(&path, &bytes)?;
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
    let text = format!("{body}crc32c {:08x}\n", checksum::crc32c(body.as_bytes()));
    let temporary = dir.join("STORE.tmp");
    let how = Open { write: true, create: Create::IfMissing, direct: false };
    let file = vfs.open(&temporary, how)?;
    file.set_len(0)?;
    file.write_at(&[IoSlice::new(text.as_bytes())], 0, Cause::Manifest)?;
    // Invariant: the content is durable before the name, and the name before anything relies on it.
    if !stele_types::mutant::active("engine.identity_unsynced") {
        file.sync_data()?;
    }
    vfs.rename(&temporary, &dir.join(NAME))?;
    vfs.sync_dir(dir)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<StoreId> {
    let bad = |detail: &str| Error::corrupt(path, 0, detail);
    let text = std::str::from_utf8(bytes).map_err(|_| bad("not text"))?;
    let field = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::trim)
    };
    if text.lines().next() != Some(MAGIC) {
        return Err(Error::WrongStore {
            path: path.to_path_buf(),
            detail: "the file was not written by this program".into(),
        });
    }
    let format: u32 =
        field("format").and_then(|f| f.parse().ok()).ok_or_else(|| bad("no format"))?;
    if format > FORMAT_VERSION {
        let path = path.to_path_buf();
        return Err(Error::NewerFormat { path, found: format, supported: FORMAT_VERSION });
    }
    let body =
        text.find("crc32c ").and_then(|at| text.get(..at)).ok_or_else(|| bad("no checksum"))?;
    let crc = field("crc32c").and_then(|hex| u32::from_str_radix(hex, 16).ok());
    if crc != Some(checksum::crc32c(body.as_bytes())) {
        return Err(bad("checksum does not match"));
    }
    field("store").and_then(|id| id.parse().ok()).map(StoreId).ok_or_else(|| bad("no store id"))
}
