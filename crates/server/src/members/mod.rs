//! Stores of the cluster with their addresses, kept in a file beside the data, so that a node that
//! restarts finds the others before any of them leads. Beside them the stores of this node, so that
//! one that is missing at the next start is noticed. On the wire the stores of a node stand
//! together. The decisions are those of [`stele_node::members`]; here are the lock, the files and
//! the waiting.

mod file;
#[cfg(test)]
mod tests;

pub(crate) use file::replace_file;
pub use file::{read, store_in, write};
pub use stele_node::members::{Hearsay, Known, Member};

use crate::access::{LiveRules, write_grants};
use file::absolute;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_node::members::{Listed, NotOwner, RunStanding, Table};
use stele_node::succession::{Evidence, KnownRun, Verdict};
use stele_proto::stele::control::v1 as control;
use stele_types::{Boot, ClusterId, Lineage, Result, StoreId, StoreRun};
use tokio::sync::Notify;

/// Last received list of members, and the stores of this node.
#[derive(Debug, Default)]
pub struct Members {
    table: RwLock<Table>,
    copies: Mutex<Vec<Arc<Copy>>>,
    /// Notified when an address was learned from another node, and is to be put into use and saved; or
    /// when there is hearsay.
    learned: Notify,
}

/// Copy of the file in one directory.
#[derive(Debug)]
pub struct Copy {
    dir: PathBuf,
    /// Number of the last write; locked during a write.
    written: Mutex<u64>,
    /// Locked during a write.
    written_grants: Mutex<WrittenGrants>,
}

/// Versions of the grants.
#[derive(Debug, Default)]
struct WrittenGrants {
    written: u64,
    /// The newest one of which a failure was logged.
    failed: u64,
}

impl Members {
    /// Starts with what a copy of the file held. Nothing is written before a directory is added.
    pub fn new(known: Known) -> Self {
        Self { table: RwLock::new(Table::new(known)), ..Self::default() }
    }

    pub(crate) fn keep_in(&self, dir: &Path) {
        let mut copies = self.copies.lock();
        if !copies.iter().any(|copy| copy.dir == dir) {
            let (written, written_grants) = (Mutex::new(0), Mutex::default());
            copies.push(Arc::new(Copy { dir: dir.to_path_buf(), written, written_grants }));
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
        self.table.write().set_cluster(cluster);
    }

    /// Returns the cluster; 0 before it is known.
    pub fn cluster(&self) -> ClusterId {
        self.table.read().known().cluster
    }

    /// Returns the version of the list; 0 for none.
    pub fn version(&self) -> u64 {
        self.table.read().known().version
    }

    /// Returns a store's entry; `None` if unknown.
    pub fn get(&self, store: StoreId) -> Option<Member> {
        self.table.read().get(store).cloned()
    }

    /// Returns the address of a store, for messages to it; `None` if it is unknown or removed.
    pub fn address(&self, store: StoreId) -> Option<String> {
        self.table.read().address(store).map(str::to_owned)
    }

    /// Returns whether the store was removed from the cluster permanently.
    pub fn is_removed(&self, store: StoreId) -> bool {
        self.table.read().is_removed(store)
    }

    /// Returns all stores that are not removed.
    pub fn stores(&self) -> Vec<StoreId> {
        self.table.read().stores()
    }

    /// Returns the addresses of all nodes, each once.
    pub fn addresses(&self) -> Vec<String> {
        self.table.read().addresses()
    }

    /// Returns the addresses of all nodes for clients, each once.
    pub fn client_addresses(&self) -> Vec<String> {
        self.table.read().client_addresses()
    }

    /// Returns the address for clients of the node at `address`.
    pub fn client_address_of(&self, address: &str) -> String {
        self.table.read().client_address_of(address).to_owned()
    }

    /// Sets the address of this node for clients; empty: that for nodes.
    pub fn set_client_address(&self, address: &str) {
        self.table.write().set_client_address(address);
    }

    /// Returns the nodes and their stores; `leader` leads the placement group.
    pub fn list(&self, leader: Option<&str>) -> Vec<control::Member> {
        encode(self.table.read().list(), leader)
    }

    /// Returns the stores of this node, with the directory of each.
    pub fn own(&self) -> BTreeMap<StoreId, Option<PathBuf>> {
        self.table.read().known().own.clone()
    }

    /// Returns the store that was last in this directory.
    pub fn store_in(&self, dir: &Path) -> Option<StoreId> {
        store_in(self.table.read().known(), dir)
    }

    /// Announces a change of addresses to `Members::learned`.
    pub fn announce(&self) {
        self.learned.notify_one();
    }

    /// Waits until an address was learned since the last call.
    pub(crate) async fn learned(&self) {
        self.learned.notified().await;
    }

    /// Adds a store of this node in this directory, also before the placement group has listed it.
    /// The caller saves the copies.
    pub fn add_own(&self, store: StoreId, address: &str, dir: &Path, run: StoreRun) {
        self.table.write().add_own(store, address, absolute(dir), run);
    }

    /// Records that the disk of a directory was replaced: its store is still one of this node's, and
    /// the directory is another one's. The caller saves the copies.
    pub fn replace_disk(&self, dir: &Path) {
        self.table.write().replace_disk(&absolute(dir));
    }

    /// Returns the last accepted run of a store; `None` if it is not known.
    pub fn known_run(&self, store: StoreId) -> Option<KnownRun> {
        self.table.read().known_run(store).cloned()
    }

    /// Returns how this run stands now.
    pub fn standing(&self, store: StoreId, run: &StoreRun, address: &str) -> RunStanding {
        self.table.read().standing(store, run, address)
    }

    /// Fails unless the node with this name in its certificate may act for a store.
    pub fn check_owner(&self, store: StoreId, node: &str) -> Result<(), NotOwner> {
        self.table.read().check_owner(store, node)
    }

    /// Judges the run that a node at `address` states for its store, and records it if it goes on after
    /// the known one.
    pub fn admit(
        &self,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        evidence: &Evidence,
    ) -> Verdict {
        self.learn(|table| table.admit(store, run, address, evidence))
    }

    /// Learns the addresses of a list that another node sent. What must be verified first waits in
    /// [`Members::take_hearsay`].
    pub fn learn_list(&self, members: &[control::Member]) {
        self.learn(|table| table.learn_list(&decode(members)));
    }

    /// Takes the runs that are to be verified.
    pub fn take_hearsay(&self) -> Vec<Hearsay> {
        self.table.write().take_hearsay()
    }

    /// Replaces the list by the placement group's, unless a newer one is known; true if it changed.
    /// The caller saves the copies.
    pub fn update(&self, version: u64, members: &[control::Member], own: &str) -> bool {
        self.learn(|table| table.update(version, &decode(members), own))
    }

    fn learn<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.table.write();
        let result = change(&mut table);
        let has_news = table.take_news();
        drop(table);
        if has_news {
            self.announce();
        }
        result
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
            let known = members.table.read().known().clone();
            if let Err(error) = self.write(&known, &mut written) {
                tracing::warn!("the list of members is not kept in one directory: {error}");
                return;
            }
            drop(written);
            if members.table.read().known().write == known.write {
                return;
            }
        }
    }

    /// Returns whether the directory lacks grants of this version, and none are being written.
    pub(crate) fn lacks_grants(&self, version: u64) -> bool {
        self.written_grants.try_lock().is_some_and(|grants| grants.written < version)
    }

    /// Writes the grants in force, if they were not written; as [`Copy::save`] does. The first failure of a
    /// version is logged; the answer to the next report begins another try.
    ///
    /// Invariant: a directory that lacks the grants in force is tried again until it has them: a node that
    /// restarts would enforce older ones.
    /// Test: `grants_that_a_directory_does_not_take_are_written_once_it_does`.
    pub(crate) fn save_grants(&self, cluster: ClusterId, rules: &LiveRules) {
        loop {
            let Some(mut written) = self.written_grants.try_lock() else { return };
            let grants = rules.get().grants.clone();
            if grants.version > written.written {
                if let Err(error) = write_grants(&self.dir, cluster, &grants) {
                    if written.note_failure(grants.version) {
                        tracing::warn!("the grants are not kept in one directory: {error}");
                    }
                    // bug server.grants_are_tried_once: written.written = grants.version;
                    return;
                }
                written.written = grants.version;
            }
            drop(written);
            if rules.get().grants.version == grants.version {
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

impl WrittenGrants {
    /// Notes a failure; returns whether it is the first of this version.
    fn note_failure(&mut self, version: u64) -> bool {
        std::mem::replace(&mut self.failed, version) != version
    }
}

/// Encodes a list; the node at the address `leader` leads the placement group.
pub fn encode(listed: Vec<Listed>, leader: Option<&str>) -> Vec<control::Member> {
    let mut nodes: BTreeMap<String, control::Member> = BTreeMap::new();
    for Listed { store, run, address, client_address, state, owner, .. } in listed {
        let name = owner.unwrap_or_default();
        let store = control::MemberStore { node: name, ..wire_store(store, state, &run) };
        let node = nodes.entry(address).or_default();
        node.stores.push(store);
        node.client_address = client_address;
    }
    let member = |(address, node): (String, _)| control::Member {
        leads_placement: leader == Some(&address[..]),
        address,
        ..node
    };
    nodes.into_iter().map(member).collect()
}

fn decode(members: &[control::Member]) -> Vec<Listed> {
    let mut listed = Vec::new();
    for member in members {
        listed.extend(member.stores.iter().map(|store| Listed {
            store: StoreId(store.id),
            run: run_of(store),
            address: member.address.clone(),
            client_address: member.client_address.clone(),
            is_removed: store.state == control::StoreState::Removed as i32,
            state: store.state,
            owner: Some(&store.node).filter(|name| !name.is_empty()).cloned(),
        }));
    }
    listed
}

pub(crate) fn wire_store(id: StoreId, state: i32, run: &StoreRun) -> control::MemberStore {
    let Boot { count, nonce } = run.boot;
    let boot = || control::Boot { count, nonce, starts: run.lineage.to_bytes().into() };
    let boot = run.is_known().then(boot);
    control::MemberStore { id: id.0, state, boot, ..control::MemberStore::default() }
}

fn run_of(store: &control::MemberStore) -> StoreRun {
    let run = |boot: &control::Boot| StoreRun {
        boot: Boot { count: boot.count, nonce: boot.nonce },
        lineage: Lineage::from_bytes(&boot.starts).unwrap_or_default(),
    };
    store.boot.as_ref().map(run).unwrap_or_default()
}
