//! Failure domains: groups of stores that may fail together. No two replicas of a region share one.
//!
//! Invariant: stores that share a node, or the value of the label that is obeyed, are one domain.
//! Test: `random_domains_hold_together_what_fails_together_and_are_enough`.
//!
//! The stores of one node always share a domain. So do the stores with one value of the *widest
//! label that allows it*: of the labels of the members, the one with the fewest values that are
//! still enough for the copies of a region. Stores without that label count by their nodes.

use super::Cluster;
use crate::Millis;
use crate::store::{Store, StoreState};
use std::collections::{BTreeMap, BTreeSet};
use stele_types::StoreId;

/// A failure domain. Its number serves comparisons only and may change with the members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Domain(pub u32);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Domains {
    of: BTreeMap<StoreId, Domain>,
    /// Name of the label that is obeyed.
    label: Option<String>,
    /// Stores of which the replicas must be rebuilt elsewhere. Their values do not count.
    lost: BTreeSet<StoreId>,
}

/// Copies of the placement region in a small cluster, which need as many domains.
const COPIES_MIN: usize = 3;

impl Domains {
    /// Groups the members by node and by the widest label of which the stores outside `lost` that
    /// stay have at least `copies` values.
    fn new(stores: &BTreeMap<StoreId, Store>, copies: usize, lost: BTreeSet<StoreId>) -> Self {
        let members = stores.values().filter(|store| store.state != StoreState::Tombstone);
        let (absent, present): (Vec<&Store>, Vec<&Store>) = members.partition(|store| {
            let is_leaving = store.state.is_leaving();
            // bug placement.leaving_value_counts: let is_leaving = false;
            is_leaving || lost.contains(&store.id)
        });
        let names: BTreeSet<&str> =
            present.iter().flat_map(|store| &store.labels).map(|(name, _)| &name[..]).collect();
        let wide_enough = names.into_iter().filter_map(|name| {
            let count = Groups::new(&present, Some(name)).count();
            // bug placement.label_ignored: `count >= copies` is `false`
            (count >= copies).then_some((count, name))
        });
        // Equal counts are decided by the names.
        let label = wide_enough.min().map(|(_, name)| name.to_owned());
        let mut groups = Groups::new(&present, label.as_deref());
        absent.into_iter().for_each(|store| groups.add_absent(store, label.as_deref()));
        Self { of: groups.of, label, lost }
    }

    /// Returns the domain of a store; `None` for one that is no member.
    fn get(&self, store: StoreId) -> Option<Domain> {
        self.of.get(&store).copied()
    }
}

/// Stores that share a node or the value of a label, directly or through others.
#[derive(Default)]
struct Groups<'a> {
    of: BTreeMap<StoreId, Domain>,
    by_node: BTreeMap<&'a str, Domain>,
    by_value: BTreeMap<&'a str, Domain>,
    next: u32,
}

impl<'a> Groups<'a> {
    fn new(stores: &[&'a Store], label: Option<&str>) -> Self {
        let mut groups = Self::default();
        stores.iter().for_each(|store| groups.add(store, label));
        groups
    }

    fn next(&mut self) -> Domain {
        self.next = self.next.saturating_add(1);
        Domain(self.next)
    }

    fn add(&mut self, store: &'a Store, label: Option<&str>) {
        let new = self.next();
        let node = *self.by_node.entry(&store.address).or_insert(new);
        let value = label.and_then(|label| value_of(store, label));
        let labelled = value.map_or(node, |value| *self.by_value.entry(value).or_insert(node));
        let (first, other) = (node.min(labelled), node.max(labelled));
        self.of.insert(store.id, first);
        // The store joins two groups, which thus fail together.
        let groups = self.of.values_mut().chain(self.by_node.values_mut());
        let groups = groups.chain(self.by_value.values_mut());
        groups.filter(|group| **group == other).for_each(|group| *group = first);
    }

    /// Adds a lost store, of which the label may be out of date, without a union of groups.
    fn add_absent(&mut self, store: &'a Store, label: Option<&str>) {
        let new = self.next();
        let value = label.and_then(|label| value_of(store, label));
        let labelled = value.and_then(|value| self.by_value.get(value)).copied();
        let domain = self.by_node.get(&store.address[..]).copied().or(labelled).unwrap_or(new);
        self.by_node.entry(&store.address).or_insert(domain);
        if let Some(value) = value {
            self.by_value.entry(value).or_insert(domain);
        }
        self.of.insert(store.id, domain);
    }

    fn count(&self) -> usize {
        self.of.values().collect::<BTreeSet<_>>().len()
    }
}

pub(super) fn value_of<'a>(store: &'a Store, name: &str) -> Option<&'a str> {
    let found = store.labels.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

impl Cluster {
    /// Returns the failure domain of a store; 0 for one that is no member.
    pub fn domain(&self, store: StoreId) -> Domain {
        self.domains.get(store).unwrap_or_default()
    }

    /// Whether two stores may fail together, so that no region may have a replica on both.
    pub fn share_domain(&self, a: StoreId, b: StoreId) -> bool {
        // bug placement.two_on_a_node: return a == b;
        a == b || self.domains.get(a).is_some_and(|a| Some(a) == self.domains.get(b))
    }

    /// Returns the label by which domains are formed; `None` while they are the nodes.
    pub fn domain_label(&self) -> Option<&str> {
        self.domains.label.as_deref()
    }

    pub(super) fn note_domains(&mut self) {
        let lost = std::mem::take(&mut self.domains.lost);
        self.domains = Domains::new(&self.stores, self.copies_max(), lost);
    }

    fn copies_max(&self) -> usize {
        self.config.replicas().max(COPIES_MIN)
    }

    /// Computes the domains again if stores were lost or came back: a label of which too few values
    /// are left must not keep regions from their copies.
    pub(super) fn note_lost(&mut self, now: Millis) {
        let members = self.stores.values().filter(|store| store.state != StoreState::Tombstone);
        let lost: BTreeSet<StoreId> =
            members.map(|store| store.id).filter(|id| self.is_lost(*id, now)).collect();
        // bug placement.lost_value_counts: never
        if lost != self.domains.lost {
            self.domains.lost = lost;
            self.note_domains();
        }
    }
}

#[cfg(test)]
mod tests;
