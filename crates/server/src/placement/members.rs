//! Members of the cluster: joins, and lists for other nodes.

use super::forward::leader_calls;
use super::{PlacementService, wire};
use crate::members::encode;
use std::sync::Arc;
use stele_node::members::list_of;
use stele_placement::{Cluster, NewStore};
use stele_proto::stele::control::v1::{
    AllocIdsRequest, AllocIdsResponse, JoinRequest, JoinResponse, Member, MembersResponse,
    StoreState,
};
use tokio::sync::oneshot;
use tonic::Status;

leader_calls! {
    /// Adds stores to the cluster. The same tokens always get the same ids.
    join, join(JoinRequest) -> JoinResponse = join_here;
    /// Reserves ids for regions and peers.
    alloc_ids_of, alloc_ids(AllocIdsRequest) -> AllocIdsResponse = alloc_ids_here;
}

impl PlacementService {
    async fn join_here(self: &Arc<Self>, request: JoinRequest) -> Result<JoinResponse, Status> {
        self.check_times(request.lease_times.as_ref(), &request.address).map_err(with_remedy)?;
        let stores: Vec<NewStore> = request.stores.into_iter().map(new_store).collect();
        let (address, now) = (request.address, self.now());
        let (cluster, own) = (self.cluster, self.system.own_address());
        let times = wire::wire_times(&self.times);
        let (sender, decided) = oneshot::channel();
        self.input(|leader| {
            leader.join(address, stores, now, move |joined| {
                let response = joined.map(|(ids, state)| JoinResponse {
                    cluster_id: cluster.0,
                    store_ids: ids.iter().map(|id| id.0).collect(),
                    members_version: state.cluster.members_version(),
                    members: members_of(&state.cluster, &own),
                    lease_times: Some(times),
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
        let refused = |error: stele_types::Error| Status::invalid_argument(error.to_string());
        self.decided(decided, refused).await
    }

    async fn alloc_ids_here(
        self: &Arc<Self>,
        request: AllocIdsRequest,
    ) -> Result<AllocIdsResponse, Status> {
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
