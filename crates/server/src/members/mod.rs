//! Stores of the cluster with their addresses, kept in a file beside the data, so that a node that
//! restarts finds the others before any of them leads. Beside them the stores of this node, so that
//! one that is missing at the next start is noticed.

mod file;

pub use file::{Known, read};

use file::absolute;

use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_proto::stele::control::v1 as control;
use stele_types::{ClusterId, Result, StoreId};

/// A store of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// `host:port` of its node.
    pub address: String,
    /// Removed permanently.
    pub is_removed: bool,
    /// Last reported state: a number of [`control::StoreState`].
    pub state: i32,
}

/// Last received list of members, and the stores of this node.
#[derive(Debug, Default)]
pub struct Members {
    known: RwLock<Known>,
    copies: Mutex<Vec<Arc<Copy>>>,
}

/// Copy of the file in one directory.
#[derive(Debug)]
pub struct Copy {
    dir: PathBuf,
    /// Number of the last write; locked during a write.
    written: Mutex<u64>,
}

impl Members {
    /// Starts with what a copy of the file held. Nothing is written before a directory is added.
    pub fn new(known: Known) -> Self {
        Self { known: RwLock::new(known), copies: Mutex::default() }
    }

    /// Keeps a copy in `dir` from now on.
    pub fn keep_in(&self, dir: &Path) {
        let mut copies = self.copies.lock();
        if !copies.iter().any(|copy| copy.dir == dir) {
            copies.push(Arc::new(Copy { dir: dir.to_path_buf(), written: Mutex::new(0) }));
        }
    }

    /// Returns the copies.
    pub fn copies(&self) -> Vec<Arc<Copy>> {
        self.copies.lock().clone()
    }

    /// Writes all copies that are behind. One that cannot be written is named in the log: it is a
    /// cache, and the store in its directory notices the fault itself.
    pub fn save(&self) {
        self.copies().iter().for_each(|copy| copy.save(self));
    }

    /// Sets the cluster.
    pub fn set_cluster(&self, cluster: ClusterId) {
        self.change(|known| known.cluster = cluster);
    }

    /// Returns the version of the list; 0 for none.
    pub fn version(&self) -> u64 {
        self.known.read().version
    }

    /// Returns a store's entry; `None` if unknown.
    pub fn get(&self, store: StoreId) -> Option<Member> {
        self.known.read().stores.get(&store).cloned()
    }

    /// Returns whether the store was removed from the cluster permanently.
    pub fn is_removed(&self, store: StoreId) -> bool {
        self.known.read().stores.get(&store).is_some_and(|member| member.is_removed)
    }

    /// Returns all stores that are not removed.
    pub fn stores(&self) -> Vec<StoreId> {
        let known = self.known.read();
        let live = known.stores.iter().filter(|(_, member)| !member.is_removed);
        live.map(|(id, _)| *id).collect()
    }

    /// Returns the addresses of all nodes, each once.
    pub fn addresses(&self) -> Vec<String> {
        let known = self.known.read();
        let live = known.stores.values().filter(|member| !member.is_removed);
        let mut addresses: Vec<String> = live.map(|member| member.address.clone()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Returns the nodes and their stores, with states.
    pub fn by_address(&self) -> BTreeMap<String, Vec<(StoreId, i32)>> {
        let mut nodes: BTreeMap<String, Vec<(StoreId, i32)>> = BTreeMap::new();
        for (id, member) in &self.known.read().stores {
            if !member.is_removed {
                nodes.entry(member.address.clone()).or_default().push((*id, member.state));
            }
        }
        nodes
    }

    /// Returns the stores of this node, with the directory of each.
    pub fn own(&self) -> BTreeMap<StoreId, Option<PathBuf>> {
        self.known.read().own.clone()
    }

    /// Returns the store that was last in this directory.
    pub fn store_in(&self, dir: &Path) -> Option<StoreId> {
        self.known.read().store_in(dir)
    }

    /// Replaces the list by the placement group's, unless a newer one is known; true if it changed.
    /// Forgets stores of this node, which has the address `own`, that were removed or that another
    /// node has now. The caller saves the copies.
    pub fn update(&self, version: u64, members: &[control::Member], own: &str) -> bool {
        let mut stores = BTreeMap::new();
        for member in members {
            for store in &member.stores {
                let is_removed = store.state == control::StoreState::Removed as i32;
                let address = member.address.clone();
                let member = Member { address, is_removed, state: store.state };
                stores.insert(StoreId(store.id), member);
            }
        }
        let mut known = self.known.write();
        if version < known.version || (version == known.version && known.stores == stores) {
            return false;
        }
        let before = std::mem::replace(&mut known.stores, stores.clone());
        known.own.retain(|store, _| match (before.get(store), stores.get(store)) {
            (_, Some(now)) if now.is_removed => false,
            // This node may have another address since its restart.
            (Some(before), Some(now)) => now.address == before.address || now.address == own,
            _ => true,
        });
        known.version = version;
        known.write += 1;
        true
    }

    /// Adds a store of this node in this directory, also before the placement group has listed it.
    /// The caller saves the copies.
    pub fn add_own(&self, store: StoreId, address: &str, dir: &Path) {
        self.change(|known| {
            let before = known.stores.get(&store);
            let (state, is_removed) =
                before.map_or((0, false), |member| (member.state, member.is_removed));
            let member = Member { address: address.to_owned(), is_removed, state };
            known.stores.insert(store, member);
            if !is_removed {
                known.own.insert(store, Some(absolute(dir)));
            }
        });
    }

    /// Records that the disk of a directory was replaced: its store is still one of this node's, and
    /// the directory is another one's. The caller saves the copies.
    pub fn replace_disk(&self, dir: &Path) {
        let dir = absolute(dir);
        self.change(|known| {
            known.own.values_mut().for_each(|at| *at = at.take().filter(|at| *at != dir));
        });
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.write();
        change(&mut known);
        known.write += 1;
    }
}

impl Copy {
    /// Writes what is known now, if it was not written. Does not wait for a write under way, which
    /// goes on with the newest: a device that hangs holds one thread and no more.
    ///
    /// Invariant: changes are written one at a time, in their order. Two writers would rename each
    /// other's file away, and an older list could be the last.
    pub fn save(&self, members: &Members) {
        loop {
            let Some(mut written) = self.written.try_lock() else { return };
            let known = members.known.read().clone();
            if let Err(error) = self.write(&known, &mut written) {
                tracing::warn!("the list of members is not kept in one directory: {error}");
                return;
            }
            drop(written);
            if members.known.read().write == known.write {
                return;
            }
        }
    }

    fn write(&self, known: &Known, written: &mut u64) -> Result<()> {
        if *written != known.write {
            file::write(&self.dir, known)?;
            *written = known.write;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(address: &str, id: u64, state: control::StoreState) -> control::Member {
        let store = control::MemberStore { id, state: state as i32 };
        let address = address.to_owned();
        control::Member { address, stores: vec![store], ..control::Member::default() }
    }

    fn open(dir: &Path) -> Members {
        let members = Members::new(read(dir).unwrap().unwrap_or_default());
        members.keep_in(dir);
        members
    }

    #[test]
    fn members_survive_a_restart_and_older_news_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let members = open(dir.path());
        let up = control::StoreState::Up;
        assert!(members.update(2, &[member("a:1", 1, up), member("b:1", 2, up)], "a:1"));
        assert!(!members.update(1, &[member("x:1", 1, up)], "a:1"));
        members.save();
        let again = open(dir.path());
        assert_eq!(again.version(), 2);
        assert_eq!(again.addresses(), ["a:1", "b:1"]);
        assert_eq!(again.stores(), [1, 2].map(StoreId));
        assert_eq!(again.by_address()["b:1"], [(StoreId(2), up as i32)]);
        let gone = control::StoreState::Removed;
        assert!(again.update(3, &[member("a:1", 1, gone)], "a:1"));
        assert!(again.get(StoreId(1)).unwrap().is_removed && again.addresses().is_empty());
        assert!(again.stores().is_empty());
    }

    #[test]
    fn changes_of_several_threads_are_all_written() {
        let dir = tempfile::tempdir().unwrap();
        let members = open(dir.path());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let members = &members;
                scope.spawn(move || {
                    for at in 0..25 {
                        let store = StoreId(thread * 100 + at);
                        members.add_own(store, "a:1", Path::new("/data"));
                        members.save();
                    }
                });
            }
        });
        assert_eq!(members.stores().len(), 100);
        assert_eq!(open(dir.path()).stores(), members.stores());
    }

    #[test]
    fn every_directory_has_a_copy_and_knows_the_stores_of_the_node_until_they_are_removed() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let members = Members::default();
        for (id, dir) in (1..).zip(&dirs) {
            members.keep_in(dir.path());
            members.add_own(StoreId(id), "a:1", dir.path());
        }
        members.save();
        for dir in &dirs {
            let known = read(dir.path()).unwrap().unwrap();
            assert_eq!(known.store_in(dirs[0].path()), Some(StoreId(1)));
            assert_eq!(known.store_in(dirs[1].path()), Some(StoreId(2)));
        }
        let up = control::StoreState::Up;
        assert!(members.update(3, &[member("a:1", 1, up), member("b:1", 2, up)], "a:1"));
        assert_eq!(members.own().len(), 1, "another node has the disk of store 2");
        assert!(members.update(4, &[member("a:2", 1, up)], "a:2"));
        assert_eq!(members.own().len(), 1, "the node has another address");
        members.replace_disk(dirs[0].path());
        assert_eq!(members.store_in(dirs[0].path()), None);
        assert!(members.own().contains_key(&StoreId(1)), "it is still a store of the node");
        assert!(members.update(9, &[member("a:1", 1, control::StoreState::Removed)], "a:1"));
        assert!(!members.own().contains_key(&StoreId(1)));
        members.add_own(StoreId(1), "a:1", dirs[0].path());
        assert!(members.is_removed(StoreId(1)), "a removed store does not come back");
    }

    #[test]
    fn a_copy_that_cannot_be_written_does_not_keep_the_others_from_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let members = Members::default();
        members.keep_in(&dir.path().join("missing"));
        members.keep_in(dir.path());
        members.add_own(StoreId(4), "a:1", dir.path());
        members.save();
        assert_eq!(open(dir.path()).stores(), [StoreId(4)]);
    }
}
