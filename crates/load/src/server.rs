//! Servers under load.

use crate::args::Wire;
use crate::driver::Run;
use crate::redis::Redis;
use bytes::Bytes;
use serde_json::Value;
use std::fmt::Display;
use std::future::Future;
use stele_client::{Client, Options, ScanOptions};
use stele_types::{Error, KeyRange, Result, address};

/// A server under load.
pub trait Target: Send + Sync + 'static {
    /// What its processes have used up to a moment.
    type Used;

    /// Returns the length of a value; `None` if the key does not exist.
    fn get(&self, key: Bytes) -> impl Future<Output = Result<Option<u64>>> + Send;
    /// Writes a value.
    fn put(&self, key: Bytes, value: Bytes) -> impl Future<Output = Result<()>> + Send;
    /// Deletes a key.
    fn delete(&self, key: Bytes) -> impl Future<Output = Result<()>> + Send;
    /// Returns the bytes of at most `limit` pairs from `key` on.
    fn scan(&self, key: Bytes, limit: usize) -> impl Future<Output = Result<u64>> + Send;
    /// Reads what its processes have used so far.
    fn used(&self) -> impl Future<Output = Result<Self::Used>>;
    /// Returns what its processes have used since `before`, for the operations of `run`.
    fn used_since(&self, before: Self::Used, run: &Run) -> impl Future<Output = Result<Value>>;
}

/// Client of a server that Stele's own benchmark knows.
pub enum Server {
    /// Stele or TiKV, which share a protocol.
    Tikv(Box<Client>),
    /// Redis with replicas.
    Redis(Redis),
}

/// Splits `scheme://address,address…`.
pub fn parse(url: &str) -> Result<(&str, Vec<String>)> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| not_a_target(url))?;
    let addresses = rest.split(',').map(|text| address::to_connect(text).map(str::to_owned));
    Ok((scheme, addresses.collect::<Result<_>>()?))
}

fn not_a_target(url: &str) -> Error {
    let kinds = "stele://, tikv:// or redis:// and HOST:PORT,…";
    Error::invalid(format!("`{url}` is not a target: write {kinds}"))
}

impl Server {
    /// Connects to `scheme://address,address…`.
    pub async fn connect(url: &str, args: &Wire) -> Result<Self> {
        let (scheme, addresses) = parse(url)?;
        match scheme {
            "stele" | "tikv" => {
                let connections_per_node = usize::try_from(args.connections).unwrap_or(1);
                let options = Options {
                    connections_per_node,
                    repeat_undetermined: true,
                    ..Options::default()
                };
                Ok(Self::Tikv(Box::new(Client::connect_with(&addresses, options).await?)))
            }
            "redis" => {
                let address = addresses.into_iter().next().ok_or_else(|| not_a_target(url))?;
                Ok(Self::Redis(Redis::new(address, args.redis_replicas)))
            }
            _ => Err(not_a_target(url)),
        }
    }
}

impl Target for Server {
    /// A client does not know the processes of its server.
    type Used = ();

    async fn get(&self, key: Bytes) -> Result<Option<u64>> {
        match self {
            Self::Tikv(client) => Ok(client.get(key).await?.map(|value| value.len() as u64)),
            Self::Redis(redis) => redis.get(key).await,
        }
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        match self {
            Self::Tikv(client) => client.put(key, value).await,
            Self::Redis(redis) => redis.put(key, value).await,
        }
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        match self {
            Self::Tikv(client) => client.delete(key).await,
            Self::Redis(redis) => redis.delete(key).await,
        }
    }

    async fn scan(&self, key: Bytes, limit: usize) -> Result<u64> {
        let Self::Tikv(client) = self else {
            return Err(Error::invalid("redis has no scan in key order"));
        };
        let range = KeyRange { start: key, end: Bytes::new() };
        let options = ScanOptions { limit: Some(limit), ..ScanOptions::default() };
        let mut scan = client.scan(range, options);
        let mut bytes = 0;
        while let Some(page) = scan.next_page().await? {
            bytes += page.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
        }
        Ok(bytes as u64)
    }

    async fn used(&self) -> Result<()> {
        Ok(())
    }

    async fn used_since(&self, (): (), _run: &Run) -> Result<Value> {
        Ok(Value::Null)
    }
}

/// Makes the error of a call without a valid reply.
pub fn unavailable(reason: impl Display) -> Error {
    Error::Unavailable(reason.to_string())
}
