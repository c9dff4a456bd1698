//! `lab wire`: `stele bench wire` with etcd as a target, and with what the servers' processes used.

mod causes;
mod etcd;
mod kernel_counts;
mod servers;
mod stages;

use anyhow::{Result, ensure};
use bytes::Bytes;
use clap::Parser;
use etcd::Etcd;
use serde_json::Value;
use servers::{Servers, Used};
use std::sync::Arc;
use stele_load::{Round, Run, Server, Target, Wire, server};
use tokio::runtime::Builder;

/// Measure clusters and other servers over the network
#[derive(Debug, Parser)]
#[command(name = "lab wire")]
struct Args {
    #[command(flatten)]
    wire: Wire,
    /// Processes of the servers on this machine, one list per target, separated by `/`. Their
    /// processor time and device bytes are reported
    #[arg(long, value_name = "PID,PID/PID,…")]
    pids: Option<String>,
}

/// Measures the targets that the command line names; `etcd://HOST:PORT,…` is one, too.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let Args { wire, pids } = crate::parse(arguments);
    wire.load.check()?;
    // The generator uses one thread: one per processor would compete with the servers.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let rounds = runtime.block_on(measure(&wire, pids.as_deref()))?;
    stele_load::print(&wire, &rounds, |line| {
        println!("{line}");
        Ok(())
    })?;
    ensure!(!stele_load::failed(&rounds), "operations failed");
    Ok(())
}

async fn measure(args: &Wire, pids: Option<&str>) -> stele_types::Result<Vec<Round>> {
    let servers = Servers::parse(pids, &args.target)?;
    let mut targets = Vec::new();
    for (url, servers) in args.target.iter().zip(servers) {
        let client = Client::connect(url, args).await?;
        targets.push(Arc::new(Measured { url: url.clone(), client, servers }));
    }
    stele_load::measure(args, &targets).await
}

enum Client {
    Known(Server),
    Etcd(Etcd),
}

impl Client {
    async fn connect(url: &str, args: &Wire) -> stele_types::Result<Self> {
        match server::parse(url)? {
            ("etcd", addresses) => {
                Ok(Self::Etcd(Etcd::connect(&addresses, args.connections).await?))
            }
            _ => Ok(Self::Known(Server::connect(url, args).await?)),
        }
    }
}

struct Measured {
    url: String,
    client: Client,
    servers: Servers,
}

impl Target for Measured {
    /// With the regions led by each node; `None` if unknown.
    type Used = (Option<Vec<u64>>, Used);

    async fn get(&self, key: Bytes) -> stele_types::Result<Option<u64>> {
        match &self.client {
            Client::Known(server) => server.get(key).await,
            Client::Etcd(etcd) => etcd.get(key).await,
        }
    }

    async fn put(&self, key: Bytes, value: Bytes) -> stele_types::Result<()> {
        match &self.client {
            Client::Known(server) => server.put(key, value).await,
            Client::Etcd(etcd) => etcd.put(key, value).await,
        }
    }

    async fn delete(&self, key: Bytes) -> stele_types::Result<()> {
        match &self.client {
            Client::Known(server) => server.delete(key).await,
            Client::Etcd(etcd) => etcd.delete(key).await,
        }
    }

    async fn scan(&self, key: Bytes, limit: usize) -> stele_types::Result<u64> {
        match &self.client {
            Client::Known(server) => server.scan(key, limit).await,
            Client::Etcd(etcd) => etcd.scan(key, limit).await,
        }
    }

    async fn used(&self) -> stele_types::Result<Self::Used> {
        let led = self.servers.regions_led(&self.url, &self.client).await;
        Ok((led, self.servers.used(&self.url).await?))
    }

    async fn used_since(&self, before: Self::Used, run: &Run) -> stele_types::Result<Value> {
        let used = self.servers.used(&self.url).await?;
        // A node that was leader for only part of the round counts as neither leader nor follower.
        let led = self.servers.regions_led(&self.url, &self.client).await;
        Ok(used.since(&before.1, run, before.0.filter(|before| led.as_ref() == Some(before))))
    }
}
