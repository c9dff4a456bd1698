//! What the leaders of a range confirm: marks, and where a watch begins.

use super::cursors::Cursors;
use super::mark::{First, Mark, MarkPart};
use super::token::Families;
use crate::Client;
use crate::backoff::Pause;
use crate::call::Call;
use crate::delivery::Departure;
use crate::delivery::Failure;
use crate::pd_rpc_client::status_text;
use crate::retry_decision::{Step, decide_after_failure, decide_retry, text};
use crate::route::Route;
use bytes::Bytes;
use stele_proto::stele::kv::v1::{FollowRequest, FollowResponse, ReadIndexRequest};
use stele_types::{Error, KeyRange, Region, RegionId, Result};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Calls at once.
const CALLS_AT_ONCE: usize = 32;

impl Client {
    /// Returns the region that has a key, as its leader confirms.
    pub(super) async fn owner(&self, key: &Bytes) -> Result<RegionId> {
        let mark = self.mark(KeyRange::of_key(key.clone())).await?;
        let part = mark.parts.first();
        part.map(|part| part.region).ok_or_else(changing)
    }

    /// Asks the leaders of all keys of a range how far their logs are.
    pub(super) async fn mark(&self, range: KeyRange) -> Result<Mark> {
        let mut calls = JoinSet::new();
        let mut parts = Vec::new();
        for route in self.routes(&range).await? {
            let (client, within) = (self.clone(), range.within(&route.region.range));
            calls.spawn(async move { client.mark_parts(within).await });
            if calls.len() >= CALLS_AT_ONCE {
                parts.extend(joined(&mut calls).await?.unwrap_or_default());
            }
        }
        while let Some(made) = joined(&mut calls).await? {
            parts.extend(made);
        }
        Mark::new(&range, parts).ok_or_else(changing)
    }

    async fn mark_parts(&self, mut rest: KeyRange) -> Result<Vec<MarkPart>> {
        let (mut tries, mut parts) = (self.tries(), Vec::new());
        loop {
            let route = self.router.locate(&rest.start, &mut tries).await?;
            let call = ReadIndexRequest::default();
            let answer = self.router.attempt(&route, &call, &self.options, &mut tries).await?;
            let Some(answer) = answer else { continue };
            let Region { id, epoch, range, .. } = &*route.region;
            let within = rest.within(range);
            rest.start = within.end.clone();
            let is_last = within.end == rest.end;
            let (region, version, index) = (*id, epoch.version, answer.index);
            parts.push(MarkPart { range: within, region, version, index });
            if is_last {
                return Ok(parts);
            }
        }
    }

    /// Begins a watch where the logs of its regions are now.
    pub(super) async fn begin(&self, range: &KeyRange, families: Families) -> Result<Cursors> {
        let mut tries = self.tries();
        loop {
            let reason = match self.firsts(range).await? {
                Ok(firsts) => {
                    let mark = self.mark(range.clone()).await?;
                    let begun = Cursors::begin(range, families, firsts, &mark);
                    if let Some(cursors) = begun {
                        return Ok(cursors);
                    }
                    "the regions of the keys are changing".to_owned()
                }
                Err(reason) => reason,
            };
            for route in self.routes(range).await? {
                self.router.forget_key(&route.region.range.start);
            }
            tries.pause(Pause::Region, reason).await?;
        }
    }

    async fn routes(&self, range: &KeyRange) -> Result<Vec<Route>> {
        let (mut tries, mut routes) = (self.tries(), Vec::new());
        let mut next = range.start.clone();
        loop {
            let route = self.router.locate(&next, &mut tries).await?;
            next = route.region.range.end.clone();
            routes.push(route);
            if next.is_empty() || !range.is_below_end(&next) {
                return Ok(routes);
            }
        }
    }

    /// Asks one replica of each region for its next entry. The inner error is a reason to begin again.
    async fn firsts(&self, range: &KeyRange) -> Result<Result<Vec<First>, String>> {
        let mut calls = JoinSet::new();
        let mut answers = Vec::new();
        for route in self.routes(range).await? {
            let (client, range) = (self.clone(), range.clone());
            calls.spawn(async move { client.first(&route, range).await });
            if calls.len() >= CALLS_AT_ONCE {
                answers.extend(joined(&mut calls).await?);
            }
        }
        while let Some(answer) = joined(&mut calls).await? {
            answers.push(answer);
        }
        Ok(answers.into_iter().collect())
    }

    async fn first(&self, route: &Route, range: KeyRange) -> Result<Result<First, String>> {
        let Ok(Some(address)) = self.router.pd_client.store(route.peer.store).await else {
            return Ok(Err(format!("store {} has no known address", route.peer.store)));
        };
        let connection = match self.router.connections.get(&address).await {
            Ok(connection) => connection,
            Err(reason) => return Ok(Err(reason)),
        };
        let within = self.options.attempt_timeout;
        let request = FollowRequest {
            context: Some(self.router.context(route, within.as_millis() as u64)),
            next_index: 0,
            start_key: range.start,
            end_key: range.end,
            old_values: false,
        };
        let departure = Departure::default();
        let answer =
            timeout(within, async { request.send(&connection, &departure).await?.message().await });
        let failure = match answer.await {
            Ok(Ok(Some(response))) => return first_of(response),
            Ok(Ok(None)) => return Ok(Err(format!("{address}: the stream ended"))),
            Ok(Err(status)) => Failure::of_call(status, &departure),
            Err(_) => Failure::of_timeout(&departure),
        };
        let reason = format!("{address}: {}", status_text(&failure.status));
        match decide_after_failure(&failure, &reason).step {
            Step::Fail(error) => Err(error),
            _ => Ok(Err(reason)),
        }
    }
}

/// Returns the next entry that a store stated. The region is that before the first entry of the response.
fn first_of(response: FollowResponse) -> Result<Result<First, String>> {
    if let Some(error) = &response.region_error {
        return match decide_retry(error).step {
            Step::Fail(error) => Err(error),
            _ => Ok(Err(text(error))),
        };
    }
    let Some(region) = response.region.as_ref().filter(|_| !response.too_old) else {
        return Ok(Err(response.error));
    };
    let first = response.entries.first().map(|entry| entry.index);
    Ok(Ok(First { region: region.into(), next_index: first.unwrap_or(response.next_index) }))
}

async fn joined<T: 'static>(calls: &mut JoinSet<Result<T>>) -> Result<Option<T>> {
    match calls.join_next().await {
        None => Ok(None),
        Some(Ok(answer)) => answer.map(Some),
        Some(Err(_)) => Err(Error::Unavailable("the client is stopping".to_owned())),
    }
}

fn changing() -> Error {
    Error::Unavailable("the regions of the keys are changing".to_owned())
}
