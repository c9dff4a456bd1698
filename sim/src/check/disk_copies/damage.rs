//! Damage to a store that does not run: it opens with what it held or says what is wrong, and what
//! it shows is right.

use super::DiskCopy;
use super::facts::{Facts, catch_up, difference, pairs};
use crate::world::DIR;
use std::path::{Path, PathBuf};
use stele_engine::{Cached, Store};
use stele_index::{Direction, inspect_manifest};
use stele_storage::{EngineView, StorageEngine};
use stele_types::{KeyRange, Prng, ValueRef};
use stele_vfs::Fault;

/// A block of the smallest device: frames begin at its multiples.
const BLOCK_BYTES: usize = 512;
/// The end of a manifest is damaged so often more: mostly a store says so for other reasons too.
const ENDS_TRIED: usize = 3;
const TRIES_MAX: usize = 8;
const SLICE_BYTES: u64 = 32 << 10;

/// What was done to a disk.
struct Harm {
    text: String,
    /// What a store may do about it.
    may: May,
}

#[derive(PartialEq, Eq)]
enum May {
    /// Refuse to open.
    Refuse,
    /// It must open: nothing that counts was touched.
    Open,
    /// It must not: what is gone counts, and can't be made again.
    Must,
}

pub fn look(twin: &DiskCopy, engine: &Store, live: &Facts, prng: &mut Prng) -> Option<String> {
    let once = |prng: &mut Prng| {
        let twin = twin.after(prng);
        opens_with(&twin, harm(&twin, engine, prng)?, live)
    };
    once(prng).or_else(|| (0..ENDS_TRIED).find_map(|_| last_edit(twin, live, prng)))
}

/// The last edit of a manifest is damaged, after a power cut as well.
fn last_edit(twin: &DiskCopy, live: &Facts, prng: &mut Prng) -> Option<String> {
    let twin = twin.cut(prng);
    opens_with(&twin, flip_manifest(&twin, prng, 120)?, live)
}

/// What is wrong with what opens with that harm.
fn opens_with(twin: &DiskCopy, harm: Harm, live: &Facts) -> Option<String> {
    let (store, opened) = match (twin.open(), harm.may) {
        (Ok(_), May::Must) => return Some(format!("it opens though {}", harm.text)),
        (Ok(opened), _) => opened,
        (Err(error), May::Open) => {
            return Some(format!("it does not open: {error}, though only {}", harm.text));
        }
        (Err(_), _) => return None,
    };
    // A manifest made again from runs knows less than the old one.
    if opened.rebuilt.is_some() {
        return None;
    }
    let text = live
        .missing_in(&Facts::without_pairs(&store))
        .or_else(|| shows_else(&store, live))
        .or_else(|| waits_for_merge(&store));
    text.map(|text| format!("{}: {text}", harm.text))
}

/// A merge that can't be gone on with is forgotten: all other maintenance would wait for it.
fn waits_for_merge(store: &Store) -> Option<String> {
    let mut error = None;
    for _ in 0..TRIES_MAX {
        error = Some(store.maintain(SLICE_BYTES).err()?);
        store.index().pending_merge()?;
    }
    Some(format!("its maintenance waits for a merge that can't be gone on with: {error:?}"))
}

/// What it shows that it did not hold.
fn shows_else(store: &Store, live: &Facts) -> Option<String> {
    if !matches!(catch_up(store, &live.applied()), Ok(true)) {
        return None;
    }
    if let Ok(now) = pairs(store) {
        return difference(&live.pairs, &now);
    }
    let view = store.view().ok()?;
    live.pairs.iter().find_map(|pair| {
        let shown = |found| match found {
            Some(now) if now == *pair => None,
            other => Some(format!("{:?} is {other:?}", pair.key)),
        };
        let got = view.get(&pair.key).ok().and_then(shown);
        got.or_else(|| match view.get_cached(&pair.key) {
            Ok(Cached::Here(found)) => shown(found),
            _ => None,
        })
    })
}

fn harm(twin: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<Harm> {
    match prng.below(12) {
        0 | 1 => flip(twin, prng, |name| name.ends_with(".run"), 200),
        2 => flip_manifest(twin, prng, u64::MAX),
        3 => flip_manifest(twin, prng, 120),
        4 => {
            let newest = newest_segment(twin)?.to_string_lossy().into_owned();
            let kinds = [".run", ".val", ".side", ".seg"];
            let may = |name: &str| kinds.iter().any(|kind| name.ends_with(kind)) && name != newest;
            flip(twin, prng, may, u64::MAX)
        }
        5 | 6 => flip_frame(twin, engine, prng),
        7 => lose_run(twin, engine, prng),
        8 => lose_end(twin),
        9 => stray(twin, engine, prng),
        _ => flip_value(twin, engine, prng),
    }
}

fn flip_at(twin: &DiskCopy, path: PathBuf, offset: u64, prng: &mut Prng) -> Option<Harm> {
    let bit = prng.below(8) as u8;
    let text = format!("bit {bit} of byte {offset} of {} is flipped", path.display());
    twin.disk.inject(Fault::FlipBit { path, offset, bit }).ok()?;
    Some(Harm { text, may: May::Refuse })
}

/// One bit of the last bytes of a file.
fn flip(twin: &DiskCopy, prng: &mut Prng, may: impl Fn(&str) -> bool, last: u64) -> Option<Harm> {
    let paths = twin.disk.paths().into_iter();
    let paths: Vec<PathBuf> = paths.filter(|path| may(&path.to_string_lossy())).collect();
    let path = paths.get(prng.below(paths.len() as u64) as usize)?.clone();
    let bytes = twin.disk.file_bytes(&path)?;
    let offset = bytes.saturating_sub(last) + prng.below(bytes.min(last));
    flip_at(twin, path, offset, prng)
}

/// One bit of a manifest whose last edit is there twice: on a full device its repetition may have found
/// no room, and until the next edit damage of it looks like a crash.
fn flip_manifest(twin: &DiskCopy, prng: &mut Prng, last: u64) -> Option<Harm> {
    let is_manifest = |path: &&PathBuf| path.to_string_lossy().contains("manifest-");
    let ends_twice = |path: &PathBuf| {
        let mut frames = Vec::new();
        let read = inspect_manifest(&twin.disk, path, &mut |it| frames.extend(it.content.ok()));
        read.is_ok() && frames.last_chunk().is_some_and(|[edit, repetition]| edit == repetition)
    };
    let paths = twin.disk.paths();
    let is_sound = paths.iter().filter(is_manifest).all(ends_twice);
    is_sound.then(|| flip(twin, prng, |name| name.contains("manifest-"), last))?
}

fn newest_segment(twin: &DiskCopy) -> Option<PathBuf> {
    let is_segment = |path: &PathBuf| {
        path.extension().is_some_and(|kind| kind == "seg")
            && !path.to_string_lossy().contains("free-")
    };
    twin.disk.paths().into_iter().filter(is_segment).max()
}

/// The newest segment, its bytes, and where its frames begin up to `end`. A frame's header names its
/// file and place.
fn frames(twin: &DiskCopy, end: Option<u32>) -> Option<(PathBuf, Vec<u8>, Vec<usize>)> {
    let path = newest_segment(twin)?;
    let file = u32::from_str_radix(path.file_stem()?.to_str()?, 16).ok()?;
    let bytes = twin.disk.read_file(&path).ok()?;
    let word = |at: usize| {
        let four: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|it| it.try_into().ok());
        four.map(u32::from_le_bytes)
    };
    let names = |at: &usize| word(at + 8) == Some(file) && word(at + 12) == Some(*at as u32);
    let end = end.map_or(bytes.len(), |end| bytes.len().min(end as usize));
    let begins = (BLOCK_BYTES..end).step_by(BLOCK_BYTES).filter(names).collect();
    Some((path, bytes, begins))
}

/// One bit of a batch that others follow.
fn flip_frame(twin: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<Harm> {
    let (path, _, begins) = frames(twin, Some(engine.log().head().offset))?;
    let (first, last) = (*begins.first()?, *begins.last()?);
    let offset = first as u64 + prng.below((last - first) as u64);
    (first < last).then(|| flip_at(twin, path, offset, prng)).flatten()
}

fn lose_run(twin: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<Harm> {
    let version = engine.index().version();
    let runs: Vec<PathBuf> = version.runs().map(|run| run.path().to_path_buf()).collect();
    let path = runs.get(prng.below(runs.len() as u64) as usize)?;
    let text = format!("{} is lost", path.display());
    stele_vfs::Vfs::unlink(&twin.disk, path).ok()?;
    // Other replicas have what it held; here nobody may take that for deleted.
    Some(Harm { text, may: May::Open })
}

/// The last batch is lost, which a checkpoint covers.
fn lose_end(twin: &DiskCopy) -> Option<Harm> {
    let engine = twin.open_store().ok()?;
    engine.flush().ok()?;
    let covered = engine.index().checkpoint().replay_from;
    let (path, bytes, begins) = frames(twin, Some(engine.log().head().offset))?;
    if covered.file != engine.log().head().file || begins.len() < 2 {
        return None;
    }
    drop(engine);
    let last = *begins.last()?;
    let text = format!("{} ends at {last}, and {covered} is checkpointed", path.display());
    twin.disk.write_file(&path, bytes.get(..last)?);
    (last < covered.offset as usize).then_some(Harm { text, may: May::Must })
}

/// A write of another place lands behind the last batch.
fn stray(twin: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<Harm> {
    let head = engine.log().head().offset as usize;
    let (path, mut bytes, begins) = frames(twin, Some(head as u32))?;
    let at = prng.below(begins.len() as u64) as usize;
    let begin = *begins.get(at)?;
    let end = begins.get(at + 1).copied().unwrap_or(head);
    let copy = bytes.get(begin..end)?.to_vec();
    bytes.resize(bytes.len().max(head + copy.len()), 0);
    bytes.get_mut(head..head + copy.len())?.copy_from_slice(&copy);
    twin.disk.write_file(&path, &bytes);
    let text = format!("{begin}..{end} of {} lies at {head} as well", path.display());
    Some(Harm { text, may: May::Open })
}

/// One bit of a value that the index refers to.
fn flip_value(twin: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<Harm> {
    let newest = engine.log().head().file;
    let range = KeyRange::new(Vec::new(), Vec::new());
    let mut iter = engine.index().view().iter(range, Direction::Forward).ok()?;
    let mut places = Vec::new();
    while let Ok(Some((_, value, _))) = iter.next() {
        if let ValueRef::At(at) = value
            && at.length > 0
            && at.file != newest
        {
            places.push(at);
        }
    }
    let at = places.get(prng.below(places.len() as u64) as usize)?;
    let log = Path::new(DIR).join("log");
    let names = ["seg", "val"].map(|kind| log.join(format!("{:08x}.{kind}", at.file.0)));
    let path = names.into_iter().find(|path| twin.disk.file_bytes(path).is_some())?;
    flip_at(twin, path, u64::from(at.offset) + prng.below(u64::from(at.length)), prng)
}
