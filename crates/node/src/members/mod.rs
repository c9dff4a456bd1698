//! Stores of the cluster as one node knows them: their last accepted runs, their addresses, and which
//! of them are this node's. The owner of the table locks it, keeps it in files and asks other nodes.
//!
//! Addresses come from the placement group, and from the nodes themselves: by what they state with
//! their messages, and by the lists that they exchange. So nodes that all have other addresses since
//! their restart find each other as long as each knows one node that runs. A store that is bound to the
//! name of a node takes an address from that node or from the placement group alone.

mod runs;

pub use runs::{NotOwner, RunStanding};

use crate::succession::KnownRun;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use stele_placement::{Cluster, Store, StoreState};
use stele_types::{ClusterId, StoreId, StoreRun};

const STORES_MAX: usize = 4096;

/// A store of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// Its last accepted run, with the address of its node.
    pub known: KnownRun,
    /// Removed permanently.
    pub is_removed: bool,
    /// Last reported state: its number on the wire.
    pub state: i32,
    /// `host:port` of its node for clients; empty: that of `known`.
    pub client_address: String,
    /// Name of its node, by its certificate; `None` before the placement group has bound it.
    pub owner: Option<String>,
    /// Known from what nodes state alone: no list of the placement group has named it.
    pub is_stated: bool,
}

impl Member {
    /// Returns `host:port` of its node for clients.
    pub fn for_clients(&self) -> &str {
        match self.client_address.is_empty() {
            true => &self.known.address,
            false => &self.client_address,
        }
    }
}

/// Store as a list of members names it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The store.
    pub store: StoreId,
    /// Its run; unknown in lists of earlier versions.
    pub run: StoreRun,
    /// `host:port` of its node.
    pub address: String,
    /// The same for clients; empty: `address`.
    pub client_address: String,
    /// Removed permanently.
    pub is_removed: bool,
    /// Its state: its number on the wire.
    pub state: i32,
    /// Name of its node, by its certificate; `None` before it is bound to one.
    pub owner: Option<String>,
}

/// Run that one node states for another. It is used when the known run's address has been asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hearsay {
    /// The store.
    pub store: StoreId,
    /// Its run.
    pub run: StoreRun,
    /// `host:port` where it is said to be.
    pub address: String,
}

/// What is kept in files, for the next start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Number of the write; it grows with each change.
    pub write: u64,
    /// Cluster; 0 in files of earlier builds.
    pub cluster: ClusterId,
    /// Version of the list of members; 0 for none.
    pub version: u64,
    /// Members of the cluster.
    pub stores: BTreeMap<StoreId, Member>,
    /// Stores of this node, with the absolute directory of each; `None` after its disk was replaced.
    pub own: BTreeMap<StoreId, Option<PathBuf>>,
}

impl Known {
    /// Returns whether the node is the only one of its cluster.
    pub fn is_sole_node(&self) -> bool {
        let mut live = self.stores.iter().filter(|(_, member)| !member.is_removed);
        live.all(|(store, _)| self.own.contains_key(store))
    }

    /// Returns the store that was last in this absolute directory.
    pub fn store_at(&self, dir: &Path) -> Option<StoreId> {
        let found = self.own.iter().find(|(_, at)| at.as_deref() == Some(dir));
        found.map(|(store, _)| *store)
    }

    /// Marks stores as removed that were declared lost; `state` is the number of that state on the wire.
    pub fn record_lost(&mut self, lost: &BTreeSet<StoreId>, state: i32) {
        for store in lost {
            let member = self.stores.entry(*store).or_default();
            (member.is_removed, member.state) = (true, state);
            self.own.remove(store);
        }
        self.write += 1;
    }

    /// Returns the newest of several copies; each with whether its directory is where it was at its last
    /// start.
    ///
    /// Invariant: a directory that was copied or moved does not tell which other stores the node has.
    /// They may be those of the node that has the original.
    pub fn newest<'a>(copies: impl IntoIterator<Item = (&'a Self, bool)>) -> Self {
        let copies = copies.into_iter();
        // bug node.copy_brings_stores: `*is_there` is `true`
        let newest = copies.max_by_key(|(known, is_there)| (*is_there, known.write, known.version));
        // bug node.copy_brings_stores: let newest = newest.map(|(known, _)| (known, true));
        match newest {
            None => Self::default(),
            Some((known, true)) => known.clone(),
            Some((known, false)) => Self { own: BTreeMap::new(), ..known.clone() },
        }
    }
}

/// Stores of the cluster as a node knows them, and what it must verify of them.
#[derive(Debug, Default)]
pub struct Table {
    known: Known,
    /// Runs that other nodes state for third ones, and that are to be verified.
    hearsay: Vec<Hearsay>,
    has_news: bool,
    /// `host:port` of this node for clients; empty: that for nodes.
    client_address: String,
}

impl Table {
    /// Starts with what a copy of the file held.
    pub fn new(known: Known) -> Self {
        Self { known, ..Self::default() }
    }

    /// Sets `host:port` of this node for clients; empty: that for nodes. Call it before the stores of the
    /// node are added.
    pub fn set_client_address(&mut self, address: &str) {
        self.client_address = address.to_owned();
    }

    /// Returns what is to be kept in files.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// Returns whether an address was learned from another node since the last call, which is to be put
    /// into use and kept; or whether there is hearsay.
    pub fn take_news(&mut self) -> bool {
        std::mem::take(&mut self.has_news)
    }

    /// Takes the runs that are to be verified.
    pub fn take_hearsay(&mut self) -> Vec<Hearsay> {
        std::mem::take(&mut self.hearsay)
    }

    /// Returns a store's entry; `None` if unknown.
    pub fn get(&self, store: StoreId) -> Option<&Member> {
        self.known.stores.get(&store)
    }

    /// Returns the address of a store, for messages to it; `None` if it is unknown or removed.
    pub fn address(&self, store: StoreId) -> Option<&str> {
        let member = self.get(store).filter(|member| !member.is_removed)?;
        Some(&member.known.address)
    }

    /// Returns whether the store was removed from the cluster permanently.
    pub fn is_removed(&self, store: StoreId) -> bool {
        self.get(store).is_some_and(|member| member.is_removed)
    }

    /// Returns all stores that are not removed.
    pub fn stores(&self) -> Vec<StoreId> {
        self.live().map(|(id, _)| id).collect()
    }

    /// Returns the addresses of all nodes, each once.
    pub fn addresses(&self) -> Vec<String> {
        self.each_once(|member| &member.known.address)
    }

    /// Returns the addresses of all nodes for clients, each once.
    pub fn client_addresses(&self) -> Vec<String> {
        self.each_once(Member::for_clients)
    }

    fn each_once(&self, of: impl Fn(&Member) -> &str) -> Vec<String> {
        let mut addresses: Vec<String> =
            self.live().map(|(_, member)| of(member).to_owned()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Returns the address for clients of the node at `address`.
    pub fn client_address_of<'a>(&'a self, address: &'a str) -> &'a str {
        let found = self.live().find(|(_, member)| member.known.address == address);
        found.map_or(address, |(_, member)| member.for_clients())
    }

    /// Returns the stores that are not removed, as a list for other nodes names them.
    pub fn list(&self) -> Vec<Listed> {
        let listed = |(store, member): (StoreId, &Member)| Listed {
            store,
            run: member.known.run.clone(),
            address: member.known.address.clone(),
            client_address: member.client_address.clone(),
            is_removed: false,
            state: member.state,
            owner: member.owner.clone(),
        };
        self.live().map(listed).collect()
    }

    fn live(&self) -> impl Iterator<Item = (StoreId, &Member)> {
        let live = self.known.stores.iter().filter(|(_, member)| !member.is_removed);
        live.map(|(id, member)| (*id, member))
    }

    /// Sets the cluster.
    pub fn set_cluster(&mut self, cluster: ClusterId) {
        self.known.cluster = cluster;
        self.known.write += 1;
    }

    /// Adds a store of this node in this absolute directory, also before the placement group has listed
    /// it.
    pub fn add_own(&mut self, store: StoreId, address: &str, dir: PathBuf, run: StoreRun) {
        let own = KnownRun { run, address: address.to_owned(), ..KnownRun::default() };
        let client_address = self.client_address.clone();
        let member = self.known.stores.entry(store).or_default();
        (member.known, member.is_stated) = (own, false);
        member.client_address = client_address;
        if !member.is_removed {
            self.known.own.insert(store, Some(dir));
        }
        self.known.write += 1;
    }

    /// Records that the disk of an absolute directory was replaced: its store is still one of this
    /// node's, and the directory is another one's.
    pub fn replace_disk(&mut self, dir: &Path) {
        for at in self.known.own.values_mut() {
            *at = at.take().filter(|at| at != dir);
        }
        self.known.write += 1;
    }
}

/// Returns the list of members that the placement group answers with; `number_of` returns the number of
/// a state on the wire.
pub fn list_of(cluster: &Cluster, number_of: impl Fn(StoreState) -> i32) -> Vec<Listed> {
    let listed = |store: &Store| Listed {
        store: store.id,
        run: cluster.run_of(store.id),
        address: store.address.clone(),
        client_address: cluster.client_address(store.id).to_owned(),
        is_removed: store.state == StoreState::Tombstone,
        state: number_of(store.state),
        owner: cluster.owner(store.id).map(str::to_owned),
    };
    cluster.stores().map(listed).collect()
}

#[cfg(test)]
mod tests;
