//! `stele export`: writes all pairs as files or as JSON lines.

mod folder;
mod lines;

pub(crate) use lines::put_field;

use crate::Outcome;
use crate::args::Export;
use crate::attributes::{self, Attributes};
use crate::progress::Progress;
use crate::reader::Reader;
use crate::store::{Order, Pair, Tuning};
use crate::text::{key_range, printable};
use folder::Folder;
use lines::Lines;
use std::fs::File;
use std::io;
use std::path::Path;
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

/// Destination of exported pairs.
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
