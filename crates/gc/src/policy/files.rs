//! The value files of a state. What a decision needs of all of them is summed once: a store of many
//! terabytes has tens of thousands, and decides many times a second.

use super::state::{FileState, Held};
use std::ops::Deref;
use std::sync::Arc;
use stele_types::FileId;

/// Value files, by id. A copy shares their memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Files {
    all: Arc<[FileState]>,
    sums: Sums,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub bytes: u64,
    /// Dead bytes that no job can free now.
    pub stuck_bytes: u64,
    /// Live bytes in key order.
    pub sorted_bytes: u64,
    /// Live bytes not in key order that could not be read.
    pub unreadable_bytes: u64,
    /// Number of files that nothing holds.
    pub removable: usize,
    /// Newest file, at most half live, that only the logs of regions hold.
    pub last_held_by_raft: Option<FileId>,
    /// A file in key order has live records.
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

    /// Returns the same files, one of them with this size.
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
