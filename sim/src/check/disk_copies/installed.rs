//! A snapshot replaces what a region holds. The log has none of its pairs: what is lost of the index's
//! manifest is lost with them.

use super::DiskCopy;
use super::facts::difference;
use super::laws::put;
use std::path::PathBuf;
use stele_engine::Store;
use stele_index::{Change, inspect_manifest};
use stele_storage::{EngineView, Pair, ScanOptions, StorageEngine};
use stele_types::{
    KeyRange, LogIndex, Prng, Region, RegionId, RegionPhase, Result, Term, keyspace,
};
use stele_vfs::{Fault, SimVfs};

const NEW: [u8; 100] = [b'n'; 100];
/// Operations of an installation, about.
const OPERATIONS: u64 = 24;
/// Before what a frame of a manifest says.
const FRAME_HEADER_BYTES: u64 = 16;

/// What is in the way of an installation, or is done to it afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Nothing,
    /// The log's next write fails.
    Log,
    /// Nothing more fits from some operation on, and then the power goes.
    Full,
    /// One write of its edits finds no room, and then the power goes.
    NoRoom,
    /// The power goes, and then one writing of its edit is damaged.
    Edit,
    /// Both are, and others follow.
    BothEdits,
}

/// A region of user data that is there, and all it holds.
fn data_region(store: &Store, prng: &mut Prng) -> Option<(Region, Vec<KeyRange>)> {
    let range = keyspace::region_keys();
    let found = store.view().ok()?.scan(&ScanOptions::new(range, usize::MAX)).ok()?;
    let regions = found.iter().filter_map(|pair| Region::decode(&pair.value).ok());
    let is_there = |it: &Region| {
        let alive = store.progress(it.id).is_some_and(|progress| !progress.destroyed);
        alive && it.phase == RegionPhase::Normal && it.id.0 > 1
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

/// Where the log has the entry of another leader.
pub fn look(twin: &DiskCopy, store: Store, prng: &mut Prng) -> Option<String> {
    let (region, ranges) = data_region(&store, prng)?;
    let range = ranges.iter().find(|range| !range.start.is_empty())?;
    let key = [&range.start[..], b"~new"].concat();
    if !range.contains(&key) {
        return None;
    }
    if let Some(text) = given_up(twin, &store, &ranges, &key) {
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
    let mut incoming = store.begin_ingest(case.ranges.clone()).ok()?;
    store.receive(&mut incoming, case.after.clone()).ok()?;
    trouble.begin(twin, prng)?;
    let edits = Edits::of(&twin.disk)?;
    let done = store.install(region.id, at, incoming);
    let may_fail = matches!(trouble, Trouble::Log | Trouble::Full | Trouble::NoRoom);
    if let (Err(error), false) = (&done, may_fail) {
        return Some(format!("a snapshot is refused though nothing is in its way: {error}"));
    }
    if trouble == Trouble::BothEdits {
        let installed = Edits::of(&twin.disk)?.behind(&edits)?;
        put(&store, region.id, &key, &NEW).and_then(|()| store.flush()).ok()?;
        drop(store);
        return case.without_edits(twin, &installed, prng);
    }
    drop(store);
    let twin = match trouble {
        Trouble::Full | Trouble::NoRoom | Trouble::Edit => twin.cut(prng),
        _ => twin.after(prng),
    };
    if trouble == Trouble::Edit {
        let edits = Edits::of(&twin.disk)?;
        edits.flip(&twin, edits.first_of_last()?, prng)?;
    }
    let text = case.differs(&twin, done.is_ok())?;
    Some(format!("after a crash behind an installation, with {trouble:?} in its way: {text}"))
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

    fn begin(self, twin: &DiskCopy, prng: &mut Prng) -> Option<()> {
        let operations = twin.disk.operations();
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
        twin.disk.inject(fault).ok()
    }
}

/// What a region held, and what a snapshot brings.
struct Case {
    region: RegionId,
    ranges: Vec<KeyRange>,
    /// The snapshot's last entry.
    at: (LogIndex, Term),
    /// Where the region's log began.
    truncated: (LogIndex, Term),
    before: Vec<Pair>,
    after: Vec<Pair>,
}

impl Case {
    /// What is neither as before nor as after, or is as before though it was done.
    fn differs(&self, twin: &DiskCopy, is_done: bool) -> Option<String> {
        let store = match twin.open_store() {
            Ok(store) => store,
            Err(error) => return Some(format!("it does not open: {error}")),
        };
        let now = pairs_in(&store, &self.ranges).ok()?;
        let is_after = now == self.after;
        if is_done && !is_after {
            let what = difference(&self.after, &now);
            return Some(format!("an installed snapshot is gone: {what:?}"));
        }
        let begins = if is_after { self.at } else { self.truncated };
        let other = difference(&self.before, &now).filter(|_| !is_after);
        let progress = store.progress(self.region).unwrap_or_default();
        other.or((progress.truncated != begins).then(|| {
            format!("with a snapshot as of {:?}, region {} is {progress:?}", self.at, self.region)
        }))
    }

    /// What shows that the installation's edits are gone, both writings of each, and what came behind
    /// them is not. Mostly the store says so and does not open.
    fn without_edits(&self, twin: &DiskCopy, edits: &Edits, prng: &mut Prng) -> Option<String> {
        for frame in 0..edits.frames.len() {
            edits.flip(twin, frame, prng)?;
        }
        let (store, opened) = twin.open().ok()?;
        if opened.rebuilt.is_some() {
            return None;
        }
        let now = pairs_in(&store, &self.ranges).ok()?;
        let text = "it opens without the edits of an installation, though others follow";
        (now == self.before).then(|| text.to_owned())
    }
}

/// The frames of a manifest.
struct Edits {
    path: PathBuf,
    frames: Vec<(u64, Vec<Change>)>,
}

impl Edits {
    /// Those of the only manifest.
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

    /// What came behind those of `earlier`, if the file is still the same.
    fn behind(mut self, earlier: &Self) -> Option<Self> {
        let is_same = self.path == earlier.path && self.frames.len() > earlier.frames.len();
        self.frames.drain(..earlier.frames.len().min(self.frames.len()));
        is_same.then_some(self)
    }

    /// The first writing of the last edit.
    fn first_of_last(&self) -> Option<usize> {
        let (_, last) = self.frames.last()?;
        let others = self.frames.iter().rev().skip_while(|(_, edit)| edit == last);
        Some(others.count())
    }

    /// One bit of what precedes a frame's content.
    fn flip(&self, twin: &DiskCopy, frame: usize, prng: &mut Prng) -> Option<()> {
        let (offset, _) = self.frames.get(frame)?;
        let (path, bit) = (self.path.clone(), prng.below(8) as u8);
        let offset = offset + prng.below(FRAME_HEADER_BYTES);
        twin.disk.inject(Fault::FlipBit { path, offset, bit }).ok()
    }
}

/// A snapshot that was given up leaves nothing.
fn given_up(twin: &DiskCopy, store: &Store, ranges: &[KeyRange], key: &[u8]) -> Option<String> {
    const VALUE_BYTES: usize = 16 << 10;
    let before = twin.disk.paths();
    let mut incoming = store.begin_ingest(ranges.to_vec()).ok()?;
    let pair = |at: u64| Pair {
        key: [key, &at.to_be_bytes()[..]].concat().into(),
        value: vec![at as u8; VALUE_BYTES].into(),
        expires_at_s: 0,
    };
    let count = twin.options.segment_bytes_max / VALUE_BYTES as u64 + 1;
    let received = store.receive(&mut incoming, (0..count).map(pair).collect());
    drop(incoming);
    received.ok()?;
    let left = twin.disk.paths().into_iter().find(|path| !before.contains(path));
    left.map(|path| format!("a snapshot that was given up leaves {}", path.display()))
}
