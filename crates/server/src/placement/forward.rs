//! Forwarding of calls to the leader: once, never in a circle.

use super::PlacementService;
use crate::access::{Access, Principal, SeenNode, first_caller};
use crate::port::MESSAGE_BYTES_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_proto::stele::control::v1::{HeartbeatRequest, HeartbeatResponse, RequestHeader};
use stele_tls::Identity;
use stele_types::{StoreId, Term};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Metadata key under which a node that does not lead names the leader, by its address for clients.
const LEADER_METADATA: &str = "stele-leader";
/// The same by its address for nodes, where that differs.
const LEADER_FOR_NODES_METADATA: &str = "stele-leader-for-nodes";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After this time the node has probably lost leadership; callers retry.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Most connections kept: to the leader, and from it to the nodes of a moment.
const CONNECTIONS_MAX: usize = 128;
/// Metadata key of the milliseconds after which the same call may succeed.
const RETRY_METADATA: &str = "stele-retry-ms";
/// Start of the refusal of a caller from another cluster.
const OTHER_CLUSTER: &str = "mismatch cluster id";
/// Nodes report every second; those that lost their leader report soon after they find the new one.
const RETRY_MILLIS: u64 = 200;

/// Marks a refusal that may change in a moment.
pub(super) fn retry_later(refusal: &Status) -> Status {
    let text = format!(
        "the leader is new and has not received reports of all stores yet: {}",
        refusal.message()
    );
    let mut status = Status::unavailable(text);
    status.metadata_mut().insert(RETRY_METADATA, MetadataValue::from(RETRY_MILLIS));
    status
}

/// Returns the address for nodes of the leader that a refusal names.
pub(crate) fn named_leader(refusal: &Status) -> Option<String> {
    let named = |key: &str| refusal.metadata().get(key);
    let named = named(LEADER_FOR_NODES_METADATA).or_else(|| named(LEADER_METADATA));
    named.and_then(|name| name.to_str().ok()).map(str::to_owned)
}

#[derive(Default)]
pub(super) struct Forward {
    channels: Mutex<HashMap<String, (Channel, SeenNode)>>,
    known_leader: Mutex<Option<String>>,
    next_node: AtomicUsize,
}

impl Forward {
    /// Refuses a call and names the leader, by its addresses for nodes and for clients.
    pub(super) fn not_leader(&self, address: &str, for_clients: &str) -> Status {
        let text = format!("not leader; the leader is {for_clients}");
        self.naming(text, address, for_clients)
    }

    fn naming(&self, text: String, address: &str, for_clients: &str) -> Status {
        let mut status = Status::unavailable(text);
        let of_nodes = (LEADER_FOR_NODES_METADATA, address);
        let of_nodes = Some(of_nodes).filter(|_| address != for_clients);
        for (key, address) in of_nodes.into_iter().chain([(LEADER_METADATA, for_clients)]) {
            if let Ok(value) = MetadataValue::try_from(address) {
                status.metadata_mut().insert(key, value);
            }
        }
        status
    }

    /// Learns from a refusal: it names the leader, or the node called last is not called again.
    /// Returns the status for the caller: after any failure on the way to the leader, that it must
    /// look for the leader.
    pub(super) fn learn(&self, refusal: Status) -> Status {
        let lost = [Code::Unavailable, Code::Cancelled, Code::DeadlineExceeded, Code::Unknown];
        // A member's former address may belong to another cluster's node now.
        let is_other_cluster = refusal.message().starts_with(OTHER_CLUSTER);
        // bug server.stranger_refuses: let is_other_cluster = false;
        if !lost.contains(&refusal.code()) && !is_other_cluster {
            return refusal;
        }
        *self.known_leader.lock() = named_leader(&refusal);
        match refusal.message().contains(" leader") {
            true => refusal,
            false => Status::unavailable(format!("no leader: {}", refusal.message())),
        }
    }

    fn try_next(&self, nodes: &[String]) -> Option<String> {
        let next_node = self.next_node.fetch_add(1, Ordering::Relaxed);
        nodes.get(next_node.checked_rem(nodes.len())?).cloned()
    }

    fn client(
        &self,
        access: &Access,
        address: &str,
    ) -> Result<(ControlClient<Channel>, SeenNode), Status> {
        let mut channels = self.channels.lock();
        let (channel, seen) = match channels.get(address) {
            Some(known) => known.clone(),
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"))
                    .map_err(|error| Status::unavailable(format!("no leader: {error}")))?;
                let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).timeout(CALL_TIMEOUT);
                let seen = SeenNode::default();
                let channel = access.channel(&endpoint, seen.clone());
                if channels.len() >= CONNECTIONS_MAX {
                    channels.clear();
                }
                channels.insert(address.to_owned(), (channel.clone(), seen.clone()));
                (channel, seen)
            }
        };
        let client = ControlClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        Ok((client, seen))
    }
}

impl PlacementService {
    /// Returns a client of a node, and the header for it.
    pub(super) fn client_of(
        &self,
        node: &str,
    ) -> Result<(ControlClient<Channel>, RequestHeader), Status> {
        let (client, _) = self.forward.client(&self.system.access(), node)?;
        Ok((client, RequestHeader { cluster_id: self.cluster.0, forwarded: false }))
    }

    /// Returns `host:port` of the node that leads the placement group, as far as known.
    pub(crate) fn leader_address(&self) -> Option<String> {
        self.system.leader_address().or_else(|| self.forward.known_leader.lock().clone())
    }

    /// Returns a client of the leader, the header for it, and the node that it reaches. Fails if the call was
    /// forwarded already, or if no other node is known.
    pub(super) fn forward_client(
        &self,
        header: Option<&RequestHeader>,
    ) -> Result<(ControlClient<Channel>, RequestHeader, SeenNode), Status> {
        let own = self.system.own_address();
        let known = self.leader_address().filter(|leader| *leader != own);
        if header.is_some_and(|header| header.forwarded) {
            return Err(match known {
                Some(leader) => self.not_leader_but(&leader),
                None => self.no_leader("no leader"),
            });
        }
        let mut others = self.system.nodes();
        others.retain(|node| *node != own);
        let Some(node) = known.or_else(|| self.forward.try_next(&others)) else {
            return Err(self.no_leader("no leader"));
        };
        let (client, seen) = self.forward.client(&self.system.access(), &node)?;
        Ok((client, RequestHeader { cluster_id: self.cluster.0, forwarded: true }, seen))
    }

    /// Reports to the leader, here or elsewhere.
    pub(crate) async fn report(
        self: &Arc<Self>,
        mut request: HeartbeatRequest,
    ) -> Result<HeartbeatResponse, Status> {
        let answer = match self.leads() {
            true => self.heartbeat_here(request).await?,
            false => {
                let (mut client, header, seen) = self.forward_client(None)?;
                request.header = Some(header);
                let answer = client.heartbeat(request).await;
                let answer = answer.map_err(|refusal| self.learn(refusal))?.into_inner();
                let term = Some(answer.options_version).filter(|term| *term > 0).map(Term);
                self.check_answer(&seen, term)?;
                answer
            }
        };
        let stores = answer.placement_stores.iter().copied().map(StoreId).collect();
        self.leaders.lock().note(stores, Term(answer.options_version), self.now());
        Ok(answer)
    }

    /// Fails if the answer of the node at the other end of a channel does not count; then another node is asked
    /// next.
    pub(super) fn check_answer(&self, seen: &SeenNode, term: Option<Term>) -> Result<(), Status> {
        let Some(from) = seen.get() else { return Ok(()) };
        let (seen_here, owner) = (self.system.placement_stores(), |it| self.system.owner(it));
        let known = self.leaders.lock();
        let refusal = known.refusal(from.as_str(), term, self.now(), &seen_here, owner);
        drop(known);
        let Some(text) = refusal else { return Ok(()) };
        *self.forward.known_leader.lock() = None;
        let _counted = self.denied(from.as_str(), "answer", text.clone());
        Err(self.no_leader(&format!("no leader: node {from} is refused: {text}")))
    }

    /// Refuses a call and names the leader.
    pub(super) fn not_leader_but(&self, leader: &str) -> Status {
        self.forward.not_leader(leader, &self.system.client_address_of(leader))
    }

    /// Learns from a refusal of the node that was called for the leader. Returns the status for the
    /// caller.
    pub(super) fn learn(&self, refusal: Status) -> Status {
        let refusal = self.forward.learn(refusal);
        let has_leader = refusal.metadata().contains_key(LEADER_METADATA)
            || refusal.metadata().contains_key(RETRY_METADATA);
        match refusal.code() == Code::Unavailable && !has_leader {
            true => self.no_leader(refusal.message()),
            false => refusal,
        }
    }

    /// Fails if the call was forwarded by a node that is not a member, or if its caller must call this leader
    /// itself; then with this leader's address, which callers follow.
    ///
    /// Invariant: the identity of a first caller is taken from members alone, and for reads alone: no
    /// certificate of a node changes the cluster, or joins, in the name of another caller.
    /// Tests: `a_node_that_is_no_member_forwards_nothing`,
    /// `a_change_is_decided_only_for_a_caller_that_calls_the_leader`.
    pub(super) async fn check_forwarder(self: &Arc<Self>) -> Result<(), Status> {
        let Some(caller) = first_caller() else { return Ok(()) };
        let Some(via) = caller.via else { return Ok(()) };
        let name = via.as_str();
        // bug server.any_node_forwards: always
        if self.read_state(|state| state.cluster.has_node(name)).await? {
            // bug server.first_callers_are_believed: never
            if caller.must_call_itself {
                return Err(self.call_here());
            }
            return Ok(());
        }
        let text = format!(
            "node {name} has no store in this cluster, and forwards no calls: call a member"
        );
        Err(self.denied(name, "forward", text))
    }

    /// Refuses a call that a node forwarded, and names this leader.
    fn call_here(&self) -> Status {
        let (own, to_call) = (self.system.own_address(), self.system.own_admin_address());
        let text = format!(
            "a node is not leader for the changes of others: call the leader itself, at {to_call}"
        );
        self.forward.naming(text, &own, &to_call)
    }

    /// Returns the name in the certificate of the node that the call comes from; `None` without TLS.
    pub(super) fn sender(&self) -> Option<String> {
        match first_caller().map(|caller| caller.first) {
            Some(Principal::Known(Identity::Node { node, .. })) => Some(node.as_str().to_owned()),
            Some(_) => None,
            // This node calls itself.
            None => self.system.access().tls().map(|tls| tls.node().as_str().to_owned()),
        }
    }

    /// Counts and logs a refusal; returns it for the caller.
    pub(super) fn denied(&self, node: &str, cause: &'static str, text: String) -> Status {
        if let Some(tls) = self.system.access().tls() {
            tls.note_refused(node, cause, &text);
        }
        Status::permission_denied(text)
    }

    pub(super) fn check_cluster(&self, header: Option<&RequestHeader>) -> Result<(), Status> {
        match header.map(|header| header.cluster_id) {
            Some(other) if other != 0 && other != self.cluster.0 => {
                let own = self.cluster;
                let text = format!("{OTHER_CLUSTER}, need {own} but got {other}");
                Err(Status::failed_precondition(text))
            }
            _ => Ok(()),
        }
    }
}

/// Defines calls that the leader answers, here or elsewhere: `name(Request) -> Response = function
/// at the leader`.
macro_rules! leader_calls {
    ($($(#[$doc:meta])* $name:ident, $rpc:ident($request:ident) -> $response:ident = $here:ident;)*) => {
        impl $crate::placement::PlacementService {
            $($(#[$doc])*
            pub async fn $name(
                self: &std::sync::Arc<Self>,
                mut request: stele_proto::stele::control::v1::$request,
            ) -> Result<stele_proto::stele::control::v1::$response, tonic::Status> {
                self.check_cluster(request.header.as_ref())?;
                if self.leads() {
                    self.check_forwarder().await?;
                    return self.$here(request).await;
                }
                let (mut client, header, seen) = self.forward_client(request.header.as_ref())?;
                request.header = Some(header);
                let answer = client.$rpc($crate::access::forwarded(request)).await.map(tonic::Response::into_inner);
                let answer = answer.map_err(|refusal| self.learn(refusal))?;
                self.check_answer(&seen, None)?;
                Ok(answer)
            })*
        }
    };
}

pub(super) use leader_calls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_goes_wrong_on_the_way_the_caller_is_told_to_look_for_the_leader() {
        let forward = Forward::default();
        let known = || forward.known_leader.lock().clone();
        forward.learn(forward.not_leader("a:1", "a:1"));
        assert_eq!(known().as_deref(), Some("a:1"));
        let refusal = forward.learn(forward.not_leader("a:2", "c:1"));
        assert_eq!(known().as_deref(), Some("a:2"), "nodes call the address for nodes");
        assert_eq!(refusal.metadata().get(LEADER_METADATA).unwrap(), "c:1");
        let refusal = forward.learn(Status::failed_precondition("3 nodes are needed"));
        assert_eq!(refusal.code(), Code::FailedPrecondition);
        assert!(known().is_some(), "a refusal of the leader is its answer");
        let other_cluster = Status::failed_precondition("mismatch cluster id, need 7 but got 8");
        assert_eq!(forward.learn(other_cluster).code(), Code::Unavailable);
        assert!(known().is_none(), "a node of another cluster does not lead this one");
        let refusal = forward.learn(Status::cancelled("Timeout expired"));
        assert_eq!(refusal.code(), Code::Unavailable);
        assert_eq!(refusal.message(), "no leader: Timeout expired");
        assert!(known().is_none());
    }

    #[test]
    fn nodes_are_tried_in_turn_without_a_known_leader() {
        let forward = Forward::default();
        let nodes = ["a".to_owned(), "b".to_owned()];
        let tried: Vec<_> = (0..3).filter_map(|_| forward.try_next(&nodes)).collect();
        assert_eq!(tried, ["a", "b", "a"]);
        assert_eq!(forward.try_next(&[]), None);
    }
}
