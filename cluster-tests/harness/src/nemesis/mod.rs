//! The nemesis: draws faults of nodes and changes of regions and applies them to a cluster under
//! load.

mod nodes;
mod regions;

use crate::cluster::Cluster;
use crate::history::Keys;
use crate::scenario::kill::wait;
use anyhow::Result;
use nodes::Active;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};
use stele_types::Prng;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// `kill -9` of one, two or all nodes, sometimes again while they recover.
    Kill,
    /// SIGTERM and a restart.
    Stop,
    /// SIGSTOP and SIGCONT.
    Pause,
    /// A node sends at a low rate.
    Slow,
    /// Each sync of a node's log takes long.
    SlowSyncs,
    /// Messages of one direction between a node and the others are lost.
    OneWay,
    /// Messages of both directions between a node and the others are lost.
    CutOff,
    Transfer,
    Split,
    Merge,
    /// A replica moves to the node without one, and back.
    Move,
}

const NODE_FAULTS: [Fault; 7] = [
    Fault::Kill,
    Fault::Stop,
    Fault::Pause,
    Fault::Slow,
    Fault::SlowSyncs,
    Fault::OneWay,
    Fault::CutOff,
];
const REGION_CHANGES: [Fault; 4] = [Fault::Transfer, Fault::Split, Fault::Merge, Fault::Move];

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Slow => "slow",
            Self::SlowSyncs => "slow_syncs",
            Self::OneWay => "one_way",
            Self::CutOff => "cut_off",
            Self::Transfer => "transfer",
            Self::Split => "split",
            Self::Merge => "merge",
            Self::Move => "move",
        }
    }

    fn is_of_a_node(self) -> bool {
        NODE_FAULTS.contains(&self)
    }
}

/// Keys under load. Regions are split near them, and their leaders are preferred as victims.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub round: String,
    pub keys: Keys,
}

impl Target {
    fn group(&self, prng: &mut Prng) -> String {
        Keys::group(&self.round, prng.below(self.keys.groups))
    }
}

#[derive(Debug)]
pub(crate) struct Nemesis {
    prng: Prng,
    started: Instant,
    /// Faults that are drawn before any is drawn again.
    deck: Vec<Fault>,
    active: Vec<Active>,
    /// Number of faults, by kind. A change of regions may fail while a fault is in force; failures
    /// are counted separately.
    done: BTreeMap<Fault, u64>,
    failed: BTreeMap<Fault, u64>,
}

impl Nemesis {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            prng: Prng::new(seed),
            started: Instant::now(),
            deck: Vec::new(),
            active: Vec::new(),
            done: BTreeMap::new(),
            failed: BTreeMap::new(),
        }
    }

    /// Applies the next fault and ends it, then leaves the cluster alone for a moment. A fault of a
    /// node is sometimes joined by a second one, and by a change of regions.
    pub(crate) async fn step(&mut self, cluster: &mut Cluster, target: &Target) -> Result<()> {
        let fault = self.draw();
        if fault.is_of_a_node() {
            self.begin(cluster, fault, target).await?;
            if self.prng.below(4) == 0 {
                let second = NODE_FAULTS[self.prng.below(NODE_FAULTS.len() as u64) as usize];
                self.begin(cluster, second, target).await?;
            }
            wait(&mut self.prng, 100, 1_500).await;
            if self.prng.coin() {
                let change = REGION_CHANGES[self.prng.below(REGION_CHANGES.len() as u64) as usize];
                self.change(cluster, change, target).await;
            }
            wait(&mut self.prng, 50, 1_200).await;
            self.end(cluster).await?;
        } else {
            self.change(cluster, fault, target).await;
        }
        wait(&mut self.prng, 100, 800).await;
        cluster.check_alive()
    }

    /// Draws without repetition until every kind has been drawn.
    fn draw(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck = NODE_FAULTS.into_iter().chain(REGION_CHANGES).collect();
        }
        self.deck.swap_remove(self.prng.below(self.deck.len() as u64) as usize)
    }

    fn say(&self, what: impl fmt::Display) {
        println!("{:7.3} s  {what}", self.started.elapsed().as_secs_f64());
    }

    pub(crate) fn object(&self) -> Value {
        let mut object = Map::new();
        for (fault, count) in &self.done {
            object.insert(fault.name().to_owned(), (*count).into());
        }
        for (fault, count) in &self.failed {
            object.insert(format!("{}_failed", fault.name()), (*count).into());
        }
        Value::Object(object)
    }
}

/// Time limit of a change of regions, which may be impossible during a fault.
const CHANGE_LIMIT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fault_is_drawn_before_any_is_drawn_again() {
        for seed in 0..20 {
            let mut nemesis = Nemesis::new(seed);
            for _ in 0..3 {
                let mut drawn: Vec<Fault> = (0..11).map(|_| nemesis.draw()).collect();
                drawn.sort();
                let all: Vec<Fault> = NODE_FAULTS.into_iter().chain(REGION_CHANGES).collect();
                assert_eq!(drawn, all, "seed {seed}");
            }
        }
    }
}
