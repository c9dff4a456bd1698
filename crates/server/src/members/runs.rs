//! Runs of stores and their addresses: what other nodes state, judged by the rule of succession.

use super::{Known, Member, Members, STORES_MAX};
use std::collections::BTreeMap;
use stele_node::succession::{Evidence, KnownRun, Verdict, judge};
use stele_proto::stele::control::v1 as control;
use stele_types::address::is_address;
use stele_types::{Boot, BootOrder, Lineage, StoreId, StoreRun, mutant};

/// Most runs that wait to be verified.
const HEARSAY_MAX: usize = 1024;

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

impl Members {
    /// Returns the last accepted run of a store; `None` if it is not known.
    pub fn known_run(&self, store: StoreId) -> Option<KnownRun> {
        self.known.read().stores.get(&store).map(|member| member.known.clone())
    }

    /// Returns whether messages of this run are heard now.
    pub fn is_heard(&self, store: StoreId, run: &StoreRun, address: &str) -> bool {
        let known = self.known.read();
        let Some(member) = known.stores.get(&store) else { return true };
        if member.is_removed {
            return true;
        }
        let evidence = Evidence { is_own: known.own.contains_key(&store), ..Evidence::default() };
        judge(&member.known, run, address, &evidence) == Verdict::Same
    }

    /// Judges the run that a node at `address` states for its store, and records it if it goes on after
    /// the known one. Keeps at most `STORES_MAX` stores.
    pub fn admit(
        &self,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        evidence: &Evidence,
    ) -> Verdict {
        let mut known = self.known.write();
        let is_own = known.own.contains_key(&store);
        let evidence = Evidence { is_own, ..evidence.clone() };
        let count = known.stores.len();
        let Some(member) = known.stores.get_mut(&store) else {
            if run.is_known() && is_address(address) && count < STORES_MAX {
                let of_it = KnownRun {
                    run: run.clone(),
                    address: address.to_owned(),
                    ..KnownRun::default()
                };
                known.stores.insert(store, Member { known: of_it, ..Member::default() });
                self.changed(known);
            }
            return Verdict::Successor;
        };
        if member.is_removed {
            return Verdict::Same;
        }
        if !is_address(address) {
            return judge(&member.known, run, address, &evidence);
        }
        let (verdict, is_changed) = member.known.admit(run, address, &evidence);
        if is_changed {
            self.changed(known);
        }
        verdict
    }

    fn changed(&self, mut known: parking_lot::RwLockWriteGuard<'_, Known>) {
        known.write += 1;
        drop(known);
        self.announce();
    }

    /// Learns the addresses of a list that another node sent. What must be verified first waits in
    /// [`Members::take_hearsay`].
    pub fn learn_list(&self, members: &[control::Member]) {
        for member in members {
            for store in &member.stores {
                let hearsay = Hearsay {
                    store: StoreId(store.id),
                    run: run_of(store),
                    address: member.address.clone(),
                };
                self.learn(hearsay);
            }
        }
    }

    fn learn(&self, hearsay: Hearsay) {
        let Hearsay { store, run, address } = &hearsay;
        if self.own().contains_key(store) || !run.is_known() {
            return;
        }
        let evidence = Evidence { is_hearsay: true, ..Evidence::default() };
        if self.admit(*store, run, address, &evidence) == Verdict::Undecided {
            self.verify(hearsay);
        }
    }

    fn verify(&self, hearsay: Hearsay) {
        let mut waiting = self.hearsay.lock();
        if waiting.len() < HEARSAY_MAX && !waiting.contains(&hearsay) {
            waiting.push(hearsay);
            drop(waiting);
            self.announce();
        }
    }

    /// Takes the runs that are to be verified.
    pub fn take_hearsay(&self) -> Vec<Hearsay> {
        std::mem::take(&mut *self.hearsay.lock())
    }

    /// Replaces the list by the placement group's, unless a newer one is known; true if it changed.
    /// Forgets stores of this node, which has the address `own`, that were removed or that another
    /// node has now. The caller saves the copies.
    ///
    /// Invariant: an address that a node stated itself is replaced only by that of a later run, and
    /// that of a run which has ended. The placement group may know an earlier one: a node that restarted
    /// reports to it only when it has found it.
    pub fn update(&self, version: u64, members: &[control::Member], own: &str) -> bool {
        let mut stores = listed(members);
        let mut known = self.known.write();
        keep_removed(&mut stores, &known);
        let mut hearsay = Vec::new();
        for (id, new) in &mut stores {
            let Some(before) = known.stores.get(id) else { continue };
            if mutant::active("server.listed_address_wins") {
                continue;
            }
            let is_own = known.own.contains_key(id);
            match replaces(&new.known, &before.known, is_own) {
                Replaces::Yes => {}
                Replaces::No => new.known = before.known.clone(),
                Replaces::IfEnded => {
                    let KnownRun { run, address, .. } = std::mem::take(&mut new.known);
                    hearsay.push(Hearsay { store: *id, run, address });
                    new.known = before.known.clone();
                }
            }
        }
        let is_changed =
            version > known.version || (version == known.version && known.stores != stores);
        if is_changed {
            let before = std::mem::replace(&mut known.stores, stores.clone());
            known.own.retain(|store, _| match (before.get(store), stores.get(store)) {
                (_, Some(now)) if now.is_removed => false,
                // This node may have another address since its restart.
                (Some(before), Some(now)) => {
                    now.known.address == before.known.address || now.known.address == own
                }
                _ => true,
            });
            known.version = version;
            known.write += 1;
        }
        drop(known);
        hearsay.into_iter().for_each(|hearsay| self.verify(hearsay));
        is_changed
    }
}

/// Whether what the placement group lists replaces what a node stated itself.
enum Replaces {
    Yes,
    No,
    /// Only when the known run has ended.
    IfEnded,
}

fn replaces(new: &KnownRun, before: &KnownRun, is_own: bool) -> Replaces {
    let (listed, stated) = (&new.run, &before.run);
    if !stated.is_known() {
        return Replaces::Yes;
    }
    if stated.lineage.is_known() && listed.lineage.is_known() {
        let is_later = listed.lineage.holds(stated.lineage.id());
        return match is_later {
            true if is_own || new.address == before.address => Replaces::Yes,
            true => Replaces::IfEnded,
            false => Replaces::No,
        };
    }
    // One of the two is of an earlier version.
    match listed.boot.relative_to(&stated.boot) {
        _ if stated.lineage.is_known() => Replaces::No,
        BootOrder::Before | BootOrder::Unknown | BootOrder::Copy => Replaces::No,
        BootOrder::Same | BootOrder::After => Replaces::Yes,
    }
}

/// Invariant: a removed store never becomes a member again, also if the placement group that lists it
/// goes on from a log in which it is not removed yet.
fn keep_removed(stores: &mut BTreeMap<StoreId, Member>, known: &Known) {
    let removed = known
        .stores
        .iter()
        .filter(|(_, before)| before.is_removed && !mutant::active("server.removed_store_returns"));
    for (id, before) in removed {
        let now = stores.entry(*id).or_insert_with(|| before.clone());
        (now.is_removed, now.state) = (true, before.state);
    }
}

fn listed(members: &[control::Member]) -> BTreeMap<StoreId, Member> {
    let mut stores = BTreeMap::new();
    for member in members {
        for store in &member.stores {
            let is_removed = store.state == control::StoreState::Removed as i32;
            let (address, run) = (member.address.clone(), run_of(store));
            let known = KnownRun { run, address, ..KnownRun::default() };
            stores.insert(StoreId(store.id), Member { known, is_removed, state: store.state });
        }
    }
    stores
}

/// Encodes a store of a node.
pub fn wire_store(id: StoreId, state: i32, run: &StoreRun) -> control::MemberStore {
    let Boot { count, nonce } = run.boot;
    let boot = || control::Boot { count, nonce, starts: run.lineage.to_bytes().into() };
    control::MemberStore { id: id.0, state, boot: run.is_known().then(boot) }
}

fn run_of(store: &control::MemberStore) -> StoreRun {
    let run = |boot: &control::Boot| StoreRun {
        boot: Boot { count: boot.count, nonce: boot.nonce },
        lineage: Lineage::from_bytes(&boot.starts).unwrap_or_default(),
    };
    store.boot.as_ref().map(run).unwrap_or_default()
}
