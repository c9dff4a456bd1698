//! Checks the installation of a snapshot with faults and crashes. The log has none of its pairs: if
//! the manifest edits are lost, the pairs are lost.

use super::DiskCopy;
use super::observed_state::difference;
use super::rare_operations::put;
use std::path::PathBuf;
use stele_engine::Store;
use stele_index::{Change, inspect_manifest};
use stele_simulated_disk::{Fault, SimVfs};
use stele_storage::{EngineView, LogStore, Pair, ScanOptions, Snapshots, StateMachine};
use stele_types::{
    KeyRange, LogIndex, Prng, Region, RegionId, RegionPhase, Result, Term, keyspace,
};

const NEW: [u8; 100] = [b'n'; 100];
/// Approximate number of disk operations of an installation.
const OPERATIONS: u64 = 24;
const FRAME_HEADER_BYTES: u64 = 16;

/// Fault before or after an installation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// The log's next write fails.
    Log,
    /// The device is full from some operation on; then a power cut.
    Full,
    /// One write of a manifest edit finds no space; then a power cut.
    NoRoom,
    /// Power cut, then damage to one copy of the manifest edit.
    Edit,
    /// Damage to both copies of the manifest edit, with later edits after them.
    BothEdits,
}

/// Draws an existing region of user data. Returns it with its key ranges.
fn data_region(store: &Store, prng: &mut Prng) -> Option<(Region, Vec<KeyRange>)> {
    let range = keyspace::region_keys();
    let found = store.view().ok()?.scan(&ScanOptions::new(range, usize::MAX)).ok()?;
    let regions = found.iter().filter_map(|pair| Region::decode(&pair.value).ok());
    let is_there = |it: &Region| {
        let present = store.progress(it.id).is_some_and(|progress| !progress.destroyed);
        present && it.phase == RegionPhase::Normal && it.id.0 > 1
    };
    let regions: Vec<Region> = regions.filter(is_there).collect();
    let region = regions.get(prng.below(regions.len() as u64) as usize)?.clone();
    let mut ranges = region.engine_ranges();
    ranges.sort_by(|a, b| a.start.cmp(&b.start));
    Some((region, ranges))
}

fn pairs_in(store: &Store, ranges: &[KeyRange]) -> Result<Vec<Pair>> {
    let view = store.view()?;
    let mut pairs = Vec::new();
    for range in ranges {
        pairs.extend(view.scan(&ScanOptions::new(range.clone(), usize::MAX))?);
    }
    Ok(pairs)
}

/// Installs a snapshot with a fault, and checks the state after a crash. The last entry of the
/// snapshot has a later term than the log.
pub(super) fn check(copy: &DiskCopy, store: Store, prng: &mut Prng) -> Option<String> {
    let (region, ranges) = data_region(&store, prng)?;
    let range = ranges.iter().find(|range| !range.start.is_empty())?;
    let key = [&range.start[..], b"~new"].concat();
    if !range.contains(&key) {
        return None;
    }
    if let Some(text) = abandoned(copy, &store, &ranges, &key) {
        return Some(text);
    }
    let mut after = pairs_in(&store, &ranges).ok()?;
    after.truncate(after.len() / 2);
    put(&store, region.id, &key, &NEW).ok()?;
    let before = pairs_in(&store, &ranges).ok()?;
    let was = store.progress(region.id)?;
    let at = (was.persisted.0, Term(was.persisted.1.0 + 1));
    let case = Case { region: region.id, ranges, at, truncated: was.truncated, before, after };
    let trouble = Trouble::draw(prng);
    let mut ingest = store.begin_ingest(case.ranges.clone()).ok()?;
    store.receive(&mut ingest, case.after.clone()).ok()?;
    trouble.begin(copy, prng)?;
    let edits = Edits::of(&copy.disk)?;
    let done = store.install(region.id, at, ingest);
    let may_fail = matches!(trouble, Trouble::Log | Trouble::Full | Trouble::NoRoom);
    if let (Err(error), false) = (&done, may_fail) {
        return Some(format!("a snapshot is refused without a fault: {error}"));
    }
    if trouble == Trouble::BothEdits {
        let installed = Edits::of(&copy.disk)?.after(&edits)?;
        put(&store, region.id, &key, &NEW).and_then(|()| store.flush()).ok()?;
        drop(store);
        return case.without_edits(copy, &installed, prng);
    }
    drop(store);
    let copy = match trouble {
        Trouble::Full | Trouble::NoRoom | Trouble::Edit => copy.cut(prng),
        _ => copy.after(prng),
    };
    if trouble == Trouble::Edit {
        let edits = Edits::of(&copy.disk)?;
        edits.flip(&copy, edits.first_of_last()?, prng)?;
    }
    let text = case.differs(&copy, done.is_ok())?;
    Some(format!("after an installation with fault {trouble:?} and a crash: {text}"))
}

impl Trouble {
    fn draw(prng: &mut Prng) -> Self {
        match prng.below(10) {
            0 => Self::Nothing,
            1 | 2 => Self::Log,
            3 => Self::Full,
            4..=6 => Self::NoRoom,
            7 | 8 => Self::Edit,
            _ => Self::BothEdits,
        }
    }

    fn begin(self, copy: &DiskCopy, prng: &mut Prng) -> Option<()> {
        let operations = copy.disk.operations();
        let fault = match self {
            Self::Log => Fault::WriteFails { path_contains: ".seg".into(), nth: 1 },
            Self::Full => Fault::NoSpace { from_operation: operations + prng.below(OPERATIONS) },
            Self::NoRoom => {
                // Each edit is written twice, and a flush may come first.
                let nth = [1, 2, 2, 3, 4, 4][prng.below(6) as usize];
                Fault::NoRoomOnce { path_contains: "manifest-".into(), nth }
            }
            _ => return Some(()),
        };
        copy.disk.inject(fault).ok()
    }
}

struct Case {
    region: RegionId,
    ranges: Vec<KeyRange>,
    at: (LogIndex, Term),
    /// Start of the region's log before the installation.
    truncated: (LogIndex, Term),
    before: Vec<Pair>,
    after: Vec<Pair>,
}

impl Case {
    /// Returns a difference if the region is neither in the old state nor in the new one, or in the
    /// old one although the installation succeeded.
    fn differs(&self, copy: &DiskCopy, is_done: bool) -> Option<String> {
        let store = match copy.open_store() {
            Ok(store) => store,
            Err(error) => return Some(format!("it does not open: {error}")),
        };
        let now = pairs_in(&store, &self.ranges).ok()?;
        let is_after = now == self.after;
        if is_done && !is_after {
            let what = difference(&self.after, &now);
            return Some(format!("an installed snapshot is lost: {what:?}"));
        }
        let begins = if is_after { self.at } else { self.truncated };
        let other = difference(&self.before, &now).filter(|_| !is_after);
        let progress = store.progress(self.region).unwrap_or_default();
        other.or((progress.truncated != begins).then(|| {
            format!("with a snapshot at {:?}, region {} is {progress:?}", self.at, self.region)
        }))
    }

    /// Damages both copies of each edit of the installation. Returns an error if the store opens
    /// without these edits although later ones follow. Mostly the store reports the damage and does
    /// not open.
    fn without_edits(&self, copy: &DiskCopy, edits: &Edits, prng: &mut Prng) -> Option<String> {
        for frame in 0..edits.frames.len() {
            edits.flip(copy, frame, prng)?;
        }
        let (store, opened) = copy.open().ok()?;
        if opened.rebuilt.is_some() {
            return None;
        }
        let now = pairs_in(&store, &self.ranges).ok()?;
        let text = "it opens without the edits of an installation, although later edits follow";
        (now == self.before).then(|| text.to_owned())
    }
}

struct Edits {
    path: PathBuf,
    frames: Vec<(u64, Vec<Change>)>,
}

impl Edits {
    /// Reads the newest manifest.
    fn of(disk: &SimVfs) -> Option<Self> {
        let is_manifest = |path: &PathBuf| path.to_string_lossy().contains("manifest-");
        let path = disk.paths().into_iter().filter(is_manifest).max()?;
        let mut frames = Vec::new();
        inspect_manifest(disk, &path, &mut |it| {
            frames.extend(it.content.ok().map(|content| (it.offset, content)));
        })
        .ok()?;
        Some(Self { path, frames })
    }

    /// Returns the frames after those of `earlier`, if the file is the same.
    fn after(mut self, earlier: &Self) -> Option<Self> {
        let is_same = self.path == earlier.path && self.frames.len() > earlier.frames.len();
        self.frames.drain(..earlier.frames.len().min(self.frames.len()));
        is_same.then_some(self)
    }

    fn first_of_last(&self) -> Option<usize> {
        let (_, last) = self.frames.last()?;
        let others = self.frames.iter().rev().skip_while(|(_, edit)| edit == last);
        Some(others.count())
    }

    fn flip(&self, copy: &DiskCopy, frame: usize, prng: &mut Prng) -> Option<()> {
        let (offset, _) = self.frames.get(frame)?;
        let (path, bit) = (self.path.clone(), prng.below(8) as u8);
        let offset = offset + prng.below(FRAME_HEADER_BYTES);
        copy.disk.inject(Fault::FlipBit { path, offset, bit }).ok()
    }
}

/// Checks that an abandoned snapshot leaves no files.
fn abandoned(copy: &DiskCopy, store: &Store, ranges: &[KeyRange], key: &[u8]) -> Option<String> {
    const VALUE_BYTES: usize = 16 << 10;
    let before = copy.disk.paths();
    let mut ingest = store.begin_ingest(ranges.to_vec()).ok()?;
    let pair = |at: u64| Pair {
        key: [key, &at.to_be_bytes()[..]].concat().into(),
        value: vec![at as u8; VALUE_BYTES].into(),
        expires_at_s: 0,
    };
    let count = copy.options.segment_bytes_max / VALUE_BYTES as u64 + 1;
    let received = store.receive(&mut ingest, (0..count).map(pair).collect());
    drop(ingest);
    received.ok()?;
    let left = copy.disk.paths().into_iter().find(|path| !before.contains(path));
    left.map(|path| format!("an abandoned snapshot leaves {}", path.display()))
}
