//! Members of the cluster as each node knows them. The table is that of the server
//! (`stele_node::members`): a node sends to no address that its table does not hold. This module adds
//! the files that keep the table, and the checks.

use super::{Slot, World};
use crate::plan::CLUSTER;
use std::collections::BTreeSet;
use std::path::PathBuf;
use stele_node::members::{Hearsay, Known, Listed, Table};
use stele_node::succession::{Evidence, KnownRun};
use stele_types::{Boot, Lineage, StartId, StoreId, StoreRun};

/// List of the placement group, with its version.
pub type MemberList = (u64, Vec<Listed>);

impl World {
    pub(crate) fn table(&self, node: u64) -> Option<&Table> {
        self.nodes.get(&node).map(|node| &node.table)
    }

    pub(crate) fn known_run(&self, node: u64, store: StoreId) -> Option<&KnownRun> {
        self.table(node)?.known_run(store)
    }

    /// Builds the table of a node that starts, from the newest file of its directories.
    pub(super) fn load_members(&mut self, node: u64) {
        let slots = self.slots_of(node);
        let files = slots.iter().filter_map(|number| self.slots.get(number));
        let copies = files.filter_map(|slot| Some((slot.members.as_ref()?, !slot.has_moved)));
        let known = Known::newest(copies);
        let Some(it) = self.nodes.get_mut(&node) else { return };
        it.table = Table::new(known);
        it.table.set_cluster(CLUSTER);
        slots.into_iter().for_each(|number| self.add_own(number));
    }

    pub(crate) fn add_own(&mut self, number: u64) {
        let Some(slot) = self.slots.get(&number).filter(|slot| slot.is_running()) else { return };
        let (Some(store), node) = (slot.id, slot.node) else { return };
        let (run, dir) = (self.run_of(number), PathBuf::from(format!("/{number}")));
        let address = self.address_of(node).unwrap_or_default();
        self.change_table(node, |table| table.add_own(store, &address, dir, run));
    }

    /// Changes the table of a node, checks it, and keeps it in the files of the node.
    ///
    /// Invariant: a node that learned of a later run of a store does not go back to an earlier one, and a
    /// removed store stays removed.
    pub(super) fn change_table<T: Default>(
        &mut self,
        node: u64,
        change: impl FnOnce(&mut Table) -> T,
    ) -> T {
        let Some(it) = self.nodes.get_mut(&node) else { return T::default() };
        let before = it.table.known().clone();
        let result = change(&mut it.table);
        it.table.take_news();
        if it.table.known().write == before.write {
            return result;
        }
        let after = it.table.known().clone();
        if let Some(text) = regressed(&before, &after) {
            self.fail(format!("node {node} {text}"));
        }
        for number in self.slots_of(node) {
            let joined = self.slots.get_mut(&number).filter(|slot| slot.id.is_some());
            if let Some(slot) = joined {
                slot.members = Some(after.clone());
            }
        }
        result
    }

    /// Puts the placement group's list into the table of a node, and asks the addresses of runs that must
    /// have ended.
    pub(crate) fn update_members(&mut self, node: u64, (version, listed): &MemberList) {
        if listed.is_empty() {
            return;
        }
        let own = self.address_of(node).unwrap_or_default();
        self.change_table(node, |table| table.update(*version, listed, &own));
        let hearsay = self.nodes.get_mut(&node).map(|node| node.table.take_hearsay());
        for Hearsay { store, run, address } in hearsay.into_iter().flatten() {
            self.judge_run(node, store, &run, &address, true);
        }
    }

    /// Learns the address of a store that a node did not know from its first message. In plans without
    /// faults of directories an address does not change, and all messages are heard.
    pub(super) fn learn_sender(&mut self, from: u64, to: u64) {
        let sender = self.slots.get(&from).and_then(|slot| Some((slot.id?, slot.node)));
        // A node listens for messages as long as one of its stores runs.
        let receiver = self.slots.get(&to).filter(|slot| slot.is_running());
        let (Some((store, there)), Some(here)) = (sender, receiver) else { return };
        let node = here.node;
        if self.table(node).is_none_or(|table| table.get(store).is_some()) {
            return;
        }
        let (run, address) = (self.run_of(from), self.address_of(there).unwrap_or_default());
        self.change_table(node, |table| {
            table.admit(store, &run, &address, &Evidence::default());
        });
    }

    /// Records in the files of a store's directory that stores were declared lost.
    pub(crate) fn record_lost(&mut self, number: u64, lost: &BTreeSet<StoreId>, state: i32) {
        if let Some(slot) = self.slots.get_mut(&number) {
            slot.members.get_or_insert_default().record_lost(lost, state);
        }
    }

    /// Returns the store that a node sends the messages for a store id to: its own, or that of the node
    /// at the address which its table holds.
    pub(super) fn route(&self, from: u64, store: StoreId) -> Option<u64> {
        let node = self.slots.get(&from)?.node;
        if let Some(near) = self.slot_on(node, store) {
            return Some(near);
        }
        let address = self.table(node)?.address(store)?;
        self.slot_on(self.node_at(address)?, store)
    }

    pub(crate) fn slot_on(&self, node: u64, store: StoreId) -> Option<u64> {
        let is_it = |slot: &&Slot| slot.node == node && slot.id == Some(store) && !slot.is_gone;
        self.slots.values().find(is_it).map(|slot| slot.number)
    }

    pub(crate) fn node_at(&self, address: &str) -> Option<u64> {
        self.nodes.values().find(|node| node.address() == address).map(|node| node.id)
    }

    pub(crate) fn address_of(&self, node: u64) -> Option<String> {
        self.nodes.get(&node).map(super::Node::address)
    }

    /// Returns the run of a store. In plans without faults of directories the starts of its slot count.
    pub(crate) fn run_of(&self, number: u64) -> StoreRun {
        let Some(slot) = self.slots.get(&number) else { return StoreRun::default() };
        if self.runs.is_some() {
            return slot.run.1.clone();
        }
        let nonce = self.nodes.get(&slot.node).map_or(1, super::Node::boot_nonce);
        let id = |start: u64| StartId(u128::from(number) << 64 | u128::from(start));
        let starts = (1..=slot.incarnation).rev().take(Lineage::EARLIER_MAX + 1);
        let boot = Boot { count: slot.incarnation, nonce };
        StoreRun { boot, lineage: Lineage::new(starts.map(id)) }
    }
}

/// Returns what a table took back, except for stores of its node: these state their own runs.
fn regressed(before: &Known, after: &Known) -> Option<String> {
    before.stores.iter().find_map(|(store, was)| {
        let now = after.stores.get(store).filter(|_| !after.own.contains_key(store))?;
        let (earlier, later) = (&now.known.run.lineage, &was.known.run.lineage);
        let is_forgotten = later.is_known() && !earlier.is_known();
        let goes_back = later.holds(earlier.id()) && !earlier.holds(later.id());
        if is_forgotten || goes_back {
            let (now, was) = (&now.known, &was.known);
            return Some(format!(
                "takes store {store} for {} at {} after it knew {} at {}",
                now.run, now.address, was.run, was.address
            ));
        }
        let returns = was.is_removed && !now.is_removed;
        returns.then(|| format!("takes the removed store {store} for a member"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::FaultSet;
    use crate::plan::{Mode, Plan, SECOND};
    use crate::trace::Trace;
    use crate::world::Stop;
    use std::collections::BTreeMap;
    use stele_node::succession::Verdict;

    /// Returns a formed cluster without faults, in which every node knows all stores.
    fn formed() -> World {
        let plan = Plan { faults: FaultSet::default(), ..Plan::draw(5, Mode::Safety) };
        let mut world = World::new(plan, Trace::default());
        assert!(world.plan.nodes > 1 && world.run_until(40 * SECOND, |world| world.is_formed()));
        assert!(world.run_until(10 * SECOND, |world| knows_all(world, 2)));
        world
    }

    fn knows_all(world: &World, node: u64) -> bool {
        let Some(table) = world.table(node) else { return false };
        let home = |(store, number): (&StoreId, &u64)| {
            let address = world.address_of(world.slots[number].node);
            table.address(*store) == address.as_deref()
        };
        world.homes.iter().all(home)
    }

    /// Returns the store of node 1 that carried the first regions.
    fn first(world: &World) -> (u64, StoreId) {
        (world.homes[&StoreId(1)], StoreId(1))
    }

    #[test]
    fn a_restarted_node_sends_to_the_addresses_that_its_files_hold_and_to_no_others() {
        let mut world = formed();
        let (number, store) = first(&world);
        let own = world.slots_of(2);
        world.stop_node(2, Stop::Kill);
        world.start_node(2);
        assert_eq!(world.route(own[0], store), Some(number));
        world.stop_node(2, Stop::Kill);
        own.iter().for_each(|own| world.slots.get_mut(own).unwrap().members = None);
        world.start_node(2);
        assert_eq!(world.route(own[0], store), None, "nothing tells it the address");
        assert!(world.run_until(10 * SECOND, |world| knows_all(world, 2)), "the list tells it");
        assert_eq!((world.route(own[0], store), world.violation), (Some(number), None));
    }

    #[test]
    fn a_node_with_a_new_disk_joins_also_if_its_list_names_only_one_that_does_not_lead() {
        let mut world = formed();
        // Until the regions do without any one store.
        world.run(10 * SECOND);
        let known = world.table(2).unwrap().known().clone();
        let leader = world.slots[&first(&world).0].node;
        let third = (1..=world.plan.nodes).find(|node| ![2, leader].contains(node)).unwrap();
        let on_third = |store: &StoreId| world.slots[&world.homes[store]].node == third;
        let stores = known.stores.into_iter().filter(|(store, _)| on_third(store)).collect();
        let known = Known { stores, own: BTreeMap::new(), ..known };
        for number in world.slots_of(2) {
            world.spend(number);
            world.stop_node(2, Stop::Power);
            world.replace_disk(number);
        }
        let new = world.slots_of(2)[0];
        world.slots.get_mut(&new).unwrap().members = Some(known);
        world.start_node(2);
        assert_eq!(world.table(2).unwrap().addresses().len(), 1);
        let has_joined = world.run_until(10 * SECOND, |world| world.slots[&new].id.is_some());
        assert!(has_joined, "{:?}", world.violation);
        assert!(world.run_until(10 * SECOND, |world| knows_all(world, 2)));
        assert_eq!(world.violation, None);
    }

    #[test]
    fn nothing_is_sent_to_the_former_address_of_a_node_that_moved() {
        let mut world = formed();
        let (number, store) = first(&world);
        let own = world.slots_of(2);
        assert_eq!(world.route(own[0], store), Some(number));
        world.stop_node(1, Stop::Kill);
        world.nodes.get_mut(&1).unwrap().moves += 1;
        world.start_node(1);
        assert_eq!(world.route(own[0], store), None);
    }

    #[test]
    fn a_table_that_goes_back_to_an_earlier_run_is_a_violation() {
        let mut world = formed();
        let (number, store) = first(&world);
        let older = world.table(2).unwrap().known().clone();
        world.stop_node(1, Stop::Kill);
        world.start_node(1);
        let (run, address) = (world.run_of(number), world.address_of(1).unwrap());
        let admit =
            |table: &mut Table| Some(table.admit(store, &run, &address, &Evidence::default()));
        assert_eq!(world.change_table(2, admit), Some(Verdict::Successor));
        assert_eq!(world.violation, None);
        world.change_table(2, |table| *table = Table::new(older));
        assert!(world.violation.is_some_and(|text| text.contains("after it knew")));
    }
}
