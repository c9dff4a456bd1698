//! Small text files with a checksum, replaced as a whole: `STORE`, `BOOT`, `SPEED`, `SCRUB` and
//! `SHARDS`.
//!
//! ```text
//! file := magic "\n" (name " " value "\n")* "crc32c " hex "\n"
//! ```

use bytes::Bytes;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_types::{Cause, Error, Result, checksum};
use stele_vfs::{Create, Open, Vfs};

const CRC: &str = "crc32c ";

/// A file that begins with its magic line. The checksum is not verified yet: a newer format may
/// have another one.
#[derive(Debug)]
pub(crate) struct CheckedText {
    path: PathBuf,
    text: String,
}

impl CheckedText {
    /// Reads `path`, at most `bytes_max` of it. Fails with [`Error::WrongStore`] if another program
    /// wrote it.
    pub(crate) fn read(
        vfs: &Arc<dyn Vfs>,
        path: &Path,
        magic: &str,
        bytes_max: u64,
    ) -> Result<Self> {
        let file = vfs.open(path, Open::READ)?;
        let mut bytes = vec![0; file.len()?.min(bytes_max) as usize];
        file.read_exact_at(&mut bytes, 0)?;
        let text = String::from_utf8(bytes).map_err(|_| Error::corrupt(path, 0, "not text"))?;
        if text.lines().next() != Some(magic) {
            return Err(Error::WrongStore {
                path: path.to_path_buf(),
                detail: "the file was not written by this program".into(),
            });
        }
        Ok(Self { path: path.to_path_buf(), text })
    }

    pub(crate) fn check(&self) -> Result<()> {
        let body = self.text.rfind(CRC).and_then(|at| self.text.get(..at));
        let body = body.ok_or_else(|| self.bad("no checksum"))?;
        let crc = self.field("crc32c").and_then(|hex| u32::from_str_radix(hex, 16).ok());
        match crc == Some(checksum::crc32c(body.as_bytes())) {
            true => Ok(()),
            false => Err(self.bad("checksum does not match")),
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.fields(name).next()
    }

    pub(crate) fn fields(&self, name: &str) -> impl Iterator<Item = &str> {
        let lines = self.text.lines();
        lines.filter_map(move |line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::trim)
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<T> {
        let number = self.field(name).and_then(|number| number.parse().ok());
        number.ok_or_else(|| self.bad(&format!("no {name}")))
    }

    pub(crate) fn bad(&self, detail: &str) -> Error {
        Error::corrupt(&self.path, 0, detail)
    }
}

/// Writes `dir`/`name` with its checksum; durable on return. `is_synced` is false only for
/// deliberate bugs.
pub(crate) fn write(
    vfs: &Arc<dyn Vfs>,
    dir: &Path,
    name: &str,
    body: &str,
    is_synced: bool,
) -> Result<()> {
    let text = format!("{body}{CRC}{:08x}\n", checksum::crc32c(body.as_bytes()));
    let temporary = dir.join(format!("{name}.tmp"));
    let how = Open { write: true, create: Create::IfMissing, direct: false };
    let file = vfs.open(&temporary, how)?;
    file.set_len(0)?;
    file.write_at(&[IoSlice::new(text.as_bytes())], 0, Cause::Manifest)?;
    // Invariant: the content is durable before the name, and the name before anything relies on it.
    if is_synced {
        file.sync_data()?;
    }
    vfs.rename(&temporary, &dir.join(name))?;
    vfs.sync_dir(dir)
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes [`to_hex`]; `None` for anything else.
pub(crate) fn from_hex(hex: &str) -> Option<Bytes> {
    let pairs = hex.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    hex.len()
        .is_multiple_of(2)
        .then(|| pairs.map(byte).collect::<Option<Vec<u8>>>().map(Bytes::from))?
}
