//! Runs of stores and their addresses: what other nodes state, judged by the rule of succession.

use super::{Hearsay, Known, Listed, Member, STORES_MAX, Table};
use crate::succession::{Evidence, KnownRun, Verdict, judge};
use std::collections::BTreeMap;
use stele_types::address::is_address;
use stele_types::{BootOrder, StoreId, StoreRun};

const HEARSAY_MAX: usize = 1024;

/// How a run of a store stands beside the run that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStanding {
    /// Its messages are heard.
    Heard,
    /// Its store was removed from the cluster.
    Removed,
    /// Another run of the store is the known one.
    Displaced,
}

/// Reason not to hear a node for a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotOwner {
    /// The store is bound to the node with this name.
    Other(String),
    /// No list of the placement group has named the store yet, as it joined a moment ago.
    NotListed,
}

impl Table {
    /// Fails unless the node with this name in its certificate may act for a store.
    ///
    /// Invariant: a store that is bound to a node is heard from that node alone, and one that no list has
    /// named from none. Before its first list, a node hears all of its cluster: without them it would
    /// get none.
    /// Tests: `a_bound_store_is_heard_from_its_node_alone`, `a_node_speaks_for_its_own_stores_alone`.
    pub fn check_owner(&self, store: StoreId, node: &str) -> Result<(), NotOwner> {
        let member = self.get(store);
        match member.and_then(|member| member.owner.as_deref()) {
            // bug node.any_node_speaks: `owner == node` is `true`
            Some(owner) if owner == node => Ok(()),
            Some(owner) => Err(NotOwner::Other(owner.to_owned())),
            // bug node.unlisted_store_heard: `self.known.version == 0` is `true`
            None if self.known.version == 0 || member.is_some_and(|it| !it.is_stated) => Ok(()),
            None => Err(NotOwner::NotListed),
        }
    }

    /// Returns the last accepted run of a store; `None` if it is not known.
    pub fn known_run(&self, store: StoreId) -> Option<&KnownRun> {
        self.get(store).map(|member| &member.known)
    }

    /// Returns how this run stands now.
    pub fn standing(&self, store: StoreId, run: &StoreRun, address: &str) -> RunStanding {
        let Some(member) = self.get(store) else { return RunStanding::Heard };
        if member.is_removed {
            return RunStanding::Removed;
        }
        let is_own = self.known.own.contains_key(&store);
        let evidence = Evidence { is_own, ..Evidence::default() };
        match judge(&member.known, run, address, &evidence) {
            Verdict::Same => RunStanding::Heard,
            _ => RunStanding::Displaced,
        }
    }

    /// Judges the run that a node at `address` states for its store, and records it if it goes on after
    /// the known one. Keeps at most `STORES_MAX` stores.
    pub fn admit(
        &mut self,
        store: StoreId,
        run: &StoreRun,
        address: &str,
        evidence: &Evidence,
    ) -> Verdict {
        let is_own = self.known.own.contains_key(&store);
        let evidence = Evidence { is_own, ..evidence.clone() };
        let count = self.known.stores.len();
        let Some(member) = self.known.stores.get_mut(&store) else {
            if run.is_known() && is_address(address) && count < STORES_MAX {
                let of_it = KnownRun {
                    run: run.clone(),
                    address: address.to_owned(),
                    ..KnownRun::default()
                };
                self.known
                    .stores
                    .insert(store, Member { known: of_it, is_stated: true, ..Member::default() });
                self.note_change();
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
            self.note_change();
        }
        verdict
    }

    fn note_change(&mut self) {
        self.known.write += 1;
        self.has_news = true;
    }

    /// Learns the addresses of a list that another node sent. What must be verified first waits in
    /// [`Table::take_hearsay`].
    pub fn learn_list(&mut self, listed: &[Listed]) {
        for Listed { store, run, address, .. } in listed {
            self.learn(Hearsay { store: *store, run: run.clone(), address: address.clone() });
        }
    }

    fn learn(&mut self, hearsay: Hearsay) {
        let Hearsay { store, run, address } = &hearsay;
        if self.known.own.contains_key(store) || !run.is_known() {
            return;
        }
        let known = self.get(*store).filter(|member| member.owner.is_some());
        // bug node.listed_address_of_bound_store: let known = None;
        if let Some(KnownRun { run: before, address: at, .. }) = known.map(|it| &it.known) {
            // Invariant: another node replaces nothing of a bound store. Its own is asked at that address.
            // Test: `a_list_of_another_node_changes_no_bound_store_and_has_its_own_node_asked`.
            let is_known = (run == before && address == at)
                || before.lineage.holds(run.lineage.id())
                || self.is_removed(*store);
            if !is_known {
                self.verify(hearsay);
            }
            return;
        }
        let evidence = Evidence { is_hearsay: true, ..Evidence::default() };
        if self.admit(*store, run, address, &evidence) == Verdict::Undecided {
            self.verify(hearsay);
        }
    }

    fn verify(&mut self, hearsay: Hearsay) {
        if self.hearsay.len() < HEARSAY_MAX && !self.hearsay.contains(&hearsay) {
            self.hearsay.push(hearsay);
            self.has_news = true;
        }
    }

    /// Replaces the list by the placement group's, unless a newer one is known; true if it changed.
    /// Forgets stores of this node, which has the address `own`, that were removed or that another
    /// node has now.
    ///
    /// Invariant: an address that a node stated itself is replaced only by that of a later run, and
    /// that of a run which has ended. The placement group may know an earlier one: a node that restarted
    /// reports to it only when it has found it.
    /// Tests: `an_address_is_learned_from_a_later_run_of_a_store_and_from_no_older_copy`,
    /// `the_list_of_the_placement_group_takes_no_address_of_a_later_run_back`.
    ///
    /// Invariant: a list counts as known only when each of its runs is the known one or an earlier one. A
    /// run that is to be verified may be down at this moment, and with it the known one has ended: unless
    /// the placement group sends the list again, this node has no address for the store, permanently.
    /// Test: `a_list_is_wanted_again_until_its_runs_are_verified`.
    pub fn update(&mut self, version: u64, listed: &[Listed], own: &str) -> bool {
        let mut stores: BTreeMap<StoreId, Member> = listed.iter().map(member_of).collect();
        keep_removed(&mut stores, &self.known);
        for (_, member) in stores.iter_mut().filter(|(id, _)| self.known.own.contains_key(id)) {
            member.client_address.clone_from(&self.client_address);
        }
        let mut is_verified = true;
        for (id, new) in &mut stores {
            let Some(before) = self.known.stores.get(id).cloned() else { continue };
            // A binding stays, also when an earlier version leads that lists none.
            new.owner = new.owner.take().or(before.owner);
            // What a node stated before the first list says nothing against it.
            if before.is_stated && new.owner.is_some() {
                continue;
            }
            // bug node.listed_address_wins: continue;
            let is_own = self.known.own.contains_key(id);
            match replaces(&new.known, &before.known, is_own) {
                Replaces::Yes => {}
                Replaces::No => new.known = before.known,
                Replaces::IfEnded => {
                    // bug node.listed_run_not_asked: continue;
                    is_verified = false;
                    let KnownRun { run, address, .. } =
                        std::mem::replace(&mut new.known, before.known);
                    self.verify(Hearsay { store: *id, run, address });
                }
            }
        }
        // bug node.list_is_verified_once: let is_verified = true;
        let known = &mut self.known;
        let is_older = version < known.version;
        let version = if is_verified { version } else { known.version };
        let is_changed = !is_older && (version > known.version || known.stores != stores);
        if is_changed {
            let before = std::mem::replace(&mut known.stores, stores);
            let stores = &known.stores;
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
        is_changed
    }
}

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
    // bug node.removed_store_returns: `before.is_removed` is `false`
    let removed = known.stores.iter().filter(|(_, before)| before.is_removed);
    for (id, before) in removed {
        let now = stores.entry(*id).or_insert_with(|| before.clone());
        (now.is_removed, now.state) = (true, before.state);
    }
}

fn member_of(listed: &Listed) -> (StoreId, Member) {
    let Listed { store, run, address, client_address, is_removed, state, owner } = listed.clone();
    let known = KnownRun { run, address, ..KnownRun::default() };
    (store, Member { known, is_removed, state, client_address, owner, is_stated: false })
}
