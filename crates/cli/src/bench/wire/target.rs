//! Servers under load.

use super::etcd::Etcd;
use super::redis::Redis;
use crate::args::BenchWire;
use bytes::Bytes;
use std::fmt::Display;
use stele_client::{Client, Options, ScanOptions};
use stele_types::{Error, KeyRange, Result, address};

/// Client of a server under load.
pub enum Target {
    /// Stele or TiKV, which share a protocol.
    Tikv(Box<Client>),
    Etcd(Etcd),
    Redis(Redis),
}

impl Target {
    /// Connects to `scheme://address,address…`.
    pub async fn connect(url: &str, args: &BenchWire) -> Result<Self> {
        let kinds = "stele://, tikv://, etcd:// or redis:// and HOST:PORT,…";
        let bad = || Error::invalid(format!("`{url}` is not a target: write {kinds}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(bad)?;
        let addresses = rest.split(',').map(|text| address::to_connect(text).map(str::to_owned));
        let addresses = addresses.collect::<Result<Vec<String>>>()?;
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
            "etcd" => Ok(Self::Etcd(Etcd::connect(&addresses, args.connections).await?)),
            "redis" => {
                let address = addresses.into_iter().next().ok_or_else(bad)?;
                Ok(Self::Redis(Redis::new(address, args.redis_replicas)))
            }
            _ => Err(bad()),
        }
    }

    /// Returns the number of leaders on each node that `url` names; `None` if one is unknown.
    pub async fn regions_led(&self, url: &str) -> Option<Vec<u64>> {
        let Self::Tikv(client) = self else { return None };
        let nodes: Vec<&str> = url.split_once("://")?.1.split(',').collect();
        let mut led = vec![0; nodes.len()];
        let control = client.control();
        for row in control.regions(&KeyRange::all(), false).await.ok()? {
            let address = control.store_address(row.leader_store?).await.ok()?;
            let node = nodes.iter().position(|node| *node == address)?;
            *led.get_mut(node)? += 1;
        }
        Some(led)
    }

    /// Returns the length of a value.
    pub async fn get(&self, key: Bytes) -> Result<Option<u64>> {
        match self {
            Self::Tikv(client) => Ok(client.get(key).await?.map(|value| value.len() as u64)),
            Self::Etcd(etcd) => etcd.get(key).await,
            Self::Redis(redis) => redis.get(key).await,
        }
    }

    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        match self {
            Self::Tikv(client) => client.put(key, value).await,
            Self::Etcd(etcd) => etcd.put(key, value).await,
            Self::Redis(redis) => redis.put(key, value).await,
        }
    }

    pub async fn delete(&self, key: Bytes) -> Result<()> {
        match self {
            Self::Tikv(client) => client.delete(key).await,
            Self::Etcd(etcd) => etcd.delete(key).await,
            Self::Redis(redis) => redis.delete(key).await,
        }
    }

    /// Returns the bytes of at most `limit` pairs from `key` on.
    pub async fn scan(&self, key: Bytes, limit: usize) -> Result<u64> {
        match self {
            Self::Tikv(client) => {
                let range = KeyRange { start: key, end: Bytes::new() };
                let options = ScanOptions { limit: Some(limit), ..ScanOptions::default() };
                let mut scan = client.scan(range, options);
                let mut bytes = 0;
                while let Some(page) = scan.next_page().await? {
                    bytes +=
                        page.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
                }
                Ok(bytes as u64)
            }
            Self::Etcd(etcd) => etcd.scan(key, limit).await,
            Self::Redis(_) => Err(Error::invalid("redis has no scan in key order")),
        }
    }
}

/// Makes the error of a call without a valid reply.
pub fn unavailable(reason: impl Display) -> Error {
    Error::Unavailable(reason.to_string())
}
