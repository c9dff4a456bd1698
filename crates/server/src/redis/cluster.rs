//! Redis commands on the leaders of regions: the node is a client of its cluster. Routes and retries are those of
//! the Rust client.

use super::{Execute, Executing, RedisBatch, RedisFailure, ScanCursors, Watched, transactions};
use crate::cluster_client::ClusterClient;
use crate::node::random;
use crate::stores::Stores;
use crate::tikv::SEVERAL_REGIONS;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_client::Client;
use stele_client::redis_messages::{Command, RunRequest, RunResponse, WatchedName};
use stele_redis::table::READ_ONLY;
use stele_redis::{Protocol, Reply, Request};
use stele_types::{Error, RegionId, RegionKind, redis_key};

/// Times that commands meet intents of others before they are refused.
pub(super) const MEETINGS_MAX: usize = 8;

/// Executes commands in the cluster of this node.
pub(crate) struct ClusterExecutor {
    client: Arc<ClusterClient>,
    pub(super) stores: Arc<Stores>,
    pub(super) cursors: Arc<ScanCursors>,
    /// Whether FLUSHDB and FLUSHALL are executed.
    pub(super) may_flush: bool,
}

impl ClusterExecutor {
    /// Creates the executor of a node. It connects at the first command.
    pub(crate) fn new(
        client: Arc<ClusterClient>,
        stores: Arc<Stores>,
        cursors: Arc<ScanCursors>,
        may_flush: bool,
    ) -> Self {
        Self { client, stores, cursors, may_flush }
    }

    pub(super) async fn client(&self) -> Result<&Client, RedisFailure> {
        self.client.get().await.map_err(failure)
    }

    async fn regions_of(&self, header_keys: &[Bytes]) -> Result<Vec<RegionId>, RedisFailure> {
        let client = self.client().await?;
        let mut regions = Vec::with_capacity(header_keys.len());
        for key in header_keys {
            regions.push(client.locate(user_key(key)).await.map_err(failure)?.0);
        }
        Ok(regions)
    }

    async fn execute(&self, batch: &RedisBatch) -> Result<Bytes, RedisFailure> {
        if let [request] = &batch.requests[..]
            && !request.spec().is_program()
        {
            let reply = self.execute_alone(request, &batch.memory).await;
            return Ok(reply?.encoded(batch.protocol));
        }
        let watched = batch.transaction.iter().flatten();
        let of_watched = watched.map(|it| redis_key::header_key(it.database, &it.name));
        let keys = batch.requests.iter().flat_map(Request::header_keys);
        let Some(key) = keys.chain(of_watched).next() else {
            return Ok(Reply::Array(Vec::new()).encoded(batch.protocol));
        };
        let is_read = batch.transaction.is_none()
            && batch.requests.iter().all(|request| request.spec().has(READ_ONLY));
        let client = self.client().await?;
        if batch.region.is_none() {
            return transactions::execute(client, batch).await;
        }
        let key = user_key(&key);
        Ok(self.answered(&key, message(batch), is_read).await?.replies)
    }

    /// Sends commands to the region that has a key, and resolves the intents that they meet. Nothing was done
    /// when they met one, so that they are sent again.
    async fn answered(
        &self,
        key: &Bytes,
        request: RunRequest,
        is_read: bool,
    ) -> Result<RunResponse, RedisFailure> {
        let client = self.client().await?;
        for _ in 0..MEETINGS_MAX {
            let answer = match is_read {
                true => client.read_redis(key, request.clone()).await,
                false => client.run_redis(key, request.clone()).await,
            };
            let answer = answer.map_err(failure)?;
            if answer.met.is_empty() {
                return Ok(answer);
            }
            transactions::resolve(client, &answer.met).await?;
        }
        Err(RedisFailure::Unavailable("other transactions change the names".to_owned()))
    }

    async fn changes_of(
        &self,
        database: u8,
        names: &[Bytes],
    ) -> Result<Vec<Option<u64>>, RedisFailure> {
        let keys: Vec<Bytes> =
            names.iter().map(|name| redis_key::header_key(database, name)).collect();
        let mut by_region: BTreeMap<RegionId, Vec<usize>> = BTreeMap::new();
        for (place, region) in self.regions_of(&keys).await?.into_iter().enumerate() {
            by_region.entry(region).or_default().push(place);
        }
        let mut changes = vec![None; names.len()];
        for places in by_region.into_values() {
            let Some(key) = places.first().and_then(|place| keys.get(*place)) else { continue };
            let watched = places.iter().filter_map(|place| names.get(*place));
            let watched = watched.map(|name| WatchedName {
                database: u32::from(database),
                name: name.clone(),
                change: None,
            });
            let protocol = protocol_number(Protocol::Resp2);
            let request =
                RunRequest { watched: watched.collect(), protocol, ..RunRequest::default() };
            let RunResponse { found, .. } = self.answered(&user_key(key), request, true).await?;
            for (place, found) in places.into_iter().zip(found) {
                if let Some(change) = changes.get_mut(place) {
                    *change = found.change;
                }
            }
        }
        Ok(changes)
    }
}

impl Execute for ClusterExecutor {
    fn regions<'a>(&'a self, header_keys: &'a [Bytes]) -> Executing<'a, Vec<RegionId>> {
        Box::pin(self.regions_of(header_keys))
    }

    fn run<'a>(&'a self, batch: &'a RedisBatch) -> Executing<'a, Bytes> {
        Box::pin(self.execute(batch))
    }

    fn changes<'a>(&'a self, database: u8, names: &'a [Bytes]) -> Executing<'a, Vec<Option<u64>>> {
        Box::pin(self.changes_of(database, names))
    }

    fn followers_of_a_write(&self) -> u64 {
        let all = self.stores.all();
        let mut regions = all.iter().flat_map(|store| store.readers().all());
        let replicas = regions.find(|region| region.kind == RegionKind::Data);
        replicas.map_or(0, |region| region.peers.len() as u64 / 2)
    }
}

pub(super) fn user_key(engine_key: &Bytes) -> Bytes {
    engine_key.slice(1.min(engine_key.len())..)
}

fn protocol_number(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Resp2 => 2,
        Protocol::Resp3 => 3,
    }
}

fn message(batch: &RedisBatch) -> RunRequest {
    let command = |request: &Request| Command {
        database: u32::from(request.database()),
        arguments: request.arguments().to_vec(),
    };
    let watched = |it: &Watched| WatchedName {
        database: u32::from(it.database),
        name: it.name.clone(),
        change: it.change,
    };
    RunRequest {
        context: None,
        protocol: protocol_number(batch.protocol),
        commands: batch.requests.iter().map(command).collect(),
        seed: random(),
        is_transaction: batch.transaction.is_some(),
        watched: batch.transaction.iter().flatten().map(watched).collect(),
    }
}

/// Converts the failure of a call. The client retries what may succeed at once.
pub(super) fn failure(error: Error) -> RedisFailure {
    let text = error.to_string();
    match error {
        Error::Undetermined(reason) => RedisFailure::Undetermined(reason),
        Error::Busy(_) | Error::Unavailable(_) | Error::NoSpace(_) => {
            RedisFailure::Unavailable(text)
        }
        _ if text.contains(SEVERAL_REGIONS) => RedisFailure::SeveralRegions,
        _ => RedisFailure::Invalid(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_whether_the_commands_may_have_taken_effect() {
        let is = |error: Error| failure(error);
        assert!(matches!(is(Error::Undetermined("x".into())), RedisFailure::Undetermined(_)));
        assert!(matches!(is(Error::Busy("x".into())), RedisFailure::Unavailable(_)));
        assert!(matches!(is(Error::Unavailable("x".into())), RedisFailure::Unavailable(_)));
        assert_eq!(is(Error::invalid(SEVERAL_REGIONS)), RedisFailure::SeveralRegions);
        assert!(matches!(is(Error::invalid("a text")), RedisFailure::Invalid(_)));
    }
}
