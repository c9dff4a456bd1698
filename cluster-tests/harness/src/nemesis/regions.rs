//! Changes of regions: transfers of leadership, splits, merges and moves of replicas.

use super::{CHANGE_LIMIT, Fault, Nemesis, Target};
use crate::cluster::Cluster;
use crate::cluster::control::Known;
use crate::history::Keys;
use crate::scenario::kill::wait;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use stele_types::{RegionKind, StoreId};
use tokio::time::timeout;

/// Number of regions of user keys from which on none is split.
const REGIONS_MAX: usize = 8;

impl Nemesis {
    /// Changes a region. A failure is counted: the change may be impossible during a fault.
    pub(super) async fn change(&mut self, cluster: &Cluster, change: Fault, target: &Target) {
        let result = match timeout(CHANGE_LIMIT, self.try_change(cluster, change, target)).await {
            Ok(result) => result,
            Err(_) => Err(anyhow::anyhow!("no end within {CHANGE_LIMIT:?}")),
        };
        match result {
            Ok(what) => {
                self.say(format!("{}: {what}", change.name()));
                *self.done.entry(change).or_default() += 1;
            }
            Err(error) => {
                self.say(format!("{} failed: {error:#}", change.name()));
                *self.failed.entry(change).or_default() += 1;
            }
        }
    }

    async fn try_change(
        &mut self,
        cluster: &Cluster,
        change: Fault,
        target: &Target,
    ) -> Result<String> {
        let mut known = cluster.regions().await?;
        known.retain(|one| one.region.kind == RegionKind::Data);
        match change {
            Fault::Transfer => self.transfer(cluster, &known).await,
            Fault::Split => self.split(cluster, &known, target).await,
            Fault::Merge => self.merge(cluster, &known).await,
            Fault::Move => self.move_and_back(cluster, &known).await,
            other => bail!("{other:?} is not a change of regions"),
        }
    }

    fn any<'a>(&mut self, known: &'a [Known]) -> Result<&'a Known> {
        let at = self.prng.below(known.len() as u64) as usize;
        known.get(at).context("no region of user keys")
    }

    async fn transfer(&mut self, cluster: &Cluster, known: &[Known]) -> Result<String> {
        let one = self.any(known)?;
        let peers = one.region.peers.iter().map(|peer| peer.store);
        let others: Vec<StoreId> = peers.filter(|store| Some(*store) != one.leader).collect();
        let to = others.get(self.prng.below(others.len() as u64) as usize);
        let (id, to) = (one.region.id, *to.context("no other peer")?);
        cluster.transfer(id, to).await?;
        Ok(format!("region {id} to store {to}"))
    }

    /// Splits between groups; sometimes within one, which cannot be scanned afterwards.
    async fn split(
        &mut self,
        cluster: &Cluster,
        known: &[Known],
        target: &Target,
    ) -> Result<String> {
        ensure!(known.len() < REGIONS_MAX, "there are {} regions", known.len());
        let group = target.group(&mut self.prng);
        let key = match self.prng.below(4) {
            0 => Keys::key(&group, self.prng.below(target.keys.group_keys)),
            _ => group,
        };
        let one = known.iter().find(|one| one.region.range.contains(key.as_bytes()));
        let id = one.context("no region holds the key")?.region.id;
        cluster.split_done(id, vec![Bytes::from(key.clone())]).await?;
        Ok(format!("region {id} at {key}"))
    }

    async fn merge(&mut self, cluster: &Cluster, known: &[Known]) -> Result<String> {
        ensure!(known.len() > 1, "there is only one region");
        let at = self.prng.below(known.len() as u64 - 1) as usize;
        let (mut source, mut target) = (known[at].region.id, known[at + 1].region.id);
        if self.prng.coin() {
            std::mem::swap(&mut source, &mut target);
        }
        cluster.merge(source, target).await?;
        Ok(format!("region {source} into {target}"))
    }

    async fn move_and_back(&mut self, cluster: &Cluster, known: &[Known]) -> Result<String> {
        let one = self.any(known)?;
        let stores = cluster.stores().await?;
        let spare = stores.into_keys().find(|store| one.region.peer_on(*store).is_none());
        let spare = spare.context("the region is on every store")?;
        let at = self.prng.below(one.region.peers.len() as u64) as usize;
        let id = one.region.id;
        let from = one.region.peers.get(at).context("a region without peers")?.store;
        cluster.move_replica(id, from, spare).await?;
        wait(&mut self.prng, 0, 300).await;
        cluster.move_replica(id, spare, from).await.context("moving back")?;
        Ok(format!("region {id} from store {from} to {spare} and back"))
    }
}
