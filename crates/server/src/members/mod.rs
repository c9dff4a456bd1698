//! Stores of the cluster with their addresses, kept in a file beside the data, so that a node that
//! restarts finds the others before any of them leads. Beside them the stores of this node, so that
//! one that is missing at the next start is noticed.
//!
//! Addresses come from the placement group, and from the nodes themselves: by their hellos and by the
//! lists that they exchange. So nodes that all have other addresses since their restart find each
//! other as long as each knows one node that runs.

mod file;
mod runs;

pub use file::{Known, read, write};
pub use runs::{Hearsay, wire_store};

use file::absolute;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_node::succession::KnownRun;
use stele_proto::stele::control::v1 as control;
use stele_types::{ClusterId, Result, StoreId, StoreRun};
use tokio::sync::Notify;

/// A store of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its last accepted run, with the address of its node.
    pub known: KnownRun,
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
    /// Notified when an address was learned from another node, and is to be put into use and saved; or
    /// when there is hearsay.
    learned: Notify,
    /// Runs that other nodes state for third ones, and that are to be verified.
    hearsay: Mutex<Vec<Hearsay>>,
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
        Self { known: RwLock::new(known), ..Self::default() }
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

    /// Returns the cluster; 0 before it is known.
    pub fn cluster(&self) -> ClusterId {
        self.known.read().cluster
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
        let mut addresses: Vec<String> = live.map(|member| member.known.address.clone()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Returns the nodes and their stores; `leader` leads the placement group.
    pub fn list(&self, leader: Option<&str>) -> Vec<control::Member> {
        let mut nodes: BTreeMap<String, Vec<control::MemberStore>> = BTreeMap::new();
        for (id, member) in &self.known.read().stores {
            if !member.is_removed {
                let store = wire_store(*id, member.state, &member.known.run);
                nodes.entry(member.known.address.clone()).or_default().push(store);
            }
        }
        let member = |(address, stores): (String, _)| control::Member {
            leads_placement: leader == Some(&address[..]),
            address,
            stores,
        };
        nodes.into_iter().map(member).collect()
    }

    /// Returns the stores of this node, with the directory of each.
    pub fn own(&self) -> BTreeMap<StoreId, Option<PathBuf>> {
        self.known.read().own.clone()
    }

    /// Returns the store that was last in this directory.
    pub fn store_in(&self, dir: &Path) -> Option<StoreId> {
        self.known.read().store_in(dir)
    }

    /// Announces a change of addresses to [`Members::learned`].
    pub fn announce(&self) {
        self.learned.notify_one();
    }

    /// Waits until an address was learned since the last call.
    pub async fn learned(&self) {
        self.learned.notified().await;
    }

    /// Adds a store of this node in this directory, also before the placement group has listed it.
    /// The caller saves the copies.
    pub fn add_own(&self, store: StoreId, address: &str, dir: &Path, run: StoreRun) {
        self.change(|known| {
            let before = known.stores.get(&store);
            let (state, is_removed) =
                before.map_or((0, false), |member| (member.state, member.is_removed));
            let own = KnownRun { run, address: address.to_owned(), ..KnownRun::default() };
            let member = Member { known: own, is_removed, state };
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

/// Most stores that are learned from other nodes.
const STORES_MAX: usize = 4096;

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
mod tests;
