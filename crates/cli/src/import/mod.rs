//! `stele import`: stores files or JSON lines.
//!
//! Running an interrupted import again resumes it: a pair that the store holds with the same value
//! is not written again. Only the pairs are stored; there is no bookmark that could be wrong, and
//! files changed meanwhile are updated.

mod folder;
mod lines;
mod writer;

/// Parsers of untrusted bytes, for fuzz targets.
pub(crate) mod fuzzing {
    use crate::args::Encoding;

    /// Parses a JSON line in each encoding of plain fields; returns the number of encodings that
    /// accept it.
    pub fn line(line: &[u8]) -> usize {
        let encodings = [Encoding::Text, Encoding::Hex, Encoding::Base64];
        encodings
            .into_iter()
            .filter(|encoding| super::lines::parse(line, *encoding, 0).is_ok())
            .count()
    }
}

use crate::Outcome;
use crate::args::Import;
use crate::attributes::{self, Attributes};
use crate::progress::Progress;
use crate::store::{Store, Tuning};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;
use stele_types::size::format_bytes;
use stele_types::{Error, Result};
use writer::Writer;

/// Approximate size of the chunks in which the reading thread sends items to the writing thread.
const CHUNK_BYTES: u64 = 4 << 20;
/// Maximum number of chunks in the channel: reading proceeds ahead of writing in bounded memory.
const CHUNKS_WAITING: usize = 2;

/// Item that a source yields.
enum Item {
    Pair {
        key: Vec<u8>,
        value: Vec<u8>,
        /// Unix seconds; 0 never.
        expires_at_s: u64,
        source_bytes: u64,
    },
    /// A pair that had expired.
    Expired { source_bytes: u64 },
    /// An item that cannot be read or stored; the import continues.
    Refused { what: String, error: Error, source_bytes: u64 },
    /// A symbolic link or other special file.
    Skipped { path: PathBuf, kind: &'static str },
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
    let (dir, from) = (&args.target.store, &args.from);
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
                false => lines::read(from, args.encoding, &mut sink).map(|()| before)?,
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

/// Returns the attributes that earlier imports of folders left in the store.
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
