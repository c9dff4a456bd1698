//! `stele import`: stores files, or JSON lines as `stele export` and `stele scan --json` write
//! them: `{"key": …, "value": …[, "expires_at_s": …]}`. In place of `key` and `value` a line may
//! have `key_hex`, `key_base64`, `value_hex`, `value_base64`; in place of the Unix time
//! `expires_at_s` the seconds from now, `ttl_s`.
//!
//! Running an interrupted import again resumes it: a pair that the store holds with the same value
//! is not written again. Only the pairs are stored; there is no bookmark that could be wrong, and
//! files changed meanwhile are updated.
//!
//! Redis data goes another way, in `redis`.

mod folder;
mod redis;
mod writer;

use crate::Outcome;
use crate::args::{Encoding, Import};
use crate::attributes::{self, Attributes};
use crate::store::{Store, Tuning, unix_seconds};
use crate::terminal::Progress;
use crate::text::decode;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;
use stele_types::command::check_user_pair;
use stele_types::size::{USER_KEY_BYTES_MAX, VALUE_BYTES_MAX, format_bytes};
use stele_types::{Error, Result};
use writer::Writer;

/// Parsers of untrusted bytes, for fuzz targets.
pub(crate) mod fuzzing {
    use crate::args::Encoding;

    /// Parses a JSON line in each encoding of plain fields; returns the number of encodings that
    /// accept it.
    pub fn line(line: &[u8]) -> usize {
        let encodings = [Encoding::Text, Encoding::Hex, Encoding::Base64];
        encodings.into_iter().filter(|encoding| super::parse(line, *encoding, 0).is_ok()).count()
    }

    pub use super::redis::fuzzing::rdb;
}

/// Approximate size of the chunks in which the reading thread sends items to the writing thread.
const CHUNK_BYTES: u64 = 4 << 20;
/// Maximum number of chunks in the channel: reading proceeds ahead of writing in bounded memory.
const CHUNKS_WAITING: usize = 2;

enum Item {
    Pair {
        key: Vec<u8>,
        value: Vec<u8>,
        /// Unix seconds; 0 never.
        expires_at_s: u64,
        source_bytes: u64,
    },
    Expired {
        source_bytes: u64,
    },
    /// An item that cannot be read or stored; the import continues.
    Refused {
        what: String,
        error: Error,
        source_bytes: u64,
    },
    Skipped {
        path: PathBuf,
        kind: &'static str,
    },
}

/// Collects items into chunks. Sending fails after the writing side has stopped.
struct Sink {
    to: SyncSender<Vec<Item>>,
    chunk: Vec<Item>,
    bytes: u64,
}

impl Sink {
    fn push(&mut self, item: Item) -> Result<()> {
        if let Item::Pair { key, value, .. } = &item {
            self.bytes += (key.len() + value.len()) as u64;
        }
        self.chunk.push(item);
        if self.bytes >= CHUNK_BYTES || self.chunk.len() >= 4096 { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.bytes = 0;
        let stopped = |_| Error::Busy("the import has stopped".into());
        self.to.send(std::mem::take(&mut self.chunk)).map_err(stopped)
    }
}

pub(crate) fn run(args: &Import) -> Result<Outcome> {
    match (&args.to, &args.store) {
        (Some(to), _) => redis::run(to, args),
        (None, Some(store)) => import_pairs(store, args),
        (None, None) => {
            Err(Error::invalid("no target: give --store DIR, or --to redis://HOST:PORT"))
        }
    }
}

fn import_pairs(dir: &Path, args: &Import) -> Result<Outcome> {
    let from = &args.from;
    if redis::is_source(from) {
        let wanted =
            "give --to redis://HOST:PORT, the address at which a node serves Redis clients";
        return Err(Error::invalid(format!(
            "the source has Redis data: {wanted}, instead of --store"
        )));
    }
    let is_folder = check_source(from, dir)?;
    let total_bytes = total_bytes(from, is_folder);
    let tuning = Tuning { background: true, ..Tuning::default() };
    let store = Store::open_or_create(dir, &tuning)?;
    let kept = if is_folder { kept_attributes(&store)? } else { Attributes::default() };
    let started = Instant::now();
    let progress = Progress::bytes(total_bytes, "importing");
    let (to, items) = sync_channel(CHUNKS_WAITING);
    let before = kept.clone();
    let (read, written) = thread::scope(|scope| {
        let reading = scope.spawn(move || {
            let mut sink = Sink { to, chunk: Vec::new(), bytes: 0 };
            let kept = match is_folder {
                true => folder::read(from, before, &mut sink)?,
                false => read(from, args.encoding, &mut sink).map(|()| before)?,
            };
            sink.flush().map(|()| kept)
        });
        let written = write(&store, items, &progress);
        let read = reading.join().unwrap_or_else(|_| Err(Error::Busy("reading stopped".into())));
        (read, written)
    });
    drop(progress);
    // A failure of the writer also fails the reader, so the writer's error is the cause and comes
    // first.
    let mut report = written?;
    let attributes = read?;
    if attributes != kept
        && let Err(error) = keep_attributes(&store, &attributes)
    {
        eprintln!("stele: modes and empty folders are not kept: {error}");
        report.refused += 1;
    }
    store.close()?;
    let seconds = started.elapsed().as_secs_f64();
    eprintln!(
        "imported {} pairs ({}) in {seconds:.1} s; {} unchanged, {} expired, {} skipped, {} refused",
        report.written,
        format_bytes(report.written_bytes),
        report.unchanged,
        report.expired,
        report.skipped,
        report.refused
    );
    let is_whole = report.refused == 0 && report.skipped == 0;
    Ok(if is_whole { Outcome::Done } else { Outcome::Failed })
}

fn kept_attributes(store: &Store) -> Result<Attributes> {
    let text = store.get(attributes::NAME.as_bytes())?;
    text.map_or(Ok(Attributes::default()), |(text, _)| Attributes::parse(&text))
}

fn keep_attributes(store: &Store, attributes: &Attributes) -> Result<()> {
    store.put(attributes::NAME.as_bytes(), &attributes.text(), None)
}

fn write(
    store: &Store,
    items: Receiver<Vec<Item>>,
    progress: &Progress,
) -> Result<writer::ImportCounts> {
    let mut writer = Writer::new(store, progress);
    for chunk in items {
        for item in chunk {
            writer.accept(item)?;
        }
    }
    writer.finish()
}

/// Returns whether the source is a directory. Fails if it does not exist or contains the store.
fn check_source(from: &Path, store: &Path) -> Result<bool> {
    if from == Path::new("-") {
        return Ok(false);
    }
    let meta = std::fs::metadata(from).map_err(|error| Error::io("open", from, error))?;
    if meta.is_dir()
        && let (Ok(from_path), Ok(store_path)) = (from.canonicalize(), store.canonicalize())
        && store_path.starts_with(from_path)
    {
        let (store, from) = (store.display(), from.display());
        return Err(Error::invalid(format!("the store {store} is inside {from}")));
    }
    Ok(meta.is_dir())
}

fn total_bytes(from: &Path, is_folder: bool) -> Option<u64> {
    if is_folder {
        return Some(folder::total_bytes(from));
    }
    let meta = std::fs::metadata(from).ok()?;
    meta.is_file().then_some(meta.len())
}

/// Length of the largest pair in hexadecimal, with space for the names.
const LINE_BYTES_MAX: usize = 2 * (VALUE_BYTES_MAX + USER_KEY_BYTES_MAX) + 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    key: Option<String>,
    key_hex: Option<String>,
    key_base64: Option<String>,
    value: Option<String>,
    value_hex: Option<String>,
    value_base64: Option<String>,
    expires_at_s: Option<u64>,
    ttl_s: Option<u64>,
}

/// Yields every line. Refuses an invalid line and continues with the next.
fn read(from: &Path, encoding: Encoding, sink: &mut Sink) -> Result<()> {
    let failed = |error| Error::io("read", from, error);
    let mut source: Box<dyn BufRead> = match from == Path::new("-") {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(BufReader::with_capacity(1 << 20, File::open(from).map_err(failed)?)),
    };
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let bytes = source.by_ref().take(limit).read_until(b'\n', &mut line).map_err(failed)?;
        if bytes == 0 {
            break;
        }
        if bytes > LINE_BYTES_MAX {
            let name = from.display();
            return Err(Error::invalid(format!(
                "line {number} of {name} is longer than {LINE_BYTES_MAX} bytes"
            )));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let source_bytes = bytes as u64;
        let now_s = unix_seconds();
        sink.push(match parse(&line, encoding, now_s) {
            Ok((_, _, at_s)) if at_s != 0 && at_s <= now_s => Item::Expired { source_bytes },
            Ok((key, value, expires_at_s)) => Item::Pair { key, value, expires_at_s, source_bytes },
            Err(error) => Item::Refused { what: format!("line {number}"), error, source_bytes },
        })?;
    }
    Ok(())
}

/// Key, value, and the Unix seconds at which the pair expires; 0 never.
type Parsed = (Vec<u8>, Vec<u8>, u64);

/// Parses a line; `now_s` is the Unix time.
fn parse(line: &[u8], encoding: Encoding, now_s: u64) -> Result<Parsed> {
    let line: Line = serde_json::from_slice(line)
        .map_err(|error| Error::invalid(format!("not a pair: {error}")))?;
    let key = field("key", (line.key, encoding), line.key_hex, line.key_base64)?;
    let value = field("value", (line.value, encoding), line.value_hex, line.value_base64)?;
    check_user_pair(&key, &value)?;
    let expires_at_s = match (line.expires_at_s, line.ttl_s) {
        (Some(_), Some(_)) => {
            return Err(Error::invalid("`expires_at_s` and `ttl_s` exclude each other"));
        }
        (Some(at_s), None) => at_s,
        (None, Some(ttl_s)) if ttl_s > 0 => now_s.saturating_add(ttl_s),
        (None, _) => 0,
    };
    Ok((key, value, expires_at_s))
}

/// Decodes the field, which must be given in exactly one form.
fn field(
    name: &str,
    plain: (Option<String>, Encoding),
    hex: Option<String>,
    base64: Option<String>,
) -> Result<Vec<u8>> {
    let forms = [plain, (hex, Encoding::Hex), (base64, Encoding::Base64)];
    let mut given = forms.into_iter().filter_map(|(text, encoding)| Some((text?, encoding)));
    match (given.next(), given.next()) {
        (Some((text, encoding)), None) => decode(&text, encoding),
        (None, _) => Err(Error::invalid(format!("no `{name}`"))),
        (Some(_), Some(_)) => Err(Error::invalid(format!("`{name}` is given twice"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_a_field_is_read_and_two_are_refused() {
        let read = |line: &str, encoding| parse(line.as_bytes(), encoding, 100);
        for (expiry, expected) in
            [(r#","ttl_s":9"#, 109), (r#","expires_at_s":7"#, 7), (r#","ttl_s":0"#, 0), ("", 0)]
        {
            let line = format!(r#"{{"key":"k","value":"v"{expiry}}}"#);
            let text = read(&line, Encoding::Text).unwrap();
            assert_eq!(text, (b"k".to_vec(), b"v".to_vec(), expected), "{line}");
        }
        assert!(
            read(r#"{"key":"k","value":"v","ttl_s":9,"expires_at_s":7}"#, Encoding::Text).is_err()
        );
        let mixed = read(r#"{"key_hex":"ff00","value_base64":"AAE="}"#, Encoding::Text).unwrap();
        assert_eq!(mixed, (vec![255, 0], vec![0, 1], 0));
        let hex = read(r#"{"key":"6b","value":""}"#, Encoding::Hex).unwrap();
        assert_eq!(hex, (b"k".to_vec(), vec![], 0));
        for bad in ["{}", "nonsense", r#"{"key":"a","key_hex":"61","value":""}"#, r#"{"key":"a"}"#]
        {
            assert!(read(bad, Encoding::Text).is_err(), "{bad}");
        }
    }
}
