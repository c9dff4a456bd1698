//! Redis commands, from the node that a client of Redis is connected to.

use crate::Client;
use crate::call::{Call, ReadCommands, RunCommands, TransactionStep};
use crate::delivery::Departure;
use crate::pd_rpc_client::{is_broken, status_text};
use bytes::Bytes;
use stele_proto::kvrpcpb;
use stele_proto::stele::redis::v1 as messages;
use stele_proto::stele::redis::v1::{RunRequest, RunResponse, StepRequest, StepResponse};
use stele_types::{Error, KeyRange, Result, StoreId};

impl Client {
    /// Executes commands as one change on the leader of the region that has a user key of column family
    /// `redis`. `request` has no context. Fails with `Undetermined` if they may have taken effect.
    pub async fn run_redis(&self, key: &Bytes, request: RunRequest) -> Result<RunResponse> {
        self.send(key, &RunCommands(request)).await
    }

    /// Executes commands that change nothing.
    pub async fn read_redis(&self, key: &Bytes, request: RunRequest) -> Result<RunResponse> {
        self.send(key, &ReadCommands(request)).await
    }

    /// Returns names from the region that has the start key. `next_key` of the answer is the start of the
    /// next call. `request` has no context.
    pub async fn list_redis(
        &self,
        request: messages::ListRequest,
    ) -> Result<messages::ListResponse> {
        let start = request.start_key.clone();
        self.send(&start, &request).await
    }

    /// Returns members of a hash or set. `key` is the user key of its header; `request` has no context.
    pub async fn redis_members(
        &self,
        key: &Bytes,
        request: messages::MembersRequest,
    ) -> Result<messages::MembersResponse> {
        self.send(key, &request).await
    }

    /// Deletes all Redis keys of a range of user keys, region after region, within the time limit of one call.
    /// Fails with `Partial` if those of some regions are deleted and others are not, or may not be.
    pub async fn clear_redis(&self, range: KeyRange) -> Result<()> {
        self.each_region_once(range, |within: KeyRange| messages::ClearRequest {
            start_key: within.start,
            end_key: within.end,
            context: None,
        })
        .await
    }

    /// Returns the ranges of the regions that overlap a range of user keys, ascending, and cut to it; at most
    /// `ranges_max` of them.
    pub async fn regions_of(&self, range: &KeyRange, ranges_max: usize) -> Result<Vec<KeyRange>> {
        let (mut rest, mut found) = (range.clone(), Vec::new());
        while !rest.is_empty() && found.len() < ranges_max {
            let route = self.router.locate(&rest.start, &mut self.tries()).await?;
            let region = &route.region.range;
            found.push(rest.within(region));
            if region.end.is_empty() {
                break;
            }
            rest.start = region.end.clone();
        }
        Ok(found)
    }

    /// Asks the node with a store for the place of a cursor. Fails with `Refused` if there is no such store.
    pub async fn redis_cursor(
        &self,
        store: StoreId,
        cursor: u64,
    ) -> Result<messages::CursorResponse> {
        let unavailable =
            |reason| Error::Unavailable(format!("the node of store {store}: {reason}"));
        let address = self.router.pd_client.store(store).await.map_err(unavailable)?;
        let gone = || Error::Refused(format!("store {store} is not a member of the cluster"));
        let answered = self.cursor_at(&address.ok_or_else(gone)?, cursor).await;
        answered.map_err(|reason| {
            // The store may have moved to another address.
            self.router.pd_client.forget_store(store);
            unavailable(reason)
        })
    }

    async fn cursor_at(
        &self,
        address: &str,
        cursor: u64,
    ) -> std::result::Result<messages::CursorResponse, String> {
        let connection = self.router.connections.get(address).await?;
        let cluster_id = self.router.pd_client.cluster();
        let context = kvrpcpb::Context { cluster_id, ..kvrpcpb::Context::default() };
        let request = messages::CursorRequest { context: Some(context), cursor };
        let departure = Departure::default();
        let sent = request.send(&connection, &departure);
        match tokio::time::timeout(self.options.attempt_timeout, sent).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => {
                if is_broken(&status) {
                    self.router.connections.forget(&connection);
                }
                Err(status_text(&status))
            }
            Err(_) => Err(format!("{address} does not answer in time")),
        }
    }

    /// Executes a step of a transaction over several regions on the leader of the region that has a user key of
    /// column family `redis`. `request` has no context. Fails with `Undetermined` if it may have taken
    /// effect, or may yet.
    pub async fn step_redis(&self, key: &Bytes, request: StepRequest) -> Result<StepResponse> {
        self.send(key, &TransactionStep(request)).await
    }
}
