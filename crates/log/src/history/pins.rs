//! The segments that stay for readers of regions' logs.
//!
//! Raft drops an entry soon after a checkpoint covers it, and garbage collection then removes its
//! segment: sorted files know keys and no indexes. So readers pin segments, not places of entries, each of
//! which takes 24 bytes of memory.
//!
//! Invariant: readers hold a window of the newest segments of at most so many bytes, however slow one of
//! them is. What leaves the window is lost to the readers that still need it, and to no others.
//! Test: `a_slow_reader_holds_no_more_than_the_bytes_of_the_window`.

use crate::FileKind;
use crate::catalog::FileMeta;
use crate::format::Item;
use crate::segment::{damaged_payloads, scan};
use crate::shared::Shared;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_types::lock::{Mutex, rank};
use stele_types::{FileId, LogIndex, RegionId, Result};

/// Regions of which readers need the entries above an index.
pub type Pinned = BTreeMap<RegionId, LogIndex>;

/// Segments that stay for readers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PinState {
    /// First sealed segment that stays for them; `None` if none does.
    pub from: Option<FileId>,
    /// Bytes of all sealed segments from there on.
    pub bytes: u64,
}

impl PinState {
    pub(crate) fn holds(&self, segment: FileId) -> bool {
        self.from.is_some_and(|from| segment >= from)
    }
}

#[derive(Debug)]
pub(crate) struct Pins {
    state: Mutex<State, { rank::LOG_PINS }>,
}

#[derive(Debug)]
struct State {
    /// Bytes of the window.
    bytes_max: u64,
    /// Last index of each region in a sealed segment, as far as it was asked for.
    ends: BTreeMap<FileId, Arc<Pinned>>,
    /// No segment before this one has an entry that a reader needs. The largest number without readers.
    ///
    /// Invariant: after an open all within the window stays until it is known what readers need.
    /// Test: `after_an_open_segments_stay_until_the_needs_of_readers_are_known`.
    needed_from: FileId,
}

impl Pins {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let needed_from = FileId(0);
        // bug log.pins_forgotten_by_open: let needed_from = FileId(u32::MAX);
        Self { state: Mutex::new(State { bytes_max, ends: BTreeMap::new(), needed_from }) }
    }
}

impl Shared {
    /// Returns the first segment that stays for readers, and the bytes from there on.
    pub(crate) fn pins(&self) -> PinState {
        let (needed_from, bytes_max) = {
            let state = self.pins.state.lock();
            (state.needed_from, state.bytes_max)
        };
        self.window(needed_from, bytes_max)
    }

    /// Returns the newest sealed segments from `from` on that have at most so many bytes.
    fn window(&self, from: FileId, bytes_max: u64) -> PinState {
        let is_sealed =
            |meta: &FileMeta| matches!(meta.kind, FileKind::Segment { sealed: true, .. });
        let catalog = self.catalog.read();
        let mut window = PinState::default();
        for (file, meta) in catalog.segments_from(from).rev().filter(|(_, meta)| is_sealed(meta)) {
            // bug log.pins_without_bound: let bytes_max = u64::MAX;
            if window.bytes + meta.bytes > bytes_max {
                break;
            }
            window = PinState { from: Some(file), bytes: window.bytes + meta.bytes };
        }
        window
    }

    /// States what readers need: the entries of these regions above these indexes. Segments without
    /// such entries no longer stay for them.
    pub(crate) fn set_needed(&self, needed: &Pinned) -> Result<PinState> {
        let bytes_max = self.pins.state.lock().bytes_max;
        let window = self.window(FileId(0), bytes_max);
        let from = match needed.is_empty() {
            true => FileId(u32::MAX),
            false => self.first_needed(needed, window.from)?,
        };
        {
            let mut state = self.pins.state.lock();
            state.ends = state.ends.split_off(&window.from.unwrap_or_default());
            state.needed_from = from;
        }
        Ok(self.pins())
    }

    /// Sets the bytes of the window.
    pub(crate) fn set_pinned_bytes_max(&self, bytes_max: u64) {
        self.pins.state.lock().bytes_max = bytes_max;
    }

    /// Returns the first segment of the window that has an entry of a region above its index. The active one
    /// counts as such.
    fn first_needed(&self, needed: &Pinned, window_from: Option<FileId>) -> Result<FileId> {
        let head = self.state.read().head.file;
        let from = window_from.unwrap_or(head);
        let segments: Vec<_> = {
            let catalog = self.catalog.read();
            catalog.segments_from(from).map(|(file, _)| file).collect()
        };
        for file in segments {
            let Some(ends) = self.ends_of(file)? else { return Ok(file) };
            let is_needed = |(region, end): (&RegionId, &LogIndex)| {
                // bug log.pins_release_early: `end > above` is `end.0 > above.0 + 1`
                needed.get(region).is_some_and(|above| end > above)
            };
            if ends.iter().any(is_needed) {
                return Ok(file);
            }
        }
        Ok(head)
    }

    /// Returns the last index of each region in a sealed segment; `None` for the active one.
    pub(crate) fn ends_of(&self, file: FileId) -> Result<Option<Arc<Pinned>>> {
        let Some(meta) = self.catalog.read().get(file) else { return Ok(Some(Arc::default())) };
        if !matches!(meta.kind, FileKind::Segment { sealed: true, .. }) {
            return Ok(None);
        }
        if let Some(ends) = self.pins.state.lock().ends.get(&file) {
            return Ok(Some(ends.clone()));
        }
        let mut ends = Pinned::new();
        scan::of_segment(&self.dir, file, meta.end, &mut damaged_payloads::any, &mut |item| {
            if let Item::Entry(entry) = item {
                let end = ends.entry(entry.region).or_default();
                *end = entry.index.max(*end);
            }
            Ok(())
        })?;
        let ends = Arc::new(ends);
        self.pins.state.lock().ends.insert(file, ends.clone());
        Ok(Some(ends))
    }
}
