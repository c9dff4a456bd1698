//! Stores of the cluster with their addresses, kept in a file beside the data, so that a node that
//! restarts finds the others before any of them leads. Beside them the stores of this node, so that
//! one that is missing at the next start is noticed.
//!
//! Addresses come from the placement group, and from the nodes themselves: by their hellos and by the
//! lists that they exchange. So nodes that all have other addresses since their restart find each
//! other as long as each knows one node that runs.

mod file;

pub use file::{Known, read, write};

use crate::address::is_address;
use file::absolute;

use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stele_proto::stele::control::v1 as control;
use stele_types::{Boot, BootOrder, ClusterId, Result, StoreId, mutant};
use tokio::sync::Notify;

/// A store of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// `host:port` of its node.
    pub address: String,
    /// Removed permanently.
    pub is_removed: bool,
    /// Last reported state: a number of [`control::StoreState`].
    pub state: i32,
    /// Run of the store in which it has the address; unknown for a node of an earlier version.
    pub boot: Boot,
}

/// Last received list of members, and the stores of this node.
#[derive(Debug, Default)]
pub struct Members {
    known: RwLock<Known>,
    copies: Mutex<Vec<Arc<Copy>>>,
    /// Notified when an address was learned from another node, and is to be put into use and saved.
    learned: Notify,
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

    /// Returns the nodes and their stores; `leader` leads the placement group.
    pub fn list(&self, leader: Option<&str>) -> Vec<control::Member> {
        let mut nodes: BTreeMap<String, Vec<control::MemberStore>> = BTreeMap::new();
        for (id, member) in &self.known.read().stores {
            if !member.is_removed {
                let store = wire_store(*id, member.state, member.boot);
                nodes.entry(member.address.clone()).or_default().push(store);
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

    /// Replaces the list by the placement group's, unless a newer one is known; true if it changed.
    /// Forgets stores of this node, which has the address `own`, that were removed or that another
    /// node has now. The caller saves the copies.
    ///
    /// Invariant: an address that a node stated itself is replaced only by that of a later run. The
    /// placement group may know an earlier one: a node that restarted reports to it only when it has
    /// found it.
    pub fn update(&self, version: u64, members: &[control::Member], own: &str) -> bool {
        let mut stores = BTreeMap::new();
        for member in members {
            for store in &member.stores {
                let is_removed = store.state == control::StoreState::Removed as i32;
                let (address, boot) = (member.address.clone(), boot_of(store));
                let member = Member { address, is_removed, state: store.state, boot };
                stores.insert(StoreId(store.id), member);
            }
        }
        let mut known = self.known.write();
        // Invariant: a removed store never becomes a member again, also if the placement group that
        // lists it goes on from a log in which it is not removed yet.
        let removed = known.stores.iter().filter(|(_, before)| {
            before.is_removed && !mutant::active("server.removed_store_returns")
        });
        for (id, before) in removed {
            let now = stores.entry(*id).or_insert_with(|| before.clone());
            (now.is_removed, now.state) = (true, before.state);
        }
        for (id, new) in &mut stores {
            let Some(before) = known.stores.get(id) else { continue };
            let is_older = matches!(
                new.boot.relative_to(&before.boot),
                BootOrder::Before | BootOrder::Unknown | BootOrder::Copy
            );
            let stated = before.boot.is_known() && !mutant::active("server.listed_address_wins");
            if stated && is_older {
                (new.address, new.boot) = (before.address.clone(), before.boot);
            }
        }
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

    /// Returns the address at which a store runs, if `boot` is a run of another copy of its directory:
    /// a run with the number of the known one and another process, or an earlier one. A directory
    /// that was restored from an earlier state is such a copy too. Of a store of this node every
    /// other process runs a copy.
    pub fn other_copy(&self, store: StoreId, boot: Boot) -> Option<String> {
        let known = self.known.read();
        let member = known.stores.get(&store)?;
        let is_own = known.own.contains_key(&store);
        let is_copy = match boot.relative_to(&member.boot) {
            BootOrder::Before | BootOrder::Copy => true,
            BootOrder::After => is_own,
            BootOrder::Same | BootOrder::Unknown => false,
        };
        (is_copy && !mutant::active("server.copied_directory_heard"))
            .then(|| member.address.clone())
    }

    /// Learns the address of a node from the node itself, or from one that learned it: for each of
    /// these stores of which the run is later than the known one. An older copy of a directory thus
    /// takes no address. Keeps at most `STORES_MAX` stores.
    pub fn learn(&self, address: &str, stores: impl IntoIterator<Item = (StoreId, Boot)>) {
        if !is_address(address) {
            return;
        }
        let mut known = self.known.write();
        let mut is_changed = false;
        for (store, boot) in stores {
            let count = known.stores.len();
            // Of its own stores a node knows the address.
            if known.own.contains_key(&store) || !boot.is_known() {
                continue;
            }
            match known.stores.get_mut(&store) {
                Some(member) => {
                    let is_later = match boot.relative_to(&member.boot) {
                        BootOrder::After | BootOrder::Unknown => true,
                        _ => mutant::active("server.earlier_address_wins"),
                    };
                    if is_later && !member.is_removed {
                        (member.address, member.boot) = (address.to_owned(), boot);
                        is_changed = true;
                    }
                }
                None if count < STORES_MAX => {
                    let member = Member { address: address.to_owned(), boot, ..Member::default() };
                    known.stores.insert(store, member);
                    is_changed = true;
                }
                None => {}
            }
        }
        if is_changed {
            known.write += 1;
            drop(known);
            self.announce();
        }
    }

    /// Announces a change of addresses to [`Members::learned`].
    pub fn announce(&self) {
        self.learned.notify_one();
    }

    /// Learns the addresses of a list that another node sent.
    pub fn learn_list(&self, members: &[control::Member]) {
        for member in members {
            let stores = member.stores.iter();
            self.learn(&member.address, stores.map(|store| (StoreId(store.id), boot_of(store))));
        }
    }

    /// Waits until an address was learned since the last call.
    pub async fn learned(&self) {
        self.learned.notified().await;
    }

    /// Adds a store of this node in this directory, also before the placement group has listed it.
    /// The caller saves the copies.
    pub fn add_own(&self, store: StoreId, address: &str, dir: &Path, boot: Boot) {
        self.change(|known| {
            let before = known.stores.get(&store);
            let (state, is_removed) =
                before.map_or((0, false), |member| (member.state, member.is_removed));
            let member = Member { address: address.to_owned(), is_removed, state, boot };
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

/// Encodes a store of a node.
pub fn wire_store(id: StoreId, state: i32, boot: Boot) -> control::MemberStore {
    let Boot { count, nonce } = boot;
    let boot = boot.is_known().then_some(control::Boot { count, nonce });
    control::MemberStore { id: id.0, state, boot }
}

fn boot_of(store: &control::MemberStore) -> Boot {
    let known = |boot: control::Boot| Boot { count: boot.count, nonce: boot.nonce };
    store.boot.map(known).unwrap_or_default()
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
        let store = wire_store(StoreId(id), state as i32, Boot::UNKNOWN);
        let address = address.to_owned();
        control::Member { address, stores: vec![store], ..control::Member::default() }
    }

    fn leading(member: control::Member) -> control::Member {
        control::Member { leads_placement: true, ..member }
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
        assert_eq!(again.list(Some("b:1"))[1], leading(member("b:1", 2, up)));
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
                        members.add_own(store, "a:1", Path::new("/data"), Boot::UNKNOWN);
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
            members.add_own(StoreId(id), "a:1", dir.path(), Boot::UNKNOWN);
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
        members.add_own(StoreId(1), "a:1", dirs[0].path(), Boot::UNKNOWN);
        assert!(members.is_removed(StoreId(1)), "a removed store does not come back");
    }

    fn removed(address: &str) -> Member {
        let state = control::StoreState::Removed as i32;
        Member { address: address.to_owned(), is_removed: true, state, ..Member::default() }
    }

    #[test]
    fn a_store_that_was_declared_lost_stays_removed_whatever_the_placement_group_lists() {
        let up = control::StoreState::Up;
        let known = Known {
            stores: [2, 3].map(|id| (StoreId(id), removed("b:1"))).into(),
            ..Known::default()
        };
        let members = Members::new(known);
        // A log of the placement group in which store 2 is still a member, and store 3 is not yet.
        assert!(members.update(5, &[member("a:1", 1, up), member("b:1", 2, up)], "a:1"));
        assert!(members.is_removed(StoreId(2)) && members.is_removed(StoreId(3)));
        assert_eq!(members.stores(), [StoreId(1)]);
        assert!(!members.update(5, &[member("a:1", 1, up), member("b:1", 2, up)], "a:1"));
    }

    #[test]
    fn a_copy_that_cannot_be_written_does_not_keep_the_others_from_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let members = Members::default();
        members.keep_in(&dir.path().join("missing"));
        members.keep_in(dir.path());
        members.add_own(StoreId(4), "a:1", dir.path(), Boot::UNKNOWN);
        members.save();
        assert_eq!(open(dir.path()).stores(), [StoreId(4)]);
    }

    fn boot(count: u64, nonce: u64) -> Boot {
        Boot { count, nonce }
    }

    /// Returns the list of the placement group with one store in one run.
    fn listed(address: &str, id: u64, boot: Boot) -> [control::Member; 1] {
        let store = wire_store(StoreId(id), control::StoreState::Up as i32, boot);
        let (address, stores) = (address.to_owned(), vec![store]);
        [control::Member { address, stores, ..control::Member::default() }]
    }

    #[test]
    fn an_address_is_learned_from_a_later_run_of_a_store_and_from_no_older_copy() {
        let dir = tempfile::tempdir().unwrap();
        let members = open(dir.path());
        let address = || members.get(StoreId(2)).unwrap().address;
        members.update(1, &[member("b:1", 2, control::StoreState::Up)], "a:1");
        members.learn("b:2", [(StoreId(2), boot(7, 90))]);
        assert_eq!(address(), "b:2");
        for older in [boot(6, 95), boot(7, 91), Boot::UNKNOWN] {
            members.learn("b:3", [(StoreId(2), older)]);
            assert_eq!(address(), "b:2", "{older:?}");
        }
        members.learn_list(&listed("b:4", 2, boot(8, 3)));
        assert_eq!(address(), "b:4");
        members.save();
        assert_eq!(open(dir.path()).get(StoreId(2)), members.get(StoreId(2)), "it is kept");
        members.learn("no address", [(StoreId(2), boot(9, 1))]);
        members.learn("x:1", [(StoreId(5), boot(1, 1))]);
        assert_eq!(members.addresses(), ["b:4", "x:1"], "a list that was lost is learned again");
        members.update(2, &[member("b:4", 2, control::StoreState::Removed)], "a:1");
        members.learn("b:5", [(StoreId(2), boot(10, 1))]);
        assert!(members.is_removed(StoreId(2)) && address() == "b:4");
    }

    #[test]
    fn a_copy_of_a_directory_is_told_from_a_later_start() {
        let members = Members::default();
        members.learn("b:1", [(StoreId(2), boot(7, 90))]);
        members.add_own(StoreId(1), "a:1", Path::new("/data"), boot(3, 5));
        let copy_of_2 = |count, nonce| members.other_copy(StoreId(2), boot(count, nonce));
        for (count, nonce, expected) in [
            (7, 90, None),
            (8, 91, None),
            (7, 91, Some("b:1")),
            // An earlier state of the directory, which may lack acknowledged entries.
            (6, 92, Some("b:1")),
            (0, 93, None),
        ] {
            assert_eq!(copy_of_2(count, nonce).as_deref(), expected, "{count} {nonce}");
        }
        let copy_of_own = |count, nonce| members.other_copy(StoreId(1), boot(count, nonce));
        assert_eq!(copy_of_own(3, 5), None);
        assert!([2, 3, 9].map(|count| copy_of_own(count, 6)).iter().all(Option::is_some));
        assert_eq!(members.other_copy(StoreId(9), boot(1, 1)), None);
    }

    #[test]
    fn the_own_address_is_never_learned_and_the_number_of_stores_is_bounded() {
        let members = Members::default();
        members.add_own(StoreId(1), "a:1", Path::new("/data"), boot(3, 5));
        members.learn("b:1", [(StoreId(1), boot(9, 9))]);
        assert_eq!(members.get(StoreId(1)).unwrap().address, "a:1");
        members.learn("b:1", (0..10_000).map(|id| (StoreId(2 + id), boot(1, 1))));
        assert_eq!(members.stores().len(), STORES_MAX);
    }

    #[test]
    fn the_list_of_the_placement_group_takes_no_address_of_a_later_run_back() {
        let members = Members::default();
        let address = || members.get(StoreId(2)).unwrap().address;
        members.learn("b:2", [(StoreId(2), boot(7, 90))]);
        for (version, known) in [(1, Boot::UNKNOWN), (2, boot(6, 40)), (3, boot(7, 41))] {
            assert!(members.update(version, &listed("b:1", 2, known), "a:1"));
            assert_eq!(address(), "b:2", "{known:?}");
        }
        assert!(members.update(4, &listed("b:3", 2, boot(8, 2)), "a:1"));
        assert_eq!(address(), "b:3");
    }

    #[tokio::test]
    async fn what_was_learned_is_announced_once() {
        let members = Members::default();
        members.learn("b:2", [(StoreId(2), boot(7, 90))]);
        members.learned().await;
        members.learn("b:2", [(StoreId(2), boot(7, 90))]);
        let again = tokio::time::timeout(std::time::Duration::from_millis(20), members.learned());
        assert!(again.await.is_err(), "nothing changed");
    }
}
