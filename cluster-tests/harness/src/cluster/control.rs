//! Administration of the cluster: queries and changes of regions and stores.

use super::Cluster;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use stele_proto::stele::control::v1 as proto;
use stele_proto::stele::control::v1::control_client::ControlClient;
use stele_types::{PeerRole, Region, RegionId, RegionKind, StoreId};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

const CALL_LIMIT: Duration = Duration::from_secs(3);
const PLACEMENT_LIMIT: Duration = Duration::from_secs(20);
/// The region of the placement group and at least one of user keys.
const REGIONS_MIN: usize = 2;
pub(crate) const POLL: Duration = Duration::from_millis(20);

#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub region: Region,
    pub leader: Option<StoreId>,
    /// Whether no peer is down or lacks part of the log.
    pub has_healthy_peers: bool,
}

impl Cluster {
    pub(crate) fn control(&self, node: usize) -> Result<ControlClient<Channel>> {
        let node = self.nodes.get(node).context("no such node")?;
        self.channels.control(node.address(), CALL_LIMIT)
    }

    /// Calls the leader of the placement group: calls every node in turn until one serves the call.
    pub(crate) async fn placement<T, F, A>(&self, what: &str, call: F) -> Result<T>
    where
        F: Fn(ControlClient<Channel>) -> A,
        A: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + PLACEMENT_LIMIT;
        let mut last = String::new();
        while Instant::now() < deadline {
            for address in self.addresses() {
                match call(self.channels.control(&address, CALL_LIMIT)?).await {
                    Ok(answer) => return Ok(answer.into_inner()),
                    Err(status) if is_retryable(&status) => last = format!("{address}: {status}"),
                    Err(status) => bail!("{what}: {address} returned {status}"),
                }
            }
            tokio::time::sleep(POLL).await;
        }
        bail!("{what}: no node served the call within {PLACEMENT_LIMIT:?}; last error: {last}")
    }

    /// Returns all regions; that of the placement group comes first.
    pub(crate) async fn regions(&self) -> Result<Vec<Known>> {
        let mut known = Vec::new();
        let mut from = bytes::Bytes::new();
        loop {
            let system = known.is_empty();
            let request = proto::ListRegionsRequest {
                start_key: from.clone(),
                system,
                ..proto::ListRegionsRequest::default()
            };
            let answer = self
                .placement("list regions", |mut client| {
                    let request = request.clone();
                    async move { client.list_regions(request).await }
                })
                .await?;
            for info in answer.regions {
                let report = info.report.context("a region without a report")?;
                let region = Region::decode(&report.region)?;
                let leader = Some(StoreId(report.leader_store)).filter(|store| store.0 != 0);
                let has_healthy_peers =
                    report.down_peers.is_empty() && report.pending_peers.is_empty();
                known.push(Known { region, leader, has_healthy_peers });
            }
            match answer.next_key {
                Some(next) => from = next,
                None => return Ok(known),
            }
        }
    }

    pub(crate) async fn region_of(&self, key: &[u8]) -> Result<Known> {
        let regions = self.regions().await?;
        let mut users = regions.into_iter().filter(|one| one.region.kind == RegionKind::Data);
        users.find(|one| one.region.range.contains(key)).context("no region holds the key")
    }

    /// Returns the stores that are not removed, by ID.
    pub(crate) async fn stores(&self) -> Result<BTreeMap<StoreId, proto::StoreInfo>> {
        let answer = self
            .placement("list stores", |mut client| async move {
                client.list_stores(proto::ListStoresRequest::default()).await
            })
            .await?;
        let number = |store: &proto::StoreInfo| {
            StoreId(store.stats.as_ref().map(|stats| stats.id).unwrap_or_default())
        };
        Ok(answer.stores.into_iter().map(|store| (number(&store), store)).collect())
    }

    pub(crate) async fn store_of(&self, node: usize) -> Result<StoreId> {
        let address = self.nodes.get(node).context("no such node")?.address();
        let stores = self.stores().await?;
        // After its disk was replaced, a node has a second store under its address; the later one
        // counts.
        let mut found = stores.into_iter().rev().filter(|(_, store)| store.address == address);
        Ok(found.next().with_context(|| format!("no store at {address}"))?.0)
    }

    pub(crate) async fn node_of(&self, store: StoreId) -> Result<usize> {
        let stores = self.stores().await?;
        self.node_at(&stores.get(&store).with_context(|| format!("no store {store}"))?.address)
    }

    pub(crate) async fn leader_of(&self, key: &[u8]) -> Result<usize> {
        let deadline = Instant::now() + PLACEMENT_LIMIT;
        loop {
            if let Some(store) = self.region_of(key).await?.leader {
                return self.node_of(store).await;
            }
            ensure!(Instant::now() < deadline, "no leader within {PLACEMENT_LIMIT:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Transfers leadership and waits until the placement group reports the new leader.
    pub(crate) async fn transfer(&self, region: RegionId, to: StoreId) -> Result<()> {
        let request = proto::TransferRequest { region_id: region.0, to_store: to.0, header: None };
        self.placement("transfer", |mut client| async move { client.transfer(request).await })
            .await?;
        let deadline = Instant::now() + PLACEMENT_LIMIT;
        loop {
            let regions = self.regions().await?;
            let now = regions.iter().find(|one| one.region.id == region);
            let now = now.with_context(|| format!("region {region} no longer exists"))?;
            if now.leader == Some(to) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "leadership of region {region} did not move to store {to}"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Splits a region at user keys, or in half without keys, and waits until the placement group knows
    /// its parts.
    pub(crate) async fn split(&self, region: RegionId, keys: Vec<bytes::Bytes>) -> Result<()> {
        let wanted = self.regions().await?.len() + keys.len().max(1);
        self.split_done(region, keys).await?;
        let deadline = Instant::now() + PLACEMENT_LIMIT;
        while self.regions().await?.len() < wanted {
            ensure!(Instant::now() < deadline, "region {region} was not split into {wanted}");
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    pub(crate) async fn set_store(&self, store: StoreId, action: proto::StoreAction) -> Result<()> {
        let request =
            proto::SetStoreStateRequest { store_id: store.0, action: action.into(), header: None };
        self.placement("set store state", |mut client| async move {
            client.set_store_state(request).await
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn set_option(&self, key: &str, value: &str) -> Result<()> {
        let request =
            proto::SetConfigRequest { key: key.to_owned(), value: value.to_owned(), header: None };
        self.placement("set option", |mut client| {
            let request = request.clone();
            async move { client.set_config(request).await }
        })
        .await?;
        Ok(())
    }

    /// Waits until every region has so many voters, a leader, and no peer that is down or lacks log
    /// entries.
    pub(crate) async fn wait_replicated(&mut self, replicas: usize, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            self.check_alive()?;
            let regions = self.regions().await?;
            let late: Vec<&Known> =
                regions.iter().filter(|one| !is_settled(one, replicas)).collect();
            if late.is_empty() && regions.len() >= REGIONS_MIN {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let mut reasons = String::new();
                for one in &late {
                    reasons += &self.explain(one.region.id).await?;
                }
                bail!("no {replicas} voters within {limit:?}: {late:?}{reasons}");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Returns what the schedulers say of a region: the verdicts on its stores, and its operators.
    async fn explain(&self, region: RegionId) -> Result<String> {
        let wanted = proto::ExplainRequest { region_id: region.0, ..Default::default() };
        let explained = self.placement("explain", |mut client| {
            let wanted = wanted.clone();
            async move { client.explain(wanted).await }
        });
        let explained = explained.await?;
        let wanted =
            proto::ListOperatorsRequest { region_id: region.0, ended: true, ..Default::default() };
        let operators = self.placement("list operators", |mut client| async move {
            client.list_operators(wanted).await
        });
        let operators = operators.await?.operators;
        let report = explained.region.and_then(|info| info.report);
        let bytes = report.map_or(0, |report| report.approximate_bytes);
        let mut out = format!("\nregion {region}, {bytes} bytes");
        for verdict in explained.stores {
            let store = verdict.store.map_or(0, |store| store.store_id);
            out += &format!("\n  store {store}: {}: {}", verdict.rule, verdict.reason);
        }
        for one in explained.operator.iter().chain(&operators) {
            let (done, steps, age) = (one.steps_done, one.steps, one.age_ms);
            out += &format!("\n  operator {}: {} ({}), ", one.id, one.what, one.why);
            out += &format!(
                "{done} of {steps} steps, {age} ms old, {:?}: {}",
                one.state(),
                one.detail
            );
        }
        Ok(out)
    }
}

fn is_settled(known: &Known, replicas: usize) -> bool {
    let voters = known.region.peers.iter().filter(|peer| peer.role == PeerRole::Voter).count();
    let others = known.region.peers.len() - voters;
    // The placement group may have more voters than regions of user keys.
    let enough = voters == replicas || voters > replicas && known.region.kind == RegionKind::System;
    enough && others == 0 && known.leader.is_some() && known.has_healthy_peers
}

/// Returns whether a retry, or another node, may succeed.
fn is_retryable(status: &Status) -> bool {
    let again = [Code::Unavailable, Code::DeadlineExceeded, Code::AlreadyExists, Code::Cancelled];
    again.contains(&status.code()) || status.code() == Code::Unknown
}
