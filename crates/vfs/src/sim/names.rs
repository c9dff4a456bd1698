//! The names in a directory: what readers see, what is durable, and what lies between.

use std::collections::BTreeMap;
use stele_types::Prng;

pub(super) type InodeId = u64;
type Map = BTreeMap<String, InodeId>;

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    /// What readers see.
    pub seen: Map,
    durable: Map,
    /// Changes to `seen` since the last sync of the directory, oldest first.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Create { name: String, inode: InodeId },
    Rename { to: String, inode: InodeId },
    Unlink { name: String, inode: InodeId },
}

impl Change {
    /// A file has one name at most, so a rename that survives without the file's earlier renames
    /// still ends whatever name the file had.
    fn apply(&self, names: &mut Map) {
        match self {
            Self::Create { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            Self::Rename { to, inode } => {
                names.retain(|_, there| there != inode);
                names.insert(to.clone(), *inode);
            }
            Self::Unlink { name, inode } => {
                if names.get(name) == Some(inode) {
                    names.remove(name);
                }
            }
        }
    }
}

impl Names {
    /// Names that are durable as they are.
    pub fn durable(names: Map) -> Self {
        Self { seen: names.clone(), durable: names, pending: Vec::new() }
    }

    pub fn create(&mut self, name: String, inode: InodeId) {
        self.change(Change::Create { name, inode });
    }

    /// Creates a name that every restart finds.
    pub fn create_durably(&mut self, name: String, inode: InodeId) {
        self.durable.insert(name.clone(), inode);
        self.seen.insert(name, inode);
    }

    pub fn rename(&mut self, to: String, inode: InodeId) {
        self.change(Change::Rename { to, inode });
    }

    pub fn unlink(&mut self, name: String, inode: InodeId) {
        self.change(Change::Unlink { name, inode });
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.seen);
        self.pending.push(change);
    }

    pub fn sync(&mut self) {
        self.pending.clear();
        self.durable.clone_from(&self.seen);
    }

    /// Makes the oldest changes durable, how many is drawn; the others stay unsynced.
    pub fn sync_in_part(&mut self, prng: &mut Prng) {
        let some = prng.below(self.pending.len() as u64 + 1) as usize;
        for change in self.pending.drain(..some) {
            change.apply(&mut self.durable);
        }
    }

    /// What a restart finds: the durable names with some of the later changes, each whole.
    pub fn survivor(&self, prng: &mut Prng) -> Map {
        let mut names = self.durable.clone();
        if self.pending.is_empty() {
            return names;
        }
        if stele_types::mutant::active("vfs.sim_names_kept") {
            return self.seen.clone();
        }
        let changes = self.pending.len() as u64;
        let (first, subset) = match prng.below(4) {
            0 => (0, false),
            1 => (changes, false),
            2 => (prng.below(changes + 1), false),
            _ => (changes, true),
        };
        for change in self.pending.iter().take(first as usize) {
            if !subset || prng.coin() {
                change.apply(&mut names);
            }
        }
        names
    }

    /// Every file that a name, now or after some restart, can lead to.
    pub fn inodes(&self) -> impl Iterator<Item = InodeId> {
        let pending = self.pending.iter().map(|change| match change {
            Change::Create { inode, .. }
            | Change::Rename { inode, .. }
            | Change::Unlink { inode, .. } => *inode,
        });
        self.seen.values().chain(self.durable.values()).copied().chain(pending)
    }
}
