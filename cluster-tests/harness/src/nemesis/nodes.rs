//! Faults of nodes and of the network.

use super::{Fault, Nemesis, Target};
use crate::cluster::Cluster;
use crate::cluster::network::{Direction, Network};
use crate::scenario::kill::{choose, wait};
use anyhow::{Context, Result, bail};
use std::time::Duration;
use tokio::time::timeout;

/// Time limit of the search for a leader; without one, any node is the victim.
const LEADER_LIMIT: Duration = Duration::from_millis(500);
const STOP_LIMIT: Duration = Duration::from_secs(30);
/// Rates of a slow node. A node of a cluster under load sends some megabits per second.
const RATES_KBIT: [u64; 4] = [64, 256, 1_024, 4_096];

/// A sync takes about a millisecond without the fault.
const SYNC_DELAYS_MS: [u64; 3] = [5, 20, 100];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Active {
    Down(Vec<usize>),
    Paused(usize),
    Slow(usize),
    SlowSyncs(usize),
    Cut(usize),
}

impl Active {
    fn affects(&self, node: usize) -> bool {
        match self {
            Self::Down(nodes) => nodes.contains(&node),
            Self::Paused(other) | Self::Slow(other) | Self::SlowSyncs(other) | Self::Cut(other) => {
                *other == node
            }
        }
    }
}

impl Nemesis {
    /// Begins a fault at nodes without one; [`Nemesis::end`] ends it.
    pub(super) async fn begin(
        &mut self,
        cluster: &mut Cluster,
        fault: Fault,
        target: &Target,
    ) -> Result<()> {
        let Some(victim) = self.victim(cluster, target).await else { return Ok(()) };
        let node = &mut cluster.nodes[victim];
        let active = match fault {
            Fault::Kill => Active::Down(self.kill(cluster, victim)?),
            Fault::Stop => {
                self.say(format!("node {victim} gets SIGTERM"));
                node.stop(STOP_LIMIT).await?;
                Active::Down(vec![victim])
            }
            Fault::Pause => {
                node.pause()?;
                Active::Paused(victim)
            }
            Fault::Slow => {
                let rate = RATES_KBIT[self.prng.below(RATES_KBIT.len() as u64) as usize];
                network(cluster)?.slow(victim, rate)?;
                self.say(format!("node {victim} sends {rate} kbit/s"));
                Active::Slow(victim)
            }
            Fault::SlowSyncs => {
                let delay_ms =
                    SYNC_DELAYS_MS[self.prng.below(SYNC_DELAYS_MS.len() as u64) as usize];
                node.slow_syncs(Duration::from_millis(delay_ms)).await?;
                self.say(format!("a sync of node {victim} takes {delay_ms} ms longer"));
                Active::SlowSyncs(victim)
            }
            Fault::OneWay => {
                let direction = if self.prng.coin() { Direction::From } else { Direction::To };
                network(cluster)?.isolate(victim, direction)?;
                self.say(format!("messages are lost: {direction:?} node {victim}"));
                Active::Cut(victim)
            }
            Fault::CutOff => {
                network(cluster)?.isolate(victim, Direction::Both)?;
                Active::Cut(victim)
            }
            other => bail!("{other:?} is not a fault of a node"),
        };
        self.say(format!("{}: {active:?}", fault.name()));
        self.active.push(active);
        *self.done.entry(fault).or_default() += 1;
        Ok(())
    }

    /// Ends all faults and waits until every node is ready.
    pub(super) async fn end(&mut self, cluster: &mut Cluster) -> Result<()> {
        for active in std::mem::take(&mut self.active) {
            match active {
                Active::Down(victims) => self.restart(cluster, &victims).await?,
                Active::Paused(victim) => cluster.nodes[victim].resume()?,
                Active::Slow(victim) => network(cluster)?.restore_rate(victim)?,
                Active::SlowSyncs(victim) => cluster.nodes[victim].restore_syncs(),
                Active::Cut(_) => network(cluster)?.heal_all()?,
            }
        }
        cluster.wait_ready().await?;
        self.say("healed");
        Ok(())
    }

    /// Chooses a node without a fault, half of the time the leader of a key under load.
    async fn victim(&mut self, cluster: &Cluster, target: &Target) -> Option<usize> {
        let is_free = |node: &usize| !self.active.iter().any(|active| active.affects(*node));
        let free: Vec<usize> = (0..cluster.nodes.len()).filter(is_free).collect();
        let any = free.get(self.prng.below(free.len() as u64) as usize).copied();
        let group = target.group(&mut self.prng);
        if self.prng.coin() {
            return any;
        }
        let leader = timeout(LEADER_LIMIT, cluster.leader_of(group.as_bytes())).await;
        leader.ok().and_then(Result::ok).filter(|leader| free.contains(leader)).or(any)
    }

    /// Kills the victim; sometimes also a second node, or all nodes that run.
    fn kill(&mut self, cluster: &mut Cluster, victim: usize) -> Result<Vec<usize>> {
        let count = cluster.nodes.len();
        let mut victims = match self.prng.below(8) {
            0 => (0..count).collect(),
            1 | 2 => choose(&mut self.prng, count, 2),
            _ => Vec::new(),
        };
        victims.retain(|node| !self.active.iter().any(|active| active.affects(*node)));
        if !victims.contains(&victim) {
            victims.push(victim);
        }
        for victim in &victims {
            cluster.nodes[*victim].kill()?;
        }
        Ok(victims)
    }

    /// Restarts nodes; sometimes kills them again while they recover.
    async fn restart(&mut self, cluster: &mut Cluster, victims: &[usize]) -> Result<()> {
        for victim in victims {
            cluster.nodes[*victim].restart()?;
        }
        if self.prng.below(4) == 0 {
            wait(&mut self.prng, 0, 150).await;
            for victim in victims {
                cluster.nodes[*victim].kill()?;
                cluster.nodes[*victim].restart()?;
            }
        }
        Ok(())
    }
}

fn network(cluster: &Cluster) -> Result<&Network> {
    cluster.network.as_ref().context("the cluster has no network")
}
