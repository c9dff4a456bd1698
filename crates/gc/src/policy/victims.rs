//! Selection of victims: cost-benefit as in log-structured file systems (Rosenblum and Ousterhout):
//! space gained, times how long it stays gained, over bytes read and written. Their formula is
//! (1-u)*age/(1+u), as they read a whole segment to clean it. Here only live records are read, so
//! the cost is 2u; and the age counts by its root, which the simulator finds better for hot and
//! cold keys (settled write amplification of Zipf updates 1.39 instead of 1.61).

use super::state::{FileState, Held, State};
use crate::{GcOptions, PolicyKind};
use std::ops::Deref;
use std::sync::Arc;
use stele_types::FileId;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Victims {
    pub files: Vec<FileId>,
    pub move_bytes: u64,
    /// Bytes the device gains, net of those moved.
    pub freed_bytes: u64,
    /// Largest number of bytes that a job may have to write for them.
    pub room_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Bytes freed at which the selection stops.
    pub freed_bytes: u64,
    /// Limit for the bytes moved, except that at least one file is taken.
    pub move_bytes_max: u64,
    /// Dead share below which a file is not a victim.
    pub dead_share_min: f64,
    /// Limit for the bytes moved that no file exceeds: the device has no room for more.
    pub room_bytes: u64,
}

/// Chooses victims among the files that could be removed once nothing in them is live.
///
/// Invariant: what is moved fits into the room. A job that runs out of space frees nothing, and the
/// same choice would fail again and again.
pub(super) fn choose(state: &State, options: &GcOptions, wanted: Wanted) -> Victims {
    let newest = state.files.iter().map(|file| file.id.0).max().unwrap_or(0);
    let shrink = undiscovered_share(state);
    let live = |file: &FileState| file.live_bytes as f64 * (1.0 - shrink);
    let share = |file: &FileState| (live(file) / file.bytes.max(1) as f64).min(1.0);
    let mut candidates: Vec<(f64, &FileState)> = state
        .files
        .iter()
        .filter(|file| file.held_when_dead.is_none() && file.live_bytes > 0)
        // Known to be dead, not only expected: if the expectation proved wrong, the file would be
        // emptied repeatedly.
        .filter(|file| file.dead_share() >= wanted.dead_share_min)
        .map(|file| (score(options.policy, share(file), newest - file.id.0), file))
        .collect();
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.id.cmp(&b.1.id)));
    let mut victims = Victims::default();
    for (_, file) in candidates {
        let move_bytes = live(file) as u64;
        // The estimate may be too low: by what is known, the file must fit.
        let needs = victims.room_bytes + file.live_bytes;
        if needs > wanted.room_bytes {
            continue;
        }
        let over = victims.move_bytes + move_bytes > wanted.move_bytes_max;
        if victims.freed_bytes >= wanted.freed_bytes || (over && !victims.files.is_empty()) {
            break;
        }
        victims.files.push(file.id);
        victims.room_bytes = needs;
        victims.move_bytes += move_bytes;
        victims.freed_bytes += file.bytes.saturating_sub(move_bytes);
    }
    victims
}

/// Estimates the share of the known live bytes that is dead but not discovered by a merge yet.
fn undiscovered_share(state: &State) -> f64 {
    let known = state.known_live_bytes().max(1) as f64;
    (state.overwrite_ratio * state.undiscovered_bytes() as f64 / known).clamp(0.0, 0.9)
}

/// Smallest live share, which keeps the score of nearly empty files finite.
const LIVE_SHARE_MIN: f64 = 0.02;

/// Returns the benefit of emptying a file. `age` counts the value files written since.
fn score(policy: PolicyKind, live_share: f64, age: u32) -> f64 {
    let age = f64::from(age) + 1.0;
    match policy {
        PolicyKind::Wisckey => age,
        _ => (1.0 - live_share) * age.sqrt() / (LIVE_SHARE_MIN + 2.0 * live_share),
    }
}

/// Value files, by id. A copy shares their memory. What a decision needs of all of them is summed
/// once: a store of many terabytes has tens of thousands, and decides many times a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Files {
    all: Arc<[FileState]>,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub bytes: u64,
    pub stuck_bytes: u64,
    /// Live bytes in key order.
    pub sorted_bytes: u64,
    /// Live bytes not in key order that could not be read.
    pub unreadable_bytes: u64,
    /// Number of files that nothing holds.
    pub removable: usize,
    /// Newest file, at most half live, that only the logs of regions hold.
    pub last_held_by_raft: Option<FileId>,
    pub has_sorted_live: bool,
    /// A file is dead, so that it depends on the views whether it can be removed.
    pub has_dead: bool,
}

impl Sums {
    fn of(files: &[FileState]) -> Self {
        let mut sums = Self::default();
        for file in files {
            sums.bytes += file.bytes;
            sums.stuck_bytes += file.stuck_bytes();
            match file.is_sorted {
                true => sums.sorted_bytes += file.live_bytes,
                false => sums.unreadable_bytes += file.unreadable_bytes,
            }
            sums.removable += usize::from(file.held.is_none());
            if file.held_when_dead == Some(Held::Raft) && file.live_bytes <= file.bytes / 2 {
                sums.last_held_by_raft = sums.last_held_by_raft.max(Some(file.id));
            }
            sums.has_sorted_live |= file.is_sorted && file.held == Some(Held::Live);
            sums.has_dead |= matches!(file.held, None | Some(Held::View));
        }
        sums
    }
}

impl Files {
    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    pub(crate) fn with_bytes(&self, id: FileId, bytes: u64) -> Self {
        let at = self.all.binary_search_by_key(&id, |file| file.id);
        match at.ok().and_then(|at| self.all.get(at)) {
            Some(file) if file.bytes != bytes => {
                let resized = |file: &FileState| match file.id == id {
                    true => FileState { bytes, ..*file },
                    false => *file,
                };
                self.all.iter().map(resized).collect()
            }
            _ => self.clone(),
        }
    }
}

impl Deref for Files {
    type Target = [FileState];

    fn deref(&self) -> &[FileState] {
        &self.all
    }
}

impl FromIterator<FileState> for Files {
    fn from_iter<I: IntoIterator<Item = FileState>>(files: I) -> Self {
        let all: Arc<[FileState]> = files.into_iter().collect();
        Self { sums: Sums::of(&all), all }
    }
}

impl From<Vec<FileState>> for Files {
    fn from(files: Vec<FileState>) -> Self {
        files.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a Files {
    type Item = &'a FileState;
    type IntoIter = std::slice::Iter<'a, FileState>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}
