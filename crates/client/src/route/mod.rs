//! Routing of calls from a key to a peer, one attempt at a time. A failed attempt corrects the
//! cached regions and stores.

mod cache;

pub(crate) use cache::{RegionCache, Route};

use crate::Options;
use crate::backoff::{Pause, Tries};
use crate::call::{RawCall, Repetition};
use crate::connections::Connections;
use crate::delivery::{Departure, Failure};
use crate::pd_rpc_client::{Found, PdRpcClient, is_broken, status_text};
use crate::retry_decision::{
    RetryDecision, Step, decide_after_failure, decide_retry, final_error, text,
};
use bytes::Bytes;
use std::sync::Arc;
use stele_proto::kvrpcpb;
use stele_types::{Error, Result};

pub(crate) struct Router {
    pub connections: Arc<Connections>,
    pub pd_client: PdRpcClient,
    regions: RegionCache,
}

impl Router {
    pub(crate) fn new(connections: Arc<Connections>, pd_client: PdRpcClient) -> Self {
        Self { connections, pd_client, regions: RegionCache::default() }
    }

    pub(crate) async fn locate(&self, key: &Bytes, tries: &mut Tries) -> Result<Route> {
        loop {
            if let Some(route) = self.regions.find(key) {
                return Ok(route);
            }
            let found = self.pd_client.region(key.clone()).await;
            self.cache_region(found, tries).await?;
        }
    }

    /// Returns the region that holds the keys immediately below `end`; an empty `end` is unbounded.
    pub(crate) async fn locate_below(&self, end: &Bytes, tries: &mut Tries) -> Result<Route> {
        loop {
            if let Some(route) = self.regions.find_below(end) {
                return Ok(route);
            }
            let found = self.pd_client.region_below(end.clone()).await;
            self.cache_region(found, tries).await?;
        }
    }

    async fn cache_region(
        &self,
        found: Result<Option<Found>, String>,
        tries: &mut Tries,
    ) -> Result<()> {
        match found {
            Ok(Some(found)) => {
                tries.found_leader();
                match self.regions.install(found.region, found.leader) {
                    true => Ok(()),
                    false => tries.pause(Pause::Region, "PD returned a stale region").await,
                }
            }
            Ok(None) => tries.pause(Pause::Region, "no region holds the key yet").await,
            Err(reason) => tries.pause(Pause::Region, reason).await,
        }
    }

    /// Removes the region that holds a key from the cache.
    pub(crate) fn forget_key(&self, key: &[u8]) {
        if let Some(route) = self.regions.find(key) {
            self.regions.forget(&route);
        }
    }

    /// Sends a call once. Returns `None` if it must be sent again: the cache is corrected if needed,
    /// the pause is over, and the caller locates the keys again.
    pub(crate) async fn attempt<C: RawCall>(
        &self,
        route: &Route,
        call: &C,
        options: &Options,
        tries: &mut Tries,
    ) -> Result<Option<C::Response>> {
        if tries.is_lookup_due() {
            self.regions.forget(route);
        }
        let Some(address) = self.address(route, tries).await? else { return Ok(None) };
        let mut response = match self.call_once(&address, route, call, options, tries).await {
            Ok(response) => response,
            Err(failure) => {
                let reason = format!("{address}: {}", status_text(&failure.status));
                let decision = decide_after_failure(&failure, &reason);
                self.follow::<C>(route, decision, reason, options, tries).await?;
                return Ok(None);
            }
        };
        if let Some(error) = C::region_error(&mut response) {
            self.follow::<C>(route, decide_retry(&error), text(&error), options, tries).await?;
            return Ok(None);
        }
        let failure = C::failure(&mut response);
        match failure.is_empty() {
            true => Ok(Some(response)),
            // Nodes of earlier versions answer by a text.
            false => Err(tries.final_error(final_error(failure))),
        }
    }

    async fn call_once<C: RawCall>(
        &self,
        address: &str,
        route: &Route,
        call: &C,
        options: &Options,
        tries: &Tries,
    ) -> Result<C::Response, Failure> {
        let connection = self.connections.get(address).await;
        let connection = connection.map_err(Failure::without_connection)?;
        let mut call = call.clone();
        let timeout = options.attempt_timeout.min(tries.left());
        call.set_context(self.context(route, timeout.as_millis() as u64));
        let departure = Departure::default();
        let failure = match tokio::time::timeout(timeout, call.send(&connection, &departure)).await
        {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(status)) => Failure::of_call(status, &departure),
            Err(_) => Failure::of_timeout(&departure),
        };
        if is_broken(&failure.status) {
            self.connections.forget(&connection);
        }
        Err(failure)
    }

    async fn address(&self, route: &Route, tries: &mut Tries) -> Result<Option<String>> {
        match self.pd_client.store(route.peer.store).await {
            Ok(Some(address)) => return Ok(Some(address)),
            Ok(None) => {
                self.regions.forget(route);
                let reason = format!("store {} is no longer a member", route.peer.store);
                tries.pause(Pause::Region, reason).await?;
            }
            Err(reason) => tries.pause(Pause::Region, reason).await?,
        }
        Ok(None)
    }

    pub(crate) fn context(&self, route: &Route, timeout_ms: u64) -> kvrpcpb::Context {
        kvrpcpb::Context {
            region_id: route.region.id.0,
            region_epoch: Some(route.region.epoch.into()),
            peer: Some((&route.peer).into()),
            max_execution_duration_ms: timeout_ms.max(1),
            cluster_id: self.pd_client.cluster(),
            request_source: stele_proto::REQUEST_SOURCE.to_owned(),
            ..kvrpcpb::Context::default()
        }
    }

    /// Corrects the cache as decided, and waits before the next try. Fails if there is none.
    async fn follow<C: RawCall>(
        &self,
        route: &Route,
        decision: RetryDecision,
        reason: String,
        options: &Options,
        tries: &mut Tries,
    ) -> Result<()> {
        if decision.is_ambiguous {
            note_ambiguity::<C>(&reason, options, tries)?;
        }
        let mut pause = decision.pause;
        match decision.step {
            Step::Stay => {}
            Step::Follow(peer) => {
                if !self.regions.follow(route, &peer) {
                    self.regions.forget(route);
                }
            }
            Step::NextPeer => self.regions.next_peer(route),
            Step::NextNode => {
                // The store may have moved, and another peer may be the leader.
                self.pd_client.forget_store(route.peer.store);
                self.regions.next_peer(route);
            }
            Step::Install(regions) => {
                self.regions.forget(route);
                let leads =
                    |region: &stele_types::Region| region.peer_on(route.peer.store).copied();
                for region in regions {
                    let leader = leads(&region);
                    let is_older = region.id == route.region.id
                        && region.epoch.version < route.region.epoch.version;
                    // The store has an older version than the cache and needs time to catch up.
                    if is_older || !self.regions.install(region, leader) {
                        pause = Pause::Region;
                    }
                }
            }
            Step::Reload => self.regions.forget(route),
            Step::ReloadStore => {
                self.pd_client.forget_store(route.peer.store);
                self.regions.forget(route);
            }
            Step::StayOrFail(error) => {
                let waited = tries.pause(pause, reason).await;
                return waited.map_err(|_| tries.final_error(error));
            }
            Step::TooLong(error) => {
                tries.note_too_long();
                return Err(tries.final_error(error));
            }
            Step::Fail(error) => return Err(tries.final_error(error)),
        }
        tries.pause(pause, reason).await
    }
}

/// Records that a write may have taken effect. Fails with `Undetermined` if it must not be retried.
fn note_ambiguity<C: RawCall>(reason: &str, options: &Options, tries: &mut Tries) -> Result<()> {
    let ends = match C::REPETITION {
        Repetition::Read => return Ok(()),
        Repetition::Write => !options.repeat_undetermined,
        // bug client.repeat_swap: `true` is `false`
        Repetition::Once => true,
        // The leader finds the record of an attempt that took effect.
        Repetition::Recorded => false,
    };
    tries.note_ambiguous();
    if ends { Err(Error::Undetermined(reason.to_owned())) } else { Ok(()) }
}
