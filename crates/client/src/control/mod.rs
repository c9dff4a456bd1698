//! Administration of a cluster. Calls to the placement group find its leader; calls that concern
//! one node name the node.

mod comparison;
mod regions;

pub use comparison::{Comparison, Verdict};
pub use regions::RegionRow;

use crate::Options;
use crate::backoff::{Pause, Tries, more_telling};
use crate::call::ControlCall;
use crate::delivery::Departure;
use crate::pd_rpc_client::{is_broken, is_not_leader, leader_of, retry_after, status_text};
use crate::route::Router;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use stele_proto::stele::control::v1 as messages;
use stele_types::{Error, RegionId, Result, StoreId};
use tonic::{Code, Status};

/// Administrative interface of a client.
#[derive(Clone)]
pub struct Control {
    router: Arc<Router>,
    options: Options,
    /// Address of the last known leader of the placement group.
    leader: Arc<Mutex<Option<String>>>,
}

impl Control {
    pub(crate) fn new(router: Arc<Router>, options: Options) -> Self {
        Self { router, options, leader: Arc::default() }
    }

    /// Returns the nodes with their stores.
    pub async fn members(&self) -> Result<messages::MembersResponse> {
        self.call_leader(messages::MembersRequest::default()).await
    }

    /// Returns the stores as reported last; all members if `ids` is empty.
    pub async fn stores(&self, ids: &[StoreId]) -> Result<Vec<messages::StoreInfo>> {
        let ids = ids.iter().map(|id| id.0).collect();
        let request = messages::ListStoresRequest { ids, ..Default::default() };
        Ok(self.call_leader(request).await?.stores)
    }

    /// Returns the stores as the placement group reports them, or else, if it has no leader that answers
    /// within `within`, as the first node that responds knows them.
    pub async fn stores_or_known(&self, within: Duration) -> Result<KnownStores> {
        let options =
            Options { timeout: within, attempt_timeout: within, on_wait: None, ..self.options };
        let hasty = Self { options, ..self.clone() };
        // A call may wait longer: for the connection to a node that does not answer.
        let error = match tokio::time::timeout(within, hasty.stores(&[])).await {
            Ok(Ok(stores)) => return Ok(KnownStores { stores, by: None }),
            Ok(Err(error @ Error::Unavailable(_))) => error,
            Ok(Err(error)) => return Err(error),
            Err(_) => Error::Unavailable(format!("no leader answers within {within:?}")),
        };
        for address in self.candidates() {
            let request = messages::ListStoresRequest { known_here: true, ..Default::default() };
            // A node of an earlier version answers as the leader does, or not at all.
            if let Ok(answer) = hasty.call_node(&address, request).await
                && answer.known_here
            {
                let by = Some((address, answer.no_leader));
                return Ok(KnownStores { stores: answer.stores, by });
            }
        }
        Err(error)
    }

    /// Returns the running operators; with `ended` also those that ended recently.
    pub async fn operators(&self, ended: bool) -> Result<Vec<messages::OperatorInfo>> {
        let request = messages::ListOperatorsRequest { ended, ..Default::default() };
        Ok(self.call_leader(request).await?.operators)
    }

    /// Returns one operator that is running or ended recently.
    pub async fn operator(&self, operator_id: u64) -> Result<Option<messages::OperatorInfo>> {
        let request =
            messages::ListOperatorsRequest { operator_id, ended: true, ..Default::default() };
        Ok(self.call_leader(request).await?.operators.into_iter().next())
    }

    /// Cancels the operator of a region, and abandons a merge that is not committed. Returns the
    /// operator as it ended; `None` if there was only a merge without one.
    pub async fn cancel_operator(
        &self,
        region: RegionId,
    ) -> Result<Option<messages::OperatorInfo>> {
        let request = messages::CancelOperatorRequest { region_id: region.0, ..Default::default() };
        Ok(self.call_leader(request).await?.operator)
    }

    /// Transfers a region's leadership. Returns the ID of the operator.
    pub async fn transfer_leader(&self, region: RegionId, to: StoreId) -> Result<u64> {
        let (region_id, to_store) = (region.0, to.0);
        let request = messages::TransferRequest { region_id, to_store, header: None };
        Ok(self.call_leader(request).await?.operator_id)
    }

    /// Moves a replica. Returns the ID of the operator.
    pub async fn move_replica(&self, region: RegionId, from: StoreId, to: StoreId) -> Result<u64> {
        let request = messages::MoveRequest {
            region_id: region.0,
            from_store: from.0,
            to_store: to.0,
            header: None,
        };
        Ok(self.call_leader(request).await?.operator_id)
    }

    /// Splits a region at keys, or in half by size without keys. Returns the ID of the operator.
    pub async fn split(&self, region: RegionId, keys: Vec<Bytes>) -> Result<u64> {
        let request = messages::SplitRequest { region_id: region.0, keys, header: None };
        Ok(self.call_leader(request).await?.operator_id)
    }

    /// Merges a region into its neighbour. Returns the ID of the operator.
    pub async fn merge(&self, source: RegionId, target: RegionId) -> Result<u64> {
        let (source_region, target_region) = (source.0, target.0);
        let request = messages::MergeRequest { source_region, target_region, header: None };
        Ok(self.call_leader(request).await?.operator_id)
    }

    /// Moves all replicas off a store that stays a member.
    pub async fn drain(&self, store: StoreId) -> Result<messages::StoreProgress> {
        self.set_state(store, messages::StoreAction::Drain).await
    }

    /// Moves all replicas off a store and removes it from the cluster permanently.
    pub async fn remove(&self, store: StoreId) -> Result<messages::StoreProgress> {
        self.set_state(store, messages::StoreAction::Remove).await
    }

    /// Cancels a drain or a removal.
    pub async fn cancel(&self, store: StoreId) -> Result<messages::StoreProgress> {
        self.set_state(store, messages::StoreAction::Cancel).await
    }

    /// Declares a store lost permanently. Fails with `Refused` while it reports.
    pub async fn declare_lost(&self, store: StoreId) -> Result<messages::StoreProgress> {
        self.set_state(store, messages::StoreAction::Lost).await
    }

    /// Returns the progress of a drain or a removal.
    pub async fn progress(&self, store: StoreId) -> Result<messages::StoreProgress> {
        let request = messages::GetStoreProgressRequest { store_id: store.0, ..Default::default() };
        self.call_leader(request).await
    }

    /// Returns the stores as placement judges them, and the moves under way and planned.
    pub async fn placement(&self) -> Result<messages::PlacementResponse> {
        self.call_leader(messages::PlacementRequest::default()).await
    }

    /// Explains the placement of a region. Fails with `Refused` if there is none.
    pub async fn explain(&self, region: RegionId) -> Result<messages::ExplainResponse> {
        let request = messages::ExplainRequest { region_id: region.0, ..Default::default() };
        self.call_leader(request).await
    }

    /// Explains the placement of the region that holds a user key.
    pub async fn explain_key(&self, key: Bytes) -> Result<messages::ExplainResponse> {
        let request = messages::ExplainRequest { key, ..Default::default() };
        self.call_leader(request).await
    }

    /// Takes a moment: a cut of all regions at one instant. Writes wait meanwhile, at most 200 ms for each of
    /// up to `attempts_max` attempts. Fails with `Refused` and the reason if the last one was abandoned.
    pub async fn take_moment(&self, attempts_max: u32) -> Result<messages::TakeMomentResponse> {
        let request = messages::TakeMomentRequest { attempts_max, header: None };
        self.call_leader(request).await
    }

    /// Returns what the placement group recorded from an entry of its log on; 0: the last thousand entries, as
    /// far as its leader has them.
    pub async fn events(&self, next_index: u64) -> Result<messages::ListEventsResponse> {
        self.call_leader(messages::ListEventsRequest { header: None, next_index }).await
    }

    /// Returns the grants, and the nodes on which they are not in force.
    pub async fn access(&self) -> Result<messages::AccessListResponse> {
        self.call_leader(messages::AccessListRequest::default()).await
    }

    /// Adds or replaces a grant. Returns the version with the change, which nodes confirm later. Fails with
    /// `Refused` while a node of the cluster does not enforce grants.
    pub async fn grant_access(&self, grant: messages::AccessGrant) -> Result<u64> {
        let request = messages::AccessGrantRequest { grant: Some(grant), header: None };
        Ok(self.call_leader(request).await?.version)
    }

    /// Ends a grant; the last one only with `turn_off`. Returns the version with the change.
    pub async fn revoke_access(&self, name: &str, turn_off: bool) -> Result<u64> {
        let name = name.to_owned();
        let request = messages::AccessRevokeRequest { name, turn_off, header: None };
        Ok(self.call_leader(request).await?.version)
    }

    /// Raises the level that the nodes write to the newest one that all of them support, or returns how
    /// far an earlier call has come. Fails with `Refused` and the names of the nodes that stand against it.
    pub async fn finalize(&self) -> Result<messages::FinalizeResponse> {
        self.call_leader(messages::FinalizeRequest::default()).await
    }

    async fn set_state(
        &self,
        store: StoreId,
        action: messages::StoreAction,
    ) -> Result<messages::StoreProgress> {
        let request = messages::SetStoreStateRequest {
            store_id: store.0,
            action: action as i32,
            header: None,
        };
        self.call_leader(request).await
    }

    /// Returns settings of the node at `address`; all if `keys` is empty.
    pub async fn config(
        &self,
        address: &str,
        keys: &[String],
    ) -> Result<Vec<messages::ConfigItem>> {
        let request = messages::GetConfigRequest { keys: keys.to_vec(), header: None };
        Ok(self.call_node(address, request).await?.items)
    }

    /// Makes the store at `address` go on that was stopped beside another run of it. Returns the new run,
    /// for people. Fails with `Refused` if the store was not stopped there.
    pub async fn keep_run(&self, store: StoreId, address: &str) -> Result<String> {
        let request = messages::KeepRunRequest { store_id: store.0, header: None };
        Ok(self.call_node(address, request).await?.run)
    }

    /// Allows the node with this name in its certificate to join, for `valid_s` seconds.
    pub async fn admit_node(&self, node: &str, valid_s: u64) -> Result<()> {
        let node = node.to_owned();
        let request = messages::AdmitRequest { node, valid_s, ..Default::default() };
        self.call_leader(request).await.map(|_| ())
    }

    /// Allows nodes to join that present the token with this SHA-256, for `valid_s` seconds.
    pub async fn admit_token(&self, token_sha256: [u8; 32], valid_s: u64) -> Result<()> {
        let token_sha256 = Bytes::copy_from_slice(&token_sha256);
        let request = messages::AdmitRequest { token_sha256, valid_s, ..Default::default() };
        self.call_leader(request).await.map(|_| ())
    }

    /// Binds a store, of which the directory moved, to the node with this name in its certificate.
    pub async fn move_store(&self, store: StoreId, node: &str) -> Result<()> {
        let (node, store_id) = (node.to_owned(), store.0);
        let request = messages::AdmitRequest { node, store_id, ..Default::default() };
        self.call_leader(request).await.map(|_| ())
    }

    /// Changes a setting of the cluster, through the node at `address` and the leader that it names. Fails with
    /// `Refused` for a setting of a node.
    pub async fn set_config(
        &self,
        address: &str,
        key: &str,
        value: &str,
    ) -> Result<Option<messages::ConfigItem>> {
        let (key, value) = (key.to_owned(), value.to_owned());
        let mut request = messages::SetConfigRequest { key, value, header: None };
        request.set_cluster(self.router.pd_client.cluster());
        let tries = Tries::new(&self.options);
        let answer = match self.send(address, request.clone(), &tries).await {
            Err(Failure::Node { leader: Some(leader), .. }) => {
                self.send(&leader, request, &tries).await
            }
            other => other,
        };
        answer.map(|answer| answer.item).map_err(Failure::into_error)
    }

    /// Returns `host:port` of a store's node for administrators.
    pub async fn store_address(&self, store: StoreId) -> Result<String> {
        let removed = messages::StoreState::Removed as i32;
        let found = self.stores(&[store]).await?.into_iter().find(|info| info.state != removed);
        let info = found.ok_or_else(|| Error::Refused(format!("there is no store {store}")))?;
        let addresses = [info.admin_address, info.client_address, info.address];
        Ok(addresses.into_iter().find(|it| !it.is_empty()).unwrap_or_default())
    }

    async fn call_leader<C: ControlCall>(&self, mut call: C) -> Result<C::Response> {
        call.set_cluster(self.router.pd_client.cluster());
        let mut tries = Tries::new(&self.options);
        loop {
            let mut reason = String::new();
            let mut pause = Pause::Region;
            'nodes: for address in self.candidates() {
                let mut next = Some(address);
                // If a named leader names yet another node, leadership is moving: pause first.
                for _ in 0..2 {
                    let Some(address) = next.take() else { break };
                    match self.send(&address, call.clone(), &tries).await {
                        Ok(response) => {
                            *self.leader.lock() = Some(address);
                            return Ok(response);
                        }
                        Err(Failure::Final(error)) => return Err(error),
                        Err(Failure::Node { text, leader }) => {
                            reason = more_telling(reason, text);
                            next = leader;
                        }
                        // Only the leader, directly or through another node, returns this: no other
                        // node knows more.
                        Err(Failure::Temporary { text, delay }) => {
                            (reason, pause) = (text, Pause::Busy(delay));
                            break 'nodes;
                        }
                    }
                }
            }
            *self.leader.lock() = None;
            tries.pause(pause, reason).await?;
        }
    }

    /// Calls one node. Fails with `Unavailable` if it cannot be reached.
    async fn call_node<C: ControlCall>(&self, address: &str, mut call: C) -> Result<C::Response> {
        call.set_cluster(self.router.pd_client.cluster());
        let tries = Tries::new(&self.options);
        self.send(address, call, &tries).await.map_err(Failure::into_error)
    }

    async fn send<C: ControlCall>(
        &self,
        address: &str,
        call: C,
        tries: &Tries,
    ) -> Result<C::Response, Failure> {
        let connections = &self.router.connections;
        let unreachable = |text| Failure::Node { text, leader: None };
        let connection = connections.get(address).await.map_err(unreachable)?;
        let timeout = self.options.attempt_timeout.min(tries.left());
        let departure = Departure::default();
        let answer = tokio::time::timeout(timeout, call.send(&connection, &departure)).await;
        match answer {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => {
                if is_broken(&status) {
                    connections.forget(&connection);
                }
                Err(classify(address, &status))
            }
            Err(_) => {
                connections.forget(&connection);
                Err(unreachable(format!("{address}: no response")))
            }
        }
    }

    fn candidates(&self) -> Vec<String> {
        let leader = self.leader.lock().clone();
        let mut candidates: Vec<String> = leader.into_iter().collect();
        for address in self.router.pd_client.addresses() {
            if !candidates.contains(&address) {
                candidates.push(address);
            }
        }
        candidates
    }
}

/// Stores of a cluster.
#[derive(Clone, Debug)]
pub struct KnownStores {
    /// One entry for each. Of one node's knowledge only the address counts, and the time since that
    /// node heard the store.
    pub stores: Vec<messages::StoreInfo>,
    /// Address of the node that answered for the placement group, and the reason for which that has no
    /// leader, which may be empty. `None` if the leader answered.
    pub by: Option<(String, String)>,
}

enum Failure {
    /// Every node would refuse the call.
    Final(Error),
    /// This node failed or refused the call; another one may serve it.
    Node { text: String, leader: Option<String> },
    /// No node can serve the call now; it may succeed after this time.
    Temporary { text: String, delay: Duration },
}

impl Failure {
    fn into_error(self) -> Error {
        match self {
            Self::Final(error) => error,
            Self::Node { text, .. } | Self::Temporary { text, .. } => Error::Unavailable(text),
        }
    }
}

fn classify(address: &str, status: &Status) -> Failure {
    let text = status_text(status);
    if let Some(delay) = retry_after(status) {
        return Failure::Temporary { text, delay };
    }
    match status.code() {
        Code::FailedPrecondition
        | Code::NotFound
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated => Failure::Final(Error::Refused(text)),
        Code::Unimplemented => Failure::Final(Error::Refused(format!(
            "the node at {address} runs an earlier version, which does not know this call: upgrade it first"
        ))),
        _ if is_not_leader(status) => Failure::Node { text, leader: leader_of(status) },
        _ => Failure::Node { text: format!("{address}: {text}"), leader: leader_of(status) },
    }
}
