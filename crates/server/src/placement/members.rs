//! Members of the cluster: joins, and lists for other nodes.

use super::forward::leader_calls;
use super::{PlacementService, refused, wire};
use crate::members::encode;
use std::sync::Arc;
use stele_node::members::list_of;
use stele_placement::{Cluster, JoinPermit, JoinRefusal, JoiningNode, NewStore, TokenHash};
use stele_proto::stele::control::v1::{
    AdmitRequest, AdmitResponse, AllocIdsRequest, AllocIdsResponse, JoinRequest, JoinResponse,
    Member, MembersResponse, StoreState,
};
use stele_tls::token_hash;
use stele_types::StoreId;
use tokio::sync::oneshot;
use tonic::Status;

leader_calls! {
    /// Adds stores to the cluster. The same tokens always get the same ids.
    join, join(JoinRequest) -> JoinResponse = join_here;
    /// Allows nodes with certificates to join.
    admit, admit(AdmitRequest) -> AdmitResponse = admit_here;
    /// Reserves ids for regions and peers.
    alloc_ids_of, alloc_ids(AllocIdsRequest) -> AllocIdsResponse = alloc_ids_here;
}

impl PlacementService {
    async fn join_here(self: &Arc<Self>, request: JoinRequest) -> Result<JoinResponse, Status> {
        self.check_times(request.lease_times.as_ref(), &request.address).map_err(with_remedy)?;
        self.check_level(request.level, &request.address).await?;
        let stores: Vec<NewStore> = request.stores.into_iter().map(new_store).collect();
        let node = self.sender().map(|name| JoiningNode {
            name,
            token: Some(&request.join_token).filter(|it| !it.is_empty()).map(|it| token_hash(it)),
            unix_s: self.clock.unix_seconds(),
        });
        let name = node.as_ref().map(|node| node.name.clone()).unwrap_or_default();
        let (address, now) = (request.address, self.now());
        let (cluster, own) = (self.cluster, self.system.own_address());
        let times = wire::wire_times(&self.times);
        let (sender, decided) = oneshot::channel();
        self.input(|leader| {
            leader.join((address, node), stores, now, move |joined| {
                let response = joined.map(|(ids, state)| JoinResponse {
                    cluster_id: cluster.0,
                    store_ids: ids.iter().map(|id| id.0).collect(),
                    members_version: state.cluster.members_version(),
                    members: members_of(&state.cluster, &own),
                    lease_times: Some(times),
                    level: state.cluster.levels().recorded.get(),
                });
                if let Some(text) =
                    response.as_ref().ok().and_then(|it| warning_of_two(&it.members))
                {
                    tracing::warn!("{text}");
                }
                // The caller may be gone.
                let _ = sender.send(response);
            });
        });
        let refused = |refusal: JoinRefusal| match refusal {
            JoinRefusal::Invalid(error) => Status::invalid_argument(error.to_string()),
            other => self.denied(&name, "join", other.to_string()),
        };
        self.decided(decided, refused).await
    }

    async fn admit_here(self: &Arc<Self>, request: AdmitRequest) -> Result<AdmitResponse, Status> {
        let AdmitRequest { node, token_sha256, valid_s, store_id, .. } = request;
        let permit = match (node.is_empty(), TokenHash::try_from(&token_sha256[..])) {
            (false, Err(_)) if token_sha256.is_empty() => JoinPermit::Node(node.clone()),
            (true, Ok(hash)) => JoinPermit::Token(hash),
            _ => return Err(Status::invalid_argument("name one node, or the hash of one token")),
        };
        let unix_s = self.clock.unix_seconds();
        let plan = move |cluster: &Cluster, _| {
            let changes = match store_id {
                0 => cluster.plan_permit(&permit, valid_s, unix_s),
                store => cluster.plan_new_owner(StoreId(store), &node),
            };
            Ok(((), changes.map_err(refused)?))
        };
        self.commit_decision(plan, |(), _| AdmitResponse {}).await
    }

    async fn alloc_ids_here(
        self: &Arc<Self>,
        request: AllocIdsRequest,
    ) -> Result<AllocIdsResponse, Status> {
        if let Some(name) = self.sender()
            && !self.read_state(|state| state.cluster.has_node(&name)).await?
        {
            let text = format!("node {name} has no store in this cluster");
            return Err(self.denied(&name, "ids", text));
        }
        Ok(AllocIdsResponse { first: self.take_ids(u64::from(request.count)).await? })
    }

    /// Returns the members; `None` unless this node leads.
    pub fn members(&self) -> Option<MembersResponse> {
        let term = self.system.leader_term()?;
        let leader = self.leader.read();
        let state = leader.state(term)?;
        Some(MembersResponse {
            cluster_id: self.cluster.0,
            members_version: state.cluster.members_version(),
            members: members_of(&state.cluster, &self.system.own_address()),
        })
    }
}

/// Adds what a node without a state may do besides.
fn with_remedy(refused: Status) -> Status {
    let text = refused.message();
    Status::failed_precondition(format!(
        "{text}; a node of this version joins without tick_ms, and takes the tick of the cluster"
    ))
}

/// Returns the warning for a cluster of two nodes; `None` for any other number.
pub(crate) fn warning_of_two(members: &[Member]) -> Option<&'static str> {
    let removed = StoreState::Removed as i32;
    let has_store = |member: &&Member| member.stores.iter().any(|store| store.state != removed);
    let is_two = members.iter().filter(has_store).count() == 2;
    is_two.then_some(
        "the cluster has two nodes: when one of them fails, no write and no linearizable read \
         succeeds until it is back; add a third node",
    )
}

/// Returns the nodes with their stores. The node that answers, `own`, leads.
pub(super) fn members_of(cluster: &Cluster, own: &str) -> Vec<Member> {
    encode(list_of(cluster, |state| wire::store_state(state) as i32), Some(own))
}

fn new_store(store: stele_proto::stele::control::v1::NewStore) -> NewStore {
    let labels = store.labels.into_iter().map(|label| (label.key, label.value)).collect();
    NewStore { token: store.token, capacity_bytes: store.capacity, labels }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_proto::stele::control::v1::MemberStore;

    #[test]
    fn a_cluster_of_two_nodes_is_warned_of_and_none_of_another_size_is() {
        let member = |state: StoreState| Member {
            stores: vec![MemberStore { id: 1, state: state as i32, ..MemberStore::default() }],
            ..Member::default()
        };
        let up = member(StoreState::Up);
        let gone = member(StoreState::Removed);
        let warns = |members: &[&Member]| {
            let members: Vec<Member> = members.iter().map(|member| (*member).clone()).collect();
            warning_of_two(&members).is_some()
        };
        assert!(warns(&[&up, &up]) && warns(&[&up, &gone, &up]));
        assert!(!warns(&[&up]) && !warns(&[&up, &up, &up]) && !warns(&[&up, &gone]));
        let text = warning_of_two(&[up.clone(), up]).unwrap_or_default();
        assert!(text.contains("when one of them fails") && text.contains("add a third node"));
    }
}
