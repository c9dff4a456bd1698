//! What operators ask for. Calls to the placement group find its leader by themselves; calls that
//! concern one node name it.

mod regions;

pub use regions::RegionRow;

use crate::Options;
use crate::backoff::{Pause, Tries};
use crate::call::ControlCall;
use crate::pd_rpc_client::{is_broken, is_not_leader, leader_of, retry_after, status_text};
use crate::route::Router;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use stele_proto::stele::control::v1 as messages;
use stele_types::{Error, RegionId, Result, StoreId};
use tonic::{Code, Status};

/// The operators' calls of a client.
#[derive(Clone)]
pub struct Control {
    router: Arc<Router>,
    options: Options,
    /// Who led the placement group last.
    leader: Arc<Mutex<Option<String>>>,
}

impl Control {
    pub(crate) fn new(router: Arc<Router>, options: Options) -> Self {
        Self { router, options, leader: Arc::default() }
    }

    /// Nodes with their stores.
    pub async fn members(&self) -> Result<messages::MembersResponse> {
        self.ask_leader(messages::MembersRequest::default()).await
    }

    /// Stores as they reported last; `ids` of none: all that are members.
    pub async fn stores(&self, ids: &[StoreId]) -> Result<Vec<messages::StoreInfo>> {
        let ids = ids.iter().map(|id| id.0).collect();
        let request = messages::ListStoresRequest { ids, ..Default::default() };
        Ok(self.ask_leader(request).await?.stores)
    }

    /// What the placement group has under way; with `ended` also what ended lately.
    pub async fn operators(&self, ended: bool) -> Result<Vec<messages::OperatorInfo>> {
        let request = messages::ListOperatorsRequest { ended, ..Default::default() };
        Ok(self.ask_leader(request).await?.operators)
    }

    /// One operator, running or ended lately.
    pub async fn operator(&self, operator_id: u64) -> Result<Option<messages::OperatorInfo>> {
        let request =
            messages::ListOperatorsRequest { operator_id, ended: true, ..Default::default() };
        Ok(self.ask_leader(request).await?.operators.into_iter().next())
    }

    /// Ends the operator of a region.
    pub async fn cancel_operator(&self, region: RegionId) -> Result<()> {
        let request = messages::CancelOperatorRequest { region_id: region.0, ..Default::default() };
        self.ask_leader(request).await.map(drop)
    }

    /// Moves a region's leadership. Returns the operator that does it.
    pub async fn transfer_leader(&self, region: RegionId, to: StoreId) -> Result<u64> {
        let (region_id, to_store) = (region.0, to.0);
        let request = messages::TransferRequest { region_id, to_store, header: None };
        Ok(self.ask_leader(request).await?.operator_id)
    }

    /// Moves a replica. Returns the operator that does it.
    pub async fn move_replica(&self, region: RegionId, from: StoreId, to: StoreId) -> Result<u64> {
        let request = messages::MoveRequest {
            region_id: region.0,
            from_store: from.0,
            to_store: to.0,
            header: None,
        };
        Ok(self.ask_leader(request).await?.operator_id)
    }

    /// Splits a region at keys; at none: where it halves. Returns the operator that does it.
    pub async fn split(&self, region: RegionId, keys: Vec<Bytes>) -> Result<u64> {
        let request = messages::SplitRequest { region_id: region.0, keys, header: None };
        Ok(self.ask_leader(request).await?.operator_id)
    }

    /// Merges a region into its neighbour. Returns the operator that does it.
    pub async fn merge(&self, source: RegionId, target: RegionId) -> Result<u64> {
        let (source_region, target_region) = (source.0, target.0);
        let request = messages::MergeRequest { source_region, target_region, header: None };
        Ok(self.ask_leader(request).await?.operator_id)
    }

    /// Empties a store that stays a member.
    pub async fn drain(&self, store: StoreId) -> Result<messages::StoreProgress> {
        self.set_state(store, messages::StoreAction::Drain).await
    }

    /// Empties a store and removes it from the cluster for good.
    pub async fn remove(&self, store: StoreId) -> Result<messages::StoreProgress> {
        self.set_state(store, messages::StoreAction::Remove).await
    }

    /// Takes a drain or a removal back.
    pub async fn cancel(&self, store: StoreId) -> Result<messages::StoreProgress> {
        self.set_state(store, messages::StoreAction::Cancel).await
    }

    /// How far a drain or a removal is.
    pub async fn progress(&self, store: StoreId) -> Result<messages::StoreProgress> {
        let request = messages::GetStoreProgressRequest { store_id: store.0, ..Default::default() };
        self.ask_leader(request).await
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
        self.ask_leader(request).await
    }

    /// Settings of the node at `address`; `keys` of none: all.
    pub async fn config(
        &self,
        address: &str,
        keys: &[String],
    ) -> Result<Vec<messages::ConfigItem>> {
        let request = messages::GetConfigRequest { keys: keys.to_vec(), header: None };
        Ok(self.ask_node(address, request).await?.items)
    }

    /// Changes a setting of the node at `address`.
    pub async fn set_config(
        &self,
        address: &str,
        key: &str,
        value: &str,
    ) -> Result<Option<messages::ConfigItem>> {
        let (key, value) = (key.to_owned(), value.to_owned());
        let request = messages::SetConfigRequest { key, value, header: None };
        Ok(self.ask_node(address, request).await?.item)
    }

    /// `host:port` of a store's node.
    pub async fn store_address(&self, store: StoreId) -> Result<String> {
        match self.router.directory.store(store).await {
            Ok(Some(address)) => Ok(address),
            Ok(None) => Err(Error::Refused(format!("there is no store {store}"))),
            Err(why) => Err(Error::Unavailable(why)),
        }
    }

    /// Asks whoever leads the placement group, through whatever node answers.
    async fn ask_leader<C: ControlCall>(&self, mut call: C) -> Result<C::Response> {
        call.address(self.router.directory.cluster());
        let mut tries = Tries::new(self.options.timeout);
        loop {
            let mut why = String::new();
            let mut pause = Pause::Region;
            'nodes: for address in self.candidates() {
                let mut next = Some(address);
                // A named leader that names another: leadership is moving, a pause is due.
                for _ in 0..2 {
                    let Some(address) = next.take() else { break };
                    match self.send(&address, call.clone(), &tries).await {
                        Ok(response) => {
                            *self.leader.lock() = Some(address);
                            return Ok(response);
                        }
                        Err(Failed::For(error)) => return Err(error),
                        Err(Failed::Here { text, leader }) => {
                            why = text;
                            next = leader;
                        }
                        // The leader itself, or who asked it: no other node knows more.
                        Err(Failed::Now { text, again_in }) => {
                            (why, pause) = (text, Pause::Busy(again_in));
                            break 'nodes;
                        }
                    }
                }
            }
            *self.leader.lock() = None;
            tries.pause(pause, why).await?;
        }
    }

    /// Asks one node. Fails with `Unavailable` if it can't be reached at once.
    async fn ask_node<C: ControlCall>(&self, address: &str, mut call: C) -> Result<C::Response> {
        call.address(self.router.directory.cluster());
        let tries = Tries::new(self.options.timeout);
        match self.send(address, call, &tries).await {
            Ok(response) => Ok(response),
            Err(Failed::For(error)) => Err(error),
            Err(Failed::Here { text, .. } | Failed::Now { text, .. }) => {
                Err(Error::Unavailable(text))
            }
        }
    }

    async fn send<C: ControlCall>(
        &self,
        address: &str,
        call: C,
        tries: &Tries,
    ) -> Result<C::Response, Failed> {
        let connections = &self.router.connections;
        let lost = |text| Failed::Here { text, leader: None };
        let connection = connections.get(address).await.map_err(lost)?;
        let timeout = self.options.attempt_timeout.min(tries.left());
        let answer = tokio::time::timeout(timeout, call.send(&connection)).await;
        match answer {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => {
                if is_broken(&status) {
                    connections.forget(&connection);
                }
                Err(judge(address, &status))
            }
            Err(_) => {
                connections.forget(&connection);
                Err(lost(format!("{address}: no answer")))
            }
        }
    }

    /// The known leader first, then every known node.
    fn candidates(&self) -> Vec<String> {
        let leader = self.leader.lock().clone();
        let mut candidates: Vec<String> = leader.into_iter().collect();
        for address in self.router.directory.addresses() {
            if !candidates.contains(&address) {
                candidates.push(address);
            }
        }
        candidates
    }
}

/// Why a call was not answered.
enum Failed {
    /// Whoever is asked: the call itself can't be carried out.
    For(Error),
    /// By this node; another one may.
    Here { text: String, leader: Option<String> },
    /// By anyone now; after this time it may be.
    Now { text: String, again_in: Duration },
}

fn judge(address: &str, status: &Status) -> Failed {
    let text = status_text(status);
    if let Some(again_in) = retry_after(status) {
        return Failed::Now { text, again_in };
    }
    match status.code() {
        Code::FailedPrecondition
        | Code::NotFound
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::Unimplemented => Failed::For(Error::Refused(text)),
        _ if is_not_leader(status) => Failed::Here { text, leader: leader_of(status) },
        _ => Failed::Here { text: format!("{address}: {text}"), leader: leader_of(status) },
    }
}
