//! From a key to the peer that serves it: one attempt at a time, and what its failure changes in
//! what is known of regions and stores.

mod cache;

pub use cache::{RegionCache, Route};

use crate::Options;
use crate::backoff::{Pause, Tries};
use crate::call::{Effect, RawCall};
use crate::connections::Connections;
use crate::convert;
use crate::pd_rpc_client::{Found, PdRpcClient, is_broken, status_text};
use crate::retry_decision::{RetryDecision, Step, react, text};
use bytes::Bytes;
use std::sync::Arc;
use stele_proto::kvrpcpb;
use stele_types::{Error, Result};
use tonic::{Code, Status};

/// What all handles of a client share.
pub struct Router {
    /// Connections to nodes.
    pub connections: Arc<Connections>,
    /// Who knows where things are.
    pub directory: PdRpcClient,
    regions: RegionCache,
}

impl Router {
    /// Knows nothing yet but the directory's nodes.
    pub fn new(connections: Arc<Connections>, directory: PdRpcClient) -> Self {
        Self { connections, directory, regions: RegionCache::default() }
    }

    /// The region that holds `key`.
    pub async fn locate(&self, key: &Bytes, tries: &mut Tries) -> Result<Route> {
        loop {
            if let Some(route) = self.regions.find(key) {
                return Ok(route);
            }
            let found = self.directory.region(key.clone()).await;
            self.learn(found, tries).await?;
        }
    }

    /// The region that holds the keys right below `end`; an empty `end` is no bound.
    pub async fn locate_below(&self, end: &Bytes, tries: &mut Tries) -> Result<Route> {
        loop {
            if let Some(route) = self.regions.find_below(end) {
                return Ok(route);
            }
            let found = self.directory.region_below(end.clone()).await;
            self.learn(found, tries).await?;
        }
    }

    async fn learn(&self, found: Result<Option<Found>, String>, tries: &mut Tries) -> Result<()> {
        match found {
            Ok(Some(found)) => match self.regions.install(found.region, found.leader) {
                true => Ok(()),
                false => tries.pause(Pause::Region, "the directory lags behind").await,
            },
            Ok(None) => tries.pause(Pause::Region, "no region holds the key yet").await,
            Err(why) => tries.pause(Pause::Region, why).await,
        }
    }

    /// Sends a call once. `None`: it was not carried out as far as the caller has to care; what is
    /// known of regions has changed, a pause was made, and the keys are to be located again.
    pub async fn attempt<C: RawCall>(
        &self,
        route: &Route,
        call: &C,
        options: &Options,
        tries: &mut Tries,
    ) -> Result<Option<C::Response>> {
        if tries.is_lost() {
            self.regions.forget(route);
        }
        let Some(address) = self.address(route, tries).await? else { return Ok(None) };
        let connection = match self.connections.get(&address).await {
            Ok(connection) => connection,
            Err(why) => {
                self.unreachable(route);
                tries.pause(Pause::Region, why).await?;
                return Ok(None);
            }
        };
        let mut call = call.clone();
        let timeout = options.attempt_timeout.min(tries.left());
        call.address(self.context(route, timeout.as_millis() as u64));
        let answer = tokio::time::timeout(timeout, call.send(&connection)).await;
        let answer = answer.unwrap_or_else(|_| Err(Status::cancelled("no answer")));
        let mut response = match answer {
            Ok(response) => response,
            Err(status) => {
                if is_broken(&status) {
                    self.connections.forget(&connection);
                }
                let why = format!("{address}: {}", status_text(&status));
                self.failed::<C>(route, &status, why, options, tries).await?;
                return Ok(None);
            }
        };
        if let Some(error) = C::region_error(&mut response) {
            self.refused::<C>(route, react(&error), text(&error), options, tries).await?;
            return Ok(None);
        }
        let failure = C::failure(&mut response);
        match failure.is_empty() {
            true => Ok(Some(response)),
            // The server's own words for a compare-and-swap that was proposed and lost.
            false if failure.starts_with("undetermined") => Err(Error::Undetermined(failure)),
            false => Err(tries.finally(Error::Refused(failure))),
        }
    }

    async fn address(&self, route: &Route, tries: &mut Tries) -> Result<Option<String>> {
        match self.directory.store(route.peer.store).await {
            Ok(Some(address)) => return Ok(Some(address)),
            Ok(None) => {
                self.regions.forget(route);
                let why = format!("store {} is no longer a member", route.peer.store);
                tries.pause(Pause::Region, why).await?;
            }
            Err(why) => tries.pause(Pause::Region, why).await?,
        }
        Ok(None)
    }

    fn context(&self, route: &Route, timeout_ms: u64) -> kvrpcpb::Context {
        kvrpcpb::Context {
            region_id: route.region.id.0,
            region_epoch: Some(convert::epoch_out(route.region.epoch)),
            peer: Some(convert::peer_out(&route.peer)),
            max_execution_duration_ms: timeout_ms.max(1),
            cluster_id: self.directory.cluster(),
            ..kvrpcpb::Context::default()
        }
    }

    /// A store that can't be reached may have moved, and its region may be led by another.
    fn unreachable(&self, route: &Route) {
        self.directory.forget_store(route.peer.store);
        self.regions.next_peer(route);
    }

    async fn failed<C: RawCall>(
        &self,
        route: &Route,
        status: &Status,
        why: String,
        options: &Options,
        tries: &mut Tries,
    ) -> Result<()> {
        match status.code() {
            Code::InvalidArgument
            | Code::FailedPrecondition
            | Code::Unimplemented
            | Code::PermissionDenied
            | Code::Unauthenticated => Err(tries.finally(Error::Refused(why))),
            // One of the messages is longer than a side takes: sent again it still is.
            Code::OutOfRange => Err(tries.finally(Error::Invalid(why))),
            Code::ResourceExhausted => {
                tries.pause(Pause::Busy(std::time::Duration::ZERO), why).await
            }
            _ => {
                self.unreachable(route);
                note_ambiguity::<C>(&why, options, tries)?;
                tries.pause(Pause::Region, why).await
            }
        }
    }

    async fn refused<C: RawCall>(
        &self,
        route: &Route,
        reaction: RetryDecision,
        why: String,
        options: &Options,
        tries: &mut Tries,
    ) -> Result<()> {
        if reaction.is_ambiguous {
            note_ambiguity::<C>(&why, options, tries)?;
        }
        let mut pause = reaction.pause;
        match reaction.step {
            Step::Stay => {}
            Step::Follow(peer) => {
                if !self.regions.follow(route, &peer) {
                    self.regions.forget(route);
                }
            }
            Step::NextPeer => self.regions.next_peer(route),
            Step::Install(regions) => {
                self.regions.forget(route);
                let leads =
                    |region: &stele_types::Region| region.peer_on(route.peer.store).copied();
                for region in regions {
                    let leader = leads(&region);
                    let is_older = region.id == route.region.id
                        && region.epoch.version < route.region.epoch.version;
                    // The store is behind: it needs time.
                    if is_older || !self.regions.install(region, leader) {
                        pause = Pause::Region;
                    }
                }
            }
            Step::Reload => self.regions.forget(route),
            Step::ReloadStore => {
                self.directory.forget_store(route.peer.store);
                self.regions.forget(route);
            }
            Step::Fail(error) => return Err(tries.finally(error)),
        }
        tries.pause(pause, why).await
    }
}

/// A write that may have taken effect ends here unless it may be repeated.
fn note_ambiguity<C: RawCall>(why: &str, options: &Options, tries: &mut Tries) -> Result<()> {
    let ends = match C::EFFECT {
        Effect::Read => return Ok(()),
        Effect::Write => !options.retry_ambiguous,
        Effect::Once => !stele_types::mutant::active("client.repeat_swap"),
    };
    tries.may_have_acted();
    if ends { Err(Error::Undetermined(why.to_owned())) } else { Ok(()) }
}
