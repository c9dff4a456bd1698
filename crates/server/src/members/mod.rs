//! Stores of the cluster with their addresses, kept in a file beside the data, so that a node that
//! restarts finds the others before any of them leads.

use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use stele_proto::stele::control::v1 as control;
use stele_types::{Error, Result, StoreId};

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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    version: u64,
    stores: BTreeMap<StoreId, Member>,
}

/// Last received list of members.
#[derive(Debug)]
pub struct Members {
    path: PathBuf,
    known: RwLock<Known>,
    /// Held from a change to the end of its write.
    saving: Mutex<()>,
}

const FILE: &str = "members.json";

impl Members {
    /// Reads the file in `dir`, if there is one. Fails with `Corrupt` if it does not decode.
    pub fn open(dir: &Path) -> Result<Self> {
        let path = dir.join(FILE);
        let known = match std::fs::read(&path) {
            Ok(bytes) => decode(&bytes)
                .ok_or_else(|| Error::corrupt(&path, 0, "not a list of members: remove it"))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Known::default(),
            Err(error) => return Err(Error::io("read", &path, error)),
        };
        Ok(Self { path, known: RwLock::new(known), saving: Mutex::new(()) })
    }

    /// Returns the version of the list; 0 for none.
    pub fn version(&self) -> u64 {
        self.known.read().version
    }

    /// Returns a store's entry; `None` if unknown.
    pub fn get(&self, store: StoreId) -> Option<Member> {
        self.known.read().stores.get(&store).cloned()
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

    /// Replaces the list by the placement group's, unless a newer one is known; true if it changed.
    /// The file is replaced as a whole.
    pub fn update(&self, version: u64, members: &[control::Member]) -> Result<bool> {
        let mut stores = BTreeMap::new();
        for member in members {
            for store in &member.stores {
                let is_removed = store.state == control::StoreState::Removed as i32;
                let address = member.address.clone();
                let member = Member { address, is_removed, state: store.state };
                stores.insert(StoreId(store.id), member);
            }
        }
        let known = Known { version, stores };
        let _saving = self.saving.lock();
        {
            let mut current = self.known.write();
            if version < current.version || *current == known {
                return Ok(false);
            }
            *current = known.clone();
        }
        self.save(&known)?;
        Ok(true)
    }

    /// Adds a store of this node before the placement group has listed it.
    pub fn add_own(&self, store: StoreId, address: &str) -> Result<()> {
        let _saving = self.saving.lock();
        let known = {
            let mut known = self.known.write();
            let state = known.stores.get(&store).map_or(0, |member| member.state);
            let member = Member { address: address.to_owned(), is_removed: false, state };
            known.stores.insert(store, member);
            known.clone()
        };
        self.save(&known)
    }

    /// Replaces the file. Invariant: changes are written one at a time, in their order. Two writers
    /// would rename each other's file away, and an older list could be the last.
    fn save(&self, known: &Known) -> Result<()> {
        let stores: Vec<Value> = known
            .stores
            .iter()
            .map(|(id, member)| {
                json!({
                    "store": id.0,
                    "address": member.address,
                    "removed": member.is_removed,
                    "state": member.state,
                })
            })
            .collect();
        let text = json!({ "version": known.version, "stores": stores }).to_string();
        let next = self.path.with_extension("json.new");
        let failed = |error| Error::io("write", &self.path, error);
        let mut file = std::fs::File::create(&next).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&next, &self.path).map_err(failed)
    }
}

fn decode(bytes: &[u8]) -> Option<Known> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let mut stores = BTreeMap::new();
    for store in value.get("stores")?.as_array()? {
        let address = store.get("address")?.as_str()?.to_owned();
        let is_removed = store.get("removed")?.as_bool()?;
        // Files of earlier builds have no state: it is received with the next change.
        let state = store.get("state").and_then(Value::as_i64).unwrap_or_default();
        let member = Member { address, is_removed, state: i32::try_from(state).ok()? };
        stores.insert(StoreId(store.get("store")?.as_u64()?), member);
    }
    Some(Known { version: value.get("version")?.as_u64()?, stores })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(address: &str, id: u64, state: control::StoreState) -> control::Member {
        let store = control::MemberStore { id, state: state as i32 };
        let address = address.to_owned();
        control::Member { address, stores: vec![store], ..control::Member::default() }
    }

    #[test]
    fn members_survive_a_restart_and_older_news_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let members = Members::open(dir.path()).unwrap();
        let up = control::StoreState::Up;
        assert!(members.update(2, &[member("a:1", 1, up), member("b:1", 2, up)]).unwrap());
        assert!(!members.update(1, &[member("x:1", 1, up)]).unwrap());
        let again = Members::open(dir.path()).unwrap();
        assert_eq!(again.version(), 2);
        assert_eq!(again.addresses(), ["a:1", "b:1"]);
        assert_eq!(again.stores(), [1, 2].map(StoreId));
        assert_eq!(again.by_address()["b:1"], [(StoreId(2), up as i32)]);
        let gone = control::StoreState::Removed;
        assert!(again.update(3, &[member("a:1", 1, gone)]).unwrap());
        assert!(again.get(StoreId(1)).unwrap().is_removed && again.addresses().is_empty());
        assert!(again.stores().is_empty());
    }

    #[test]
    fn changes_of_several_threads_are_all_written() {
        let dir = tempfile::tempdir().unwrap();
        let members = Members::open(dir.path()).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let members = &members;
                scope.spawn(move || {
                    for at in 0..25 {
                        members.add_own(StoreId(thread * 100 + at), "a:1").unwrap();
                    }
                });
            }
        });
        assert_eq!(members.stores().len(), 100);
        assert_eq!(Members::open(dir.path()).unwrap().stores(), members.stores());
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), b"{").unwrap();
        assert!(Members::open(dir.path()).unwrap_err().to_string().contains(FILE));
    }
}
