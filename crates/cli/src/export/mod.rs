//! `stele export`: writes all pairs as files, or as JSON lines, one object each.

mod folder;

use crate::Outcome;
use crate::args::{Encoding, Export};
use crate::attributes::{self, Attributes};
use crate::reader::Reader;
use crate::store::{Order, Pair, Tuning};
use crate::terminal::{Output, Progress};
use crate::text::{key_range, printable, to_base64, to_hex};
use folder::Folder;
use serde_json::{Map, Value};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use stele_types::size::format_bytes;
use stele_types::{Error, Result};

/// Calls that make exported files durable; tests replace them.
#[derive(Clone, Copy)]
struct Syncs {
    /// Makes a file durable.
    file: fn(&File) -> io::Result<()>,
    /// Makes the names in a directory durable.
    dir: fn(&Path) -> io::Result<()>,
    /// Makes all files of the file system durable with their names: one call for many files.
    file_system: fn(&Path) -> io::Result<()>,
}

const SYNCS: Syncs = Syncs {
    file: File::sync_all,
    dir: |dir| File::open(dir)?.sync_all(),
    file_system: |dir| Ok(rustix::fs::syncfs(File::open(dir)?)?),
};

trait Destination {
    /// Writes one pair. `Invalid` refuses only this pair.
    fn write(&mut self, pair: &Pair) -> Result<()>;
    /// Makes the export durable and completes it. Calls `refuse` for what cannot be done.
    fn finish(self: Box<Self>, refuse: &mut dyn FnMut(String)) -> Result<()>;
}

pub(crate) fn run(args: &Export) -> Result<Outcome> {
    let range = key_range(&args.range, false)?;
    let store = Reader::open(&args.target.store, &Tuning::default())?;
    let mut to: Box<dyn Destination> = if is_lines(&args.to) {
        Box::new(Lines::new(&args.to, args.encoding, SYNCS)?)
    } else {
        let attributes = store.get(attributes::NAME.as_bytes())?;
        let attributes =
            attributes.map_or(Ok(Attributes::default()), |it| Attributes::parse(&it))?;
        let outside = (args.target.store.as_path(), range.clone());
        Box::new(Folder::new(&args.to, outside, attributes, SYNCS)?)
    };
    let started = Instant::now();
    let progress = Progress::bytes(Some(store.statistics().live_bytes_estimate), "exporting");
    let (mut pairs, mut bytes, mut refused) = (0u64, 0u64, 0u64);
    for pair in store.pairs(range, Order::Forward, false)? {
        let pair = pair?;
        let pair_bytes = (pair.key.len() + pair.value.len()) as u64;
        match to.write(&pair) {
            Ok(()) => {
                pairs += 1;
                bytes += pair_bytes;
            }
            Err(error @ Error::Invalid(_)) => {
                refused += 1;
                progress.warn(&format!("key `{}`: {error}", printable(&pair.key)));
            }
            Err(error) => return Err(error),
        }
        progress.add(pair_bytes);
    }
    to.finish(&mut |line| {
        refused += 1;
        progress.warn(&line);
    })?;
    drop(progress);
    let seconds = started.elapsed().as_secs_f64();
    let size = format_bytes(bytes);
    eprintln!("exported {pairs} pairs ({size}) in {seconds:.1} s; {refused} refused");
    Ok(if refused == 0 { Outcome::Done } else { Outcome::Failed })
}

fn is_lines(to: &Path) -> bool {
    to == Path::new("-") || to.extension().is_some_and(|extension| extension == "jsonl")
}

struct Lines {
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
    fn new(path: &Path, encoding: Encoding, syncs: Syncs) -> Result<Self> {
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
    use super::{SYNCS, *};
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
