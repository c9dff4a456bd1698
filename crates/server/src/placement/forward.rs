//! Passing calls on to the leader: once, never in a circle.

use super::PlacementService;
use crate::port::MESSAGE_BYTES_MAX;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stele_proto::stele::control::v1::RequestHeader;
use stele_proto::stele::control::v1::control_client::ControlClient;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Where the answer of a node that does not lead names the one that does.
const LEADER_METADATA: &str = "stele-leader";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A leader that takes longer is a leader no more, most likely; callers ask again.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Most leaders a connection is kept to; there is one at a time.
const CONNECTIONS_MAX: usize = 16;
/// Where an answer says after how many milliseconds the same call may succeed.
const RETRY_METADATA: &str = "stele-retry-ms";
/// How the refusal of a caller from another cluster begins.
const OTHER_CLUSTER: &str = "mismatch cluster id";
/// Nodes report every second, and those that lost their leader soon after they find the new one.
const RETRY_MILLIS: u64 = 200;

/// A refusal that may be another answer in a moment.
pub(super) fn ask_again(refusal: &Status) -> Status {
    let text =
        format!("the leader is new and has not heard of all stores yet: {}", refusal.message());
    let mut status = Status::unavailable(text);
    status.metadata_mut().insert(RETRY_METADATA, MetadataValue::from(RETRY_MILLIS));
    status
}

/// Connections to leaders, and who leads as far as answers told.
#[derive(Default)]
pub(super) struct Forward {
    channels: Mutex<HashMap<String, Channel>>,
    told: Mutex<Option<String>>,
    turn: AtomicUsize,
}

impl Forward {
    /// Says who leads.
    pub fn not_leader(&self, address: &str) -> Status {
        let mut status = Status::unavailable(format!("not leader; the leader is {address}"));
        if let Ok(value) = MetadataValue::try_from(address) {
            status.metadata_mut().insert(LEADER_METADATA, value);
        }
        status
    }

    /// Learns from a refusal: it names the leader, or whoever was asked is not to be asked again.
    /// Returns what the caller is told: that it should look for the leader, whatever went wrong on
    /// the way there.
    pub fn learn(&self, refusal: Status) -> Status {
        let lost = [Code::Unavailable, Code::Cancelled, Code::DeadlineExceeded, Code::Unknown];
        // At an address that a member had may be somebody else's node now.
        let is_stranger = refusal.message().starts_with(OTHER_CLUSTER)
            && !stele_types::mutant::active("server.stranger_refuses");
        if !lost.contains(&refusal.code()) && !is_stranger {
            return refusal;
        }
        let named = refusal.metadata().get(LEADER_METADATA);
        *self.told.lock() = named.and_then(|name| name.to_str().ok()).map(str::to_owned);
        match refusal.message().contains(" leader") {
            true => refusal,
            false => Status::unavailable(format!("no leader: {}", refusal.message())),
        }
    }

    /// One of `nodes` after the other, when nobody knows who leads.
    fn guess(&self, nodes: &[String]) -> Option<String> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        nodes.get(turn.checked_rem(nodes.len())?).cloned()
    }

    fn client(&self, address: &str) -> Result<ControlClient<Channel>, Status> {
        let mut channels = self.channels.lock();
        let channel = match channels.get(address) {
            Some(channel) => channel.clone(),
            None => {
                let endpoint = Endpoint::from_shared(format!("http://{address}"))
                    .map_err(|error| Status::unavailable(format!("no leader: {error}")))?;
                let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).timeout(CALL_TIMEOUT);
                let channel = endpoint.tcp_nodelay(true).connect_lazy();
                if channels.len() >= CONNECTIONS_MAX {
                    channels.clear();
                }
                channels.insert(address.to_owned(), channel.clone());
                channel
            }
        };
        Ok(ControlClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
    }
}

impl PlacementService {
    /// `host:port` of the node that leads the placement group, as far as known.
    pub fn leader_address(&self) -> Option<String> {
        self.system.leader_address().or_else(|| self.forward.told.lock().clone())
    }

    /// A client of the leader and the header for it; fails if the call was passed on already, or if
    /// there is nobody to pass it on to.
    pub(super) fn pass_on(
        &self,
        header: Option<&RequestHeader>,
    ) -> Result<(ControlClient<Channel>, RequestHeader), Status> {
        let own = self.system.own_address();
        let known = self.leader_address().filter(|leader| *leader != own);
        if header.is_some_and(|header| header.forwarded) {
            return Err(match known {
                Some(leader) => self.forward.not_leader(&leader),
                None => Status::unavailable("no leader"),
            });
        }
        let mut others = self.system.nodes();
        others.retain(|node| *node != own);
        let Some(node) = known.or_else(|| self.forward.guess(&others)) else {
            return Err(Status::unavailable("no leader"));
        };
        let client = self.forward.client(&node)?;
        Ok((client, RequestHeader { cluster_id: self.cluster.0, forwarded: true }))
    }

    /// A caller that names another cluster has lost its way.
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

/// Calls that the leader answers, here or elsewhere: `name(Request) -> Response = what the leader
/// does`.
macro_rules! led_calls {
    ($($(#[$doc:meta])* $name:ident, $rpc:ident($request:ident) -> $response:ident = $here:ident;)*) => {
        impl $crate::placement::PlacementService {
            $($(#[$doc])*
            pub async fn $name(
                self: &std::sync::Arc<Self>,
                mut request: stele_proto::stele::control::v1::$request,
            ) -> Result<stele_proto::stele::control::v1::$response, tonic::Status> {
                self.check_cluster(request.header.as_ref())?;
                if self.leads() {
                    return self.$here(request).await;
                }
                let (mut client, header) = self.pass_on(request.header.as_ref())?;
                request.header = Some(header);
                let answer = client.$rpc(request).await.map(tonic::Response::into_inner);
                answer.map_err(|refusal| self.forward.learn(refusal))
            })*
        }
    };
}

pub(super) use led_calls;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_goes_wrong_on_the_way_the_caller_is_told_to_look_for_the_leader() {
        let forward = Forward::default();
        let told = || forward.told.lock().clone();
        forward.learn(forward.not_leader("a:1"));
        assert_eq!(told().as_deref(), Some("a:1"));
        let refusal = forward.learn(Status::failed_precondition("3 nodes are needed"));
        assert_eq!(refusal.code(), Code::FailedPrecondition);
        assert!(told().is_some(), "a refusal of the leader is its answer");
        let stranger = Status::failed_precondition("mismatch cluster id, need 7 but got 8");
        assert_eq!(forward.learn(stranger).code(), Code::Unavailable);
        assert!(told().is_none(), "who belongs to another cluster does not lead this one");
        let refusal = forward.learn(Status::cancelled("Timeout expired"));
        assert_eq!(refusal.code(), Code::Unavailable);
        assert_eq!(refusal.message(), "no leader: Timeout expired");
        assert!(told().is_none());
    }

    #[test]
    fn nodes_are_asked_in_turn_when_nobody_is_known_to_lead() {
        let forward = Forward::default();
        let nodes = ["a".to_owned(), "b".to_owned()];
        let asked: Vec<_> = (0..3).filter_map(|_| forward.guess(&nodes)).collect();
        assert_eq!(asked, ["a", "b", "a"]);
        assert_eq!(forward.guess(&[]), None);
    }
}
