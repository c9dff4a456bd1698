//! Redis commands on the leaders of regions: the node is a client of its cluster. Routes and retries are those of
//! the Rust client.

use super::{Execute, Executing, RedisBatch, RedisFailure, Watched};
use crate::access::Access;
use crate::node::random;
use crate::stores::Stores;
use crate::tikv::SEVERAL_REGIONS;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stele_client::redis_messages::{Command, RunRequest, RunResponse, WatchedName};
use stele_client::{Client, Dial, Dialled, Options, over};
use stele_redis::table::READ_ONLY;
use stele_redis::{Protocol, Request};
use stele_types::{Error, RegionId, RegionKind, redis_key};
use tokio::sync::OnceCell;
use tonic::transport::Endpoint;

/// Time in which a command is tried.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(3);

/// Connections of a node to nodes, as a node.
struct NodeDial(Access);

impl Dial for NodeDial {
    fn dial<'a>(&'a self, address: &'a str) -> Dialled<'a> {
        Box::pin(async move {
            let invalid = |error| format!("`{address}` is not an address (host:port): {error}");
            let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(invalid)?;
            let endpoint = endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT);
            let connected = self.0.connect(&endpoint).await;
            Ok(over(connected.map_err(|error| format!("{address}: {error}"))?))
        })
    }
}

/// Executes commands in the cluster of this node.
pub(crate) struct ClusterExecutor {
    access: Access,
    /// Address of this node for clients.
    address: String,
    stores: Arc<Stores>,
    client: OnceCell<Client>,
}

impl ClusterExecutor {
    /// Creates the executor of a node with this address for clients. It connects at the first command.
    pub(crate) fn new(access: Access, address: String, stores: Arc<Stores>) -> Self {
        Self { access, address, stores, client: OnceCell::new() }
    }

    async fn client(&self) -> Result<&Client, RedisFailure> {
        let connect = || {
            let dial = Box::new(NodeDial(self.access.clone()));
            let options = Options { timeout: COMMAND_TIMEOUT, ..Options::default() };
            Client::connect_through(dial, std::slice::from_ref(&self.address), options)
        };
        self.client.get_or_try_init(connect).await.map_err(failure)
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
        let watched = batch.transaction.iter().flatten();
        let of_watched = watched.map(|it| redis_key::header_key(it.database, &it.name));
        let keys = batch.requests.iter().flat_map(Request::header_keys);
        let Some(key) = keys.chain(of_watched).next() else {
            return Err(RedisFailure::Invalid(not_built(&batch.requests)));
        };
        let is_read = batch.transaction.is_none()
            && batch.requests.iter().all(|request| request.spec().has(READ_ONLY));
        let (client, request) = (self.client().await?, message(batch));
        let key = user_key(&key);
        let answer = match is_read {
            true => client.read_redis(&key, request).await,
            false => client.run_redis(&key, request).await,
        };
        Ok(answer.map_err(failure)?.replies)
    }

    async fn changes_of(
        &self,
        database: u8,
        names: &[Bytes],
    ) -> Result<Vec<Option<u64>>, RedisFailure> {
        let client = self.client().await?;
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
            let RunResponse { found, .. } =
                client.read_redis(&user_key(key), request).await.map_err(failure)?;
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

fn user_key(engine_key: &Bytes) -> Bytes {
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

fn not_built(requests: &[Request]) -> String {
    let name = requests.first().map_or("", |request| request.spec().name);
    format!("'{name}' reads a whole key space, which is not built yet: read names that you know")
}

/// Converts the failure of a call. The client retries what may succeed at once.
fn failure(error: Error) -> RedisFailure {
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
