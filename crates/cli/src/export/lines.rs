//! Export of pairs as JSON lines, one object each.

use super::{Destination, Syncs};
use crate::args::Encoding;
use crate::output::Output;
use crate::store::Pair;
use crate::text::{to_base64, to_hex};
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use stele_types::{Error, Result};

pub(super) struct Lines {
    encoding: Encoding,
    to: To,
    syncs: Syncs,
}

enum To {
    Standard(Output),
    /// Written under a temporary name in the same directory, and renamed when complete.
    File {
        out: BufWriter<File>,
        temporary: PathBuf,
        path: PathBuf,
    },
}

impl Lines {
    /// Creates the file, or uses standard output for `-`.
    pub(super) fn new(path: &Path, encoding: Encoding, syncs: Syncs) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self { encoding, to: To::Standard(Output::new()), syncs });
        }
        let temporary = path.with_extension("jsonl.tmp");
        let file = File::create(&temporary).map_err(|e| Error::io("create", &temporary, e))?;
        let out = BufWriter::with_capacity(1 << 20, file);
        Ok(Self { encoding, to: To::File { out, temporary, path: path.to_path_buf() }, syncs })
    }
}

impl Destination for Lines {
    fn write(&mut self, pair: &Pair) -> Result<()> {
        let mut object = Map::new();
        put_field(&mut object, "key", &pair.key, self.encoding);
        put_field(&mut object, "value", &pair.value, self.encoding);
        if pair.expires_at_s != 0 {
            // A time, not seconds from now: those would begin again at each import.
            object.insert("expires_at_s".into(), pair.expires_at_s.into());
        }
        match &mut self.to {
            To::Standard(out) => out.json(object),
            To::File { out, temporary, .. } => {
                let failed = |error| Error::io("write", &*temporary, error);
                writeln!(out, "{}", Value::Object(object)).map_err(failed)
            }
        }
    }

    fn finish(self: Box<Self>, _: &mut dyn FnMut(String)) -> Result<()> {
        match self.to {
            To::Standard(out) => out.finish(),
            To::File { out, temporary, path } => {
                let file = out.into_inner();
                let file =
                    file.map_err(|error| Error::io("write", &temporary, error.into_error()))?;
                // The name appears only with all of the content.
                (self.syncs.file)(&file).map_err(|error| Error::io("sync", &temporary, error))?;
                fs::rename(&temporary, &path).map_err(|error| Error::io("rename", &path, error))?;
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
                let dir = dir.unwrap_or(Path::new("."));
                (self.syncs.dir)(dir).map_err(|error| Error::io("sync", dir, error))
            }
        }
    }
}

/// Adds bytes to an object under `name`, `name_hex` or `name_base64`: the field's name gives its
/// encoding.
pub(crate) fn put_field(
    object: &mut Map<String, Value>,
    name: &str,
    bytes: &[u8],
    encoding: Encoding,
) {
    let (name, text) = match (encoding, std::str::from_utf8(bytes)) {
        (Encoding::Text, Ok(text)) => (name.to_owned(), text.to_owned()),
        (Encoding::Text, Err(_)) | (Encoding::Hex, _) => (format!("{name}_hex"), to_hex(bytes)),
        (Encoding::Base64, _) => (format!("{name}_base64"), to_base64(bytes)),
    };
    object.insert(name, text.into());
}

#[cfg(test)]
mod tests {
    use super::super::SYNCS;
    use super::*;
    use std::io;

    #[test]
    fn an_export_of_lines_is_complete_only_if_it_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pairs.jsonl");
        let export = |syncs| {
            let mut lines = Lines::new(&path, Encoding::Text, syncs).unwrap();
            let pair = Pair { key: "k".into(), value: "v".into(), expires_at_s: 0 };
            lines.write(&pair).unwrap();
            Box::new(lines).finish(&mut |_| {})
        };
        let failing = Syncs { file: |_| Err(io::Error::other("lost")), ..SYNCS };
        assert!(export(failing).unwrap_err().to_string().contains("lost"));
        assert!(!path.exists(), "a file that may be lost looks complete");
        let failing = Syncs { dir: |_| Err(io::Error::other("lost")), ..SYNCS };
        assert!(export(failing).unwrap_err().to_string().contains("lost"));
        export(SYNCS).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
    }
}
