//! Checks a damaged disk: the store opens with its state or reports the damage, and never returns
//! wrong pairs.

use super::DiskCopy;
use super::observed_state::{ObservedState, catch_up, difference, pairs};
use crate::world::DIR;
use std::path::{Path, PathBuf};
use stele_engine::Store;
use stele_index::{Direction, inspect_manifest};
use stele_simulated_disk::Fault;
use stele_storage::{CachedGet, EngineView, StateMachine};
use stele_types::{KeyRange, Prng, ValueRef};

/// Block size of the smallest device; frames start at its multiples.
const BLOCK_BYTES: usize = 512;
/// Further attempts at damaging the end of a manifest; mostly another part reports an error first.
const ENDS_TRIED: usize = 3;
const TRIES_MAX: usize = 8;
const SLICE_BYTES: u64 = 32 << 10;

struct InjectedDamage {
    text: String,
    /// Permitted reaction of the store.
    may: Expectation,
}

#[derive(PartialEq, Eq)]
enum Expectation {
    /// The store may refuse to open.
    MayRefuse,
    /// The store must open: no needed data was touched.
    MustOpen,
    /// The store must refuse to open: needed data is lost and cannot be rebuilt.
    MustRefuse,
}

pub(super) fn check(
    copy: &DiskCopy,
    engine: &Store,
    live: &ObservedState,
    prng: &mut Prng,
) -> Option<String> {
    let once = |prng: &mut Prng| {
        let copy = copy.after(prng);
        opens_with(&copy, inject(&copy, engine, prng)?, live)
    };
    once(prng).or_else(|| (0..ENDS_TRIED).find_map(|_| last_edit(copy, live, prng)))
}

/// Damages the last edit of a manifest, also after a power cut.
fn last_edit(copy: &DiskCopy, live: &ObservedState, prng: &mut Prng) -> Option<String> {
    let copy = copy.cut(prng);
    opens_with(&copy, flip_manifest(&copy, prng, 120)?, live)
}

fn opens_with(copy: &DiskCopy, damage: InjectedDamage, live: &ObservedState) -> Option<String> {
    let (store, opened) = match (copy.open(), damage.may) {
        (Ok(_), Expectation::MustRefuse) => {
            return Some(format!("it opens though {}", damage.text));
        }
        (Ok(opened), _) => opened,
        (Err(error), Expectation::MustOpen) => {
            return Some(format!("it does not open: {error}, though only {}", damage.text));
        }
        (Err(_), _) => return None,
    };
    // A manifest rebuilt from runs holds less than the old one.
    if opened.rebuilt.is_some() {
        return None;
    }
    let text = live
        .missing_in(&ObservedState::without_pairs(&store))
        .or_else(|| wrong_pair(&store, live))
        .or_else(|| waits_for_merge(&store));
    text.map(|text| format!("{}: {text}", damage.text))
}

/// Returns an error if maintenance keeps a merge that it cannot continue: all other maintenance
/// would wait for it.
fn waits_for_merge(store: &Store) -> Option<String> {
    let mut error = None;
    for _ in 0..TRIES_MAX {
        error = Some(store.maintain(SLICE_BYTES).err()?);
        store.index().pending_merge()?;
    }
    Some(format!("its maintenance waits for a merge that it cannot continue: {error:?}"))
}

/// Returns a pair that the store shows but did not hold.
fn wrong_pair(store: &Store, live: &ObservedState) -> Option<String> {
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
            Ok(CachedGet::Ready(found)) => shown(found),
            _ => None,
        })
    })
}

fn inject(copy: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<InjectedDamage> {
    match prng.below(12) {
        0 | 1 => flip(copy, prng, |name| name.ends_with(".run"), 200),
        2 => flip_manifest(copy, prng, u64::MAX),
        3 => flip_manifest(copy, prng, 120),
        4 => {
            let newest = newest_segment(copy)?.to_string_lossy().into_owned();
            let kinds = [".run", ".val", ".side", ".seg"];
            let may = |name: &str| kinds.iter().any(|kind| name.ends_with(kind)) && name != newest;
            flip(copy, prng, may, u64::MAX)
        }
        5 | 6 => flip_frame(copy, engine, prng),
        7 => lose_run(copy, engine, prng),
        8 => lose_end(copy),
        9 => misplaced_write(copy, engine, prng),
        _ => flip_value(copy, engine, prng),
    }
}

fn flip_at(copy: &DiskCopy, path: PathBuf, offset: u64, prng: &mut Prng) -> Option<InjectedDamage> {
    let bit = prng.below(8) as u8;
    let text = format!("bit {bit} of byte {offset} of {} is flipped", path.display());
    copy.disk.inject(Fault::FlipBit { path, offset, bit }).ok()?;
    Some(InjectedDamage { text, may: Expectation::MayRefuse })
}

/// Flips a bit in the last bytes of a file.
fn flip(
    copy: &DiskCopy,
    prng: &mut Prng,
    may: impl Fn(&str) -> bool,
    last: u64,
) -> Option<InjectedDamage> {
    let paths = copy.disk.paths().into_iter();
    let paths: Vec<PathBuf> = paths.filter(|path| may(&path.to_string_lossy())).collect();
    let path = paths.get(prng.below(paths.len() as u64) as usize)?.clone();
    let bytes = copy.disk.file_bytes(&path)?;
    let offset = bytes.saturating_sub(last) + prng.below(bytes.min(last));
    flip_at(copy, path, offset, prng)
}

/// Flips a bit in a manifest if its last edit is written twice. On a full device the second copy may
/// be missing; until the next edit, damage to the first then looks like a crash.
fn flip_manifest(copy: &DiskCopy, prng: &mut Prng, last: u64) -> Option<InjectedDamage> {
    let is_manifest = |path: &&PathBuf| path.to_string_lossy().contains("manifest-");
    let ends_twice = |path: &PathBuf| {
        let mut frames = Vec::new();
        let read = inspect_manifest(&copy.disk, path, &mut |it| frames.extend(it.content.ok()));
        read.is_ok() && frames.last_chunk().is_some_and(|[edit, repetition]| edit == repetition)
    };
    let paths = copy.disk.paths();
    let is_sound = paths.iter().filter(is_manifest).all(ends_twice);
    is_sound.then(|| flip(copy, prng, |name| name.contains("manifest-"), last))?
}

fn newest_segment(copy: &DiskCopy) -> Option<PathBuf> {
    let is_segment = |path: &PathBuf| {
        path.extension().is_some_and(|kind| kind == "seg")
            && !path.to_string_lossy().contains("free-")
    };
    copy.disk.paths().into_iter().filter(is_segment).max()
}

/// Returns the newest segment, its bytes, and the offsets of its frames up to `end`. A frame's
/// header holds its file and offset.
fn frames(copy: &DiskCopy, end: Option<u32>) -> Option<(PathBuf, Vec<u8>, Vec<usize>)> {
    let path = newest_segment(copy)?;
    let file = u32::from_str_radix(path.file_stem()?.to_str()?, 16).ok()?;
    let bytes = copy.disk.read_file(&path).ok()?;
    let word = |at: usize| {
        let four: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|it| it.try_into().ok());
        four.map(u32::from_le_bytes)
    };
    let names = |at: &usize| word(at + 8) == Some(file) && word(at + 12) == Some(*at as u32);
    let end = end.map_or(bytes.len(), |end| bytes.len().min(end as usize));
    let begins = (BLOCK_BYTES..end).step_by(BLOCK_BYTES).filter(names).collect();
    Some((path, bytes, begins))
}

/// Flips a bit in a batch that other batches follow.
fn flip_frame(copy: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<InjectedDamage> {
    let (path, _, begins) = frames(copy, Some(engine.log().head().offset))?;
    let (first, last) = (*begins.first()?, *begins.last()?);
    let offset = first as u64 + prng.below((last - first) as u64);
    (first < last).then(|| flip_at(copy, path, offset, prng)).flatten()
}

fn lose_run(copy: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<InjectedDamage> {
    let version = engine.index().version();
    let runs: Vec<PathBuf> = version.runs().map(|run| run.path().to_path_buf()).collect();
    let path = runs.get(prng.below(runs.len() as u64) as usize)?;
    let text = format!("{} is lost", path.display());
    stele_vfs::Vfs::unlink(&copy.disk, path).ok()?;
    // Other replicas have what it held. The store must not treat it as deleted.
    Some(InjectedDamage { text, may: Expectation::MustOpen })
}

/// Truncates the last batch, which a checkpoint covers.
fn lose_end(copy: &DiskCopy) -> Option<InjectedDamage> {
    let engine = copy.open_store().ok()?;
    engine.flush().ok()?;
    let covered = engine.index().checkpoint().replay_from;
    let (path, bytes, begins) = frames(copy, Some(engine.log().head().offset))?;
    if covered.file != engine.log().head().file || begins.len() < 2 {
        return None;
    }
    drop(engine);
    let last = *begins.last()?;
    let text = format!("{} ends at {last}, and {covered} is checkpointed", path.display());
    copy.disk.write_file(&path, bytes.get(..last)?);
    (last < covered.offset as usize)
        .then_some(InjectedDamage { text, may: Expectation::MustRefuse })
}

/// Copies another frame after the last batch, like a misdirected write.
fn misplaced_write(copy: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<InjectedDamage> {
    let head = engine.log().head().offset as usize;
    let (path, mut bytes, begins) = frames(copy, Some(head as u32))?;
    let at = prng.below(begins.len() as u64) as usize;
    let begin = *begins.get(at)?;
    let end = begins.get(at + 1).copied().unwrap_or(head);
    let frame = bytes.get(begin..end)?.to_vec();
    bytes.resize(bytes.len().max(head + frame.len()), 0);
    bytes.get_mut(head..head + frame.len())?.copy_from_slice(&frame);
    copy.disk.write_file(&path, &bytes);
    let text = format!("{begin}..{end} of {} lies at {head} as well", path.display());
    Some(InjectedDamage { text, may: Expectation::MustOpen })
}

/// Flips a bit in a value that the index references.
fn flip_value(copy: &DiskCopy, engine: &Store, prng: &mut Prng) -> Option<InjectedDamage> {
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
    let path = names.into_iter().find(|path| copy.disk.file_bytes(path).is_some())?;
    flip_at(copy, path, u64::from(at.offset) + prng.below(u64::from(at.length)), prng)
}
