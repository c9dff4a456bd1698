//! The names in a directory: visible ones, durable ones, and the unsynced changes between.

use std::collections::BTreeMap;
use stele_types::Prng;

pub(super) type InodeId = u64;

/// Names of files, each of which has one at most.
#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    pub by_name: BTreeMap<String, InodeId>,
    by_inode: BTreeMap<InodeId, String>,
    /// A file has lost its name since the last sync.
    has_freed: bool,
}

impl Map {
    fn insert(&mut self, name: String, inode: InodeId) {
        self.by_inode.insert(inode, name.clone());
        if let Some(replaced) = self.by_name.insert(name, inode)
            && replaced != inode
        {
            self.by_inode.remove(&replaced);
            self.has_freed = true;
        }
    }

    fn remove(&mut self, name: &str) {
        if let Some(inode) = self.by_name.remove(name) {
            self.by_inode.remove(&inode);
            self.has_freed = true;
        }
    }

    fn remove_name_of(&mut self, inode: InodeId) {
        if let Some(name) = self.by_inode.remove(&inode) {
            self.by_name.remove(&name);
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    pub visible: Map,
    durable: Map,
    /// Changes to `visible` since the last sync of the directory, oldest first.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Create { name: String, inode: InodeId },
    Rename { to: String, inode: InodeId },
    Unlink { name: String, inode: InodeId },
}

impl Change {
    /// Applies the change. A file has at most one name, so a rename that survives without the
    /// file's earlier renames still removes any other name of the file.
    fn apply(&self, names: &mut Map) {
        match self {
            Self::Create { name, inode } => {
                names.insert(name.clone(), *inode);
            }
            Self::Rename { to, inode } => {
                names.remove_name_of(*inode);
                names.insert(to.clone(), *inode);
            }
            Self::Unlink { name, inode } => {
                if names.by_name.get(name) == Some(inode) {
                    names.remove(name);
                }
            }
        }
    }
}

impl Names {
    pub(super) fn durable(names: Map) -> Self {
        Self { visible: names.clone(), durable: names, pending: Vec::new() }
    }

    pub(super) fn create(&mut self, name: String, inode: InodeId) {
        self.change(Change::Create { name, inode });
    }

    /// Creates a name that every restart finds.
    pub(super) fn create_durably(&mut self, name: String, inode: InodeId) {
        self.durable.insert(name.clone(), inode);
        self.visible.insert(name, inode);
    }

    pub(super) fn rename(&mut self, to: String, inode: InodeId) {
        self.change(Change::Rename { to, inode });
    }

    pub(super) fn unlink(&mut self, name: String, inode: InodeId) {
        self.change(Change::Unlink { name, inode });
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.visible);
        self.pending.push(change);
    }

    /// Makes all changes durable. Returns whether a file has lost its name since the last sync.
    pub(super) fn sync(&mut self) -> bool {
        self.pending.drain(..).for_each(|change| change.apply(&mut self.durable));
        let has_freed = self.visible.has_freed || self.durable.has_freed;
        (self.visible.has_freed, self.durable.has_freed) = (false, false);
        has_freed
    }

    /// Makes a random number of the oldest changes durable; the others stay unsynced.
    pub(super) fn sync_partly(&mut self, prng: &mut Prng) {
        let some = prng.below(self.pending.len() as u64 + 1) as usize;
        for change in self.pending.drain(..some) {
            change.apply(&mut self.durable);
        }
    }

    /// Returns what a restart finds: the durable names with some of the later changes, each
    /// complete.
    pub(super) fn after_crash(&self, prng: &mut Prng) -> Map {
        let mut names = self.durable.clone();
        if self.pending.is_empty() {
            return names;
        }
        // bug vfs.sim_names_kept: return self.visible.clone();
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

    /// Returns every file that a name can refer to, now or after a restart.
    pub(super) fn inodes(&self) -> impl Iterator<Item = InodeId> {
        let pending = self.pending.iter().map(|change| match change {
            Change::Create { inode, .. }
            | Change::Rename { inode, .. }
            | Change::Unlink { inode, .. } => *inode,
        });
        self.visible.by_name.values().chain(self.durable.by_name.values()).copied().chain(pending)
    }
}
