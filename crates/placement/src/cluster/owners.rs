//! Nodes of stores, by the names in their certificates, and permissions to join. Without TLS nodes have
//! no names, and nothing here applies.

use super::Cluster;
use super::stores::NewStore;
use crate::pairs::{self, PairChange};
use crate::store::{NodeReport, StoreReport, StoreState};
use stele_types::{Error, Result, StoreId};

/// SHA-256 of a token.
pub type TokenHash = [u8; 32];

/// What an administrator allows to join.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JoinPermit {
    /// Each node that presents the token with this hash.
    Token(TokenHash),
    /// The node with this name.
    Node(String),
}

/// Node that asks to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoiningNode {
    /// Name in its certificate.
    pub name: String,
    /// Hash of the token that it presents.
    pub token: Option<TokenHash>,
    /// Time of the leader's clock, in Unix seconds.
    pub unix_s: u64,
}

/// Reason not to let a node join.
#[derive(Debug, thiserror::Error)]
pub enum JoinRefusal {
    /// The request can never succeed in this form.
    #[error(transparent)]
    Invalid(#[from] Error),
    /// An administrator must allow it first.
    #[error(
        "node {name} has no store in this cluster and no permission to join{detail}: run `stele ctl admit \
         {name}`, or write the output of `stele ctl join-token` beside the certificate of the node, into a file with \
         the extension `join-token`"
    )]
    NotPermitted {
        /// Name of the node.
        name: String,
        /// Why its token is none; empty without one.
        detail: &'static str,
    },
    /// A store of the request is one of another node.
    #[error("{}", other_node(*.store, .owner, .name))]
    OtherNode {
        /// The store.
        store: StoreId,
        /// Name of its node.
        owner: String,
        /// Name of the node that asks.
        name: String,
    },
}

/// Returns the message for the operator when `name` acts for a store of `owner`.
pub fn other_node(store: StoreId, owner: &str, name: &str) -> String {
    format!(
        "store {store} is one of node {owner}, and the certificate is that of node {name}: use the \
         certificate of {owner}; if its directory moved for good, run `stele ctl admit {name} --store-id {store}`"
    )
}

/// Most permissions at the same time.
const PERMITS_MAX: usize = 64;
/// Longest life of a permission, in seconds.
const VALID_S_MAX: u64 = 30 * 86_400;

impl Cluster {
    /// Returns the name of the node that has a store; `None` before it is bound to one.
    pub fn owner(&self, store: StoreId) -> Option<&str> {
        self.owners.get(&store).map(String::as_str)
    }

    /// Returns whether a node with this name has a store that was not removed.
    ///
    /// Invariant: a node of which all stores were removed needs a permission again.
    /// Test: `a_node_joins_with_a_permission_that_has_not_expired_and_further_stores_need_none`.
    pub fn has_node(&self, name: &str) -> bool {
        let is_member = |id: &StoreId| {
            self.store(*id).is_some_and(|store| store.state != StoreState::Tombstone)
        };
        self.owners.iter().any(|(id, owner)| owner == name && is_member(id))
    }

    /// Returns whether a store is bound to another node than the one with this name.
    ///
    /// Invariant: a node states nothing for a store of another one.
    /// Tests: `a_report_binds_stores_once_and_no_other_node_reports_them`,
    /// `a_node_changes_nothing_of_the_stores_of_another_one`.
    pub fn is_foreign(&self, store: StoreId, name: Option<&str>) -> bool {
        let owner = self.owner(store);
        // bug placement.any_node_reports_a_store: `owner != name` is `false`
        owner.is_some() && name.is_some() && owner != name
    }

    /// Plans to bind a store to the node that reports it first.
    ///
    /// A store that joined before its node had a certificate is bound by its first report. The address
    /// in the report proves nothing, as each node states its own.
    pub(super) fn plan_owner(&self, store: StoreId, name: Option<&str>) -> Option<PairChange> {
        let name = name.filter(|_| self.owner(store).is_none())?;
        Some(pairs::owner(store, name))
    }

    /// Fails if all stores that a node reports are bound to other nodes.
    pub(super) fn check_owners(&self, node: &NodeReport, reports: &[StoreReport]) -> Result<()> {
        let name = node.name.as_deref();
        let is_foreign = |report: &&StoreReport| self.is_foreign(report.id, name);
        let Some(first) = reports.iter().find(is_foreign) else { return Ok(()) };
        if !reports.iter().all(|report| is_foreign(&report)) {
            return Ok(());
        }
        let owner = self.owner(first.id).unwrap_or_default();
        Err(Error::invalid(other_node(first.id, owner, name.unwrap_or_default())))
    }

    /// Plans the join of new stores of a node with a certificate, and binds them to its name.
    ///
    /// Invariant: a certificate alone makes no node a member. An administrator has allowed it, or the
    /// node is one already.
    /// Test: `a_node_joins_with_a_permission_that_has_not_expired_and_further_stores_need_none`.
    pub fn plan_join_of(
        &self,
        address: &str,
        stores: &[NewStore],
        node: &JoiningNode,
    ) -> Result<(Vec<StoreId>, Vec<PairChange>), JoinRefusal> {
        let name = &node.name;
        let by_name = JoinPermit::Node(name.clone());
        let by_token = node.token.map(JoinPermit::Token);
        let is_permitted = [Some(&by_name), by_token.as_ref()]
            .into_iter()
            .flatten()
            .any(|permit| self.permits.get(permit).is_some_and(|until| *until > node.unix_s));
        // bug placement.join_without_permission: never
        if !is_permitted && !self.has_node(name) {
            let detail = match node.token {
                Some(_) => " (its token is not one of this cluster, or has expired)",
                None => "",
            };
            return Err(JoinRefusal::NotPermitted { name: name.clone(), detail });
        }
        let (ids, mut changes) = self.plan_join(address, stores)?;
        for id in &ids {
            if let Some(owner) = self.owner(*id).filter(|owner| owner != name) {
                let (store, owner) = (*id, owner.to_owned());
                return Err(JoinRefusal::OtherNode { store, owner, name: name.clone() });
            }
            changes.extend(self.plan_owner(*id, Some(name)));
        }
        // Consent to one name is for one join.
        changes.extend(self.permits.contains_key(&by_name).then(|| pairs::permit(&by_name, None)));
        Ok((ids, changes))
    }

    /// Plans a permission to join that ends `valid_s` seconds after `unix_s`, and removes those that have
    /// expired. Fails with `Invalid`, and with `Busy` if there are too many.
    pub fn plan_permit(
        &self,
        permit: &JoinPermit,
        valid_s: u64,
        unix_s: u64,
    ) -> Result<Vec<PairChange>> {
        if let JoinPermit::Node(name) = permit {
            check_name(name)?;
        }
        if !(1..=VALID_S_MAX).contains(&valid_s) {
            return Err(Error::invalid(format!("a permission lasts 1 to {VALID_S_MAX} seconds")));
        }
        let expired = self.permits.iter().filter(|(_, until)| **until <= unix_s);
        let mut changes: Vec<_> = expired.map(|(it, _)| pairs::permit(it, None)).collect();
        // bug placement.permits_unbounded: never
        if self.permits.len() - changes.len() >= PERMITS_MAX && !self.permits.contains_key(permit) {
            return Err(Error::Busy(format!("{PERMITS_MAX} permissions to join are in force")));
        }
        changes.push(pairs::permit(permit, Some(unix_s.saturating_add(valid_s))));
        Ok(changes)
    }

    /// Plans to bind a store to another node, to which its directory moved. Fails with `Invalid`.
    pub fn plan_new_owner(&self, store: StoreId, name: &str) -> Result<Vec<PairChange>> {
        check_name(name)?;
        match self.store(store).map(|store| store.state) {
            None => Err(Error::invalid(format!("there is no store {store}"))),
            Some(StoreState::Tombstone) => {
                Err(Error::invalid(format!("store {store} was removed from the cluster")))
            }
            Some(_) if self.owner(store) == Some(name) => Ok(Vec::new()),
            Some(_) => Ok(self.with_version(vec![pairs::owner(store, name)])),
        }
    }
}

fn check_name(name: &str) -> Result<()> {
    match pairs::is_node_name(name) {
        true => Ok(()),
        false => Err(Error::invalid("a node has a name of 1 to 64 bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Pairs, commit, founded, load};
    use super::*;
    use crate::Millis;
    use crate::cluster::stores::DrainGoal;

    fn new_store(token: &'static [u8]) -> NewStore {
        NewStore { token: token.into(), ..NewStore::default() }
    }

    fn joining(name: &str, token: Option<TokenHash>, unix_s: u64) -> JoiningNode {
        JoiningNode { name: name.to_owned(), token, unix_s }
    }

    fn of_node(name: &str, address: &str) -> NodeReport {
        let (name, address) = (Some(name.to_owned()), address.to_owned());
        NodeReport { name, address, ..NodeReport::default() }
    }

    fn says(ids: &[u64]) -> Vec<StoreReport> {
        let report = |id: &u64| StoreReport { id: StoreId(*id), ..StoreReport::default() };
        ids.iter().map(report).collect()
    }

    fn report(pairs: &mut Pairs, cluster: &mut Cluster, node: &NodeReport, ids: &[u64]) {
        let changes = cluster.plan_heartbeat(node, &says(ids)).unwrap();
        commit(pairs, cluster, changes);
    }

    #[test]
    fn a_report_binds_stores_once_and_no_other_node_reports_them() {
        let (mut pairs, mut cluster) = founded();
        let plain = NodeReport { address: "n1:1".into(), ..NodeReport::default() };
        report(&mut pairs, &mut cluster, &plain, &[1, 2]);
        assert_eq!(cluster.owner(StoreId(1)), None, "a node without a certificate has no name");
        let version = cluster.members_version();
        report(&mut pairs, &mut cluster, &of_node("n1", "n1:1"), &[1]);
        assert_eq!(cluster.members_version(), version + 1, "nodes get the name with the list");
        assert_eq!(load(&pairs).owner(StoreId(1)), Some("n1"));
        // Another node takes neither the address nor the state of the store, and keeps its own.
        let other = of_node("n3", "n3:1");
        let refused = cluster.plan_heartbeat(&other, &says(&[1])).unwrap_err().to_string();
        assert!(refused.contains("store 1 is one of node n1"), "{refused}");
        assert!(refused.contains("stele ctl admit n3 --store-id 1"), "{refused}");
        report(&mut pairs, &mut cluster, &other, &[1, 2]);
        cluster.record_heartbeat(&other, &says(&[1, 2]), Millis(5));
        let store = |id| cluster.store(StoreId(id)).unwrap();
        assert_eq!((&store(1).address[..], store(1).node.name.as_deref()), ("n1:1", None));
        assert_eq!((&store(2).address[..], store(2).node.name.as_deref()), ("n3:1", Some("n3")));
        assert_eq!(cluster.owner(StoreId(2)), Some("n3"));
        // Without TLS a name states nothing.
        assert!(cluster.plan_heartbeat(&plain, &says(&[1])).is_ok());
        let moved = cluster.plan_new_owner(StoreId(1), "n3").unwrap();
        commit(&mut pairs, &mut cluster, moved);
        assert!(cluster.plan_heartbeat(&other, &says(&[1])).is_ok());
        assert!(cluster.plan_new_owner(StoreId(9), "n3").is_err());
    }

    #[test]
    fn a_node_joins_with_a_permission_that_has_not_expired_and_further_stores_need_none() {
        let (mut pairs, mut cluster) = founded();
        let hash = [7; 32];
        let join = |cluster: &Cluster, token: &'static [u8], node: &JoiningNode| {
            cluster.plan_join_of("n2:1", &[new_store(token)], node)
        };
        let refused = join(&cluster, b"a", &joining("n2", None, 10)).unwrap_err().to_string();
        assert!(refused.contains("`stele ctl admit n2`"), "{refused}");
        assert!(refused.contains("`stele ctl join-token`"), "{refused}");
        for permit in [JoinPermit::Token(hash), JoinPermit::Node("n3".into())] {
            let changes = cluster.plan_permit(&permit, 60, 10).unwrap();
            commit(&mut pairs, &mut cluster, changes);
        }
        cluster = load(&pairs);
        for refused in [
            joining("n2", None, 69),
            joining("n2", Some([8; 32]), 69),
            joining("n2", Some(hash), 70),
            joining("n3", None, 70),
        ] {
            let error = join(&cluster, b"a", &refused).unwrap_err();
            assert!(matches!(error, JoinRefusal::NotPermitted { .. }), "{refused:?}");
        }
        let (ids, changes) = join(&cluster, b"a", &joining("n2", Some(hash), 69)).unwrap();
        commit(&mut pairs, &mut cluster, changes);
        assert_eq!((ids, cluster.owner(StoreId(3))), (vec![StoreId(3)], Some("n2")));
        let (_, changes) = join(&cluster, b"c", &joining("n3", None, 69)).unwrap();
        commit(&mut pairs, &mut cluster, changes);
        assert!(!cluster.permits.contains_key(&JoinPermit::Node("n3".into())), "it is used up");
        // Repeated, and of the same node.
        assert!(join(&cluster, b"a", &joining("n2", None, 500)).unwrap().1.is_empty());
        assert_eq!(join(&cluster, b"b", &joining("n2", None, 500)).unwrap().0, [StoreId(5)]);
        let stolen = join(&cluster, b"a", &joining("n3", None, 500)).unwrap_err();
        assert!(matches!(stolen, JoinRefusal::OtherNode { store: StoreId(3), .. }), "{stolen}");
        let changes = cluster.plan_state(StoreId(3), DrainGoal::Lost, Millis(1 << 40)).unwrap();
        commit(&mut pairs, &mut cluster, changes);
        assert!(join(&cluster, b"b", &joining("n2", None, 500)).is_err(), "it has none any more");
    }

    #[test]
    fn permissions_are_bounded_and_expired_ones_make_room() {
        let (mut pairs, mut cluster) = founded();
        for at in 0..PERMITS_MAX {
            let permit = JoinPermit::Node(format!("n{at}"));
            let changes = cluster.plan_permit(&permit, 60 + at as u64, 0).unwrap();
            commit(&mut pairs, &mut cluster, changes);
        }
        let one = JoinPermit::Token([1; 32]);
        assert!(matches!(cluster.plan_permit(&one, 60, 59), Err(Error::Busy(_))));
        assert!(cluster.plan_permit(&JoinPermit::Node("n5".into()), 60, 59).is_ok());
        let changes = cluster.plan_permit(&one, 60, 60).unwrap();
        commit(&mut pairs, &mut cluster, changes);
        assert_eq!(cluster.permits.len(), PERMITS_MAX);
        assert!(!load(&pairs).permits.contains_key(&JoinPermit::Node("n0".into())));
        for (name, valid_s) in [("", 60), (&"n".repeat(65), 60), ("n", 0), ("n", VALID_S_MAX + 1)] {
            let permit = JoinPermit::Node(name.to_owned());
            assert!(cluster.plan_permit(&permit, valid_s, 0).is_err(), "{name} {valid_s}");
        }
    }
}
