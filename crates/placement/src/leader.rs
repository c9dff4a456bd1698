//! What the leader of the placement group holds in memory, and its regular work between commits.
//! Whoever leads carries it out: reads the state, commits what is due, sends what is answered.

use crate::operator::OperatorId;
use crate::schedule::round;
use crate::{
    Cluster, Instruction, Millis, NodeReport, Operators, PairChange, RegionReport, StaleReport,
    StoreReport,
};
use std::collections::HashMap;
use stele_types::{RegionId, Result, StoreId, Term};

/// The state of a term, and what is under way in it.
pub struct LeaderState {
    /// It was loaded by a leader of this term, and is changed by proposals of this term only.
    pub term: Term,
    /// The state.
    pub cluster: Cluster,
    /// What is under way.
    pub operators: Operators,
    /// The last report of each node: when it started, and which report of that life.
    reports: HashMap<String, (u64, u64)>,
    /// Something changed that schedulers should look at soon.
    is_news: bool,
    scheduled: Millis,
}

/// Between two rounds of the schedulers when nothing changed.
const ROUND_MILLIS: u64 = 1000;
/// Descriptors written behind in one proposal.
const BEHIND_BYTES_MAX: usize = 256 << 10;
/// Numbers kept at hand, so that splits and moves need no commit of their own.
const IDS_AT_HAND: u64 = 64;
/// Most nodes whose last report is remembered.
const NODES_MAX: usize = 4096;

/// What a node reports.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    /// Of itself.
    pub node: &'a NodeReport,
    /// Grows with each report of a life of the node.
    pub sequence: u64,
    /// Of its stores.
    pub stores: &'a [StoreReport],
    /// Of regions they lead.
    pub regions: Vec<RegionReport>,
    /// Whether these are all regions they lead.
    pub is_full: bool,
    /// Steps that leaders there did not take.
    pub refusals: Vec<Refused>,
}

/// What a leader said against a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Of which operator.
    pub operator: OperatorId,
    /// Its step, from 0.
    pub step: usize,
    /// In words.
    pub why: String,
    /// It can never be taken.
    pub is_final: bool,
}

/// What a node is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportReply {
    /// What leaders there do next.
    pub due: Vec<Instruction>,
    /// They lead a region with an operator: the next report shall come soon.
    pub is_busy: bool,
    /// The next report shall hold every region.
    pub all_wanted: bool,
}

impl LeaderState {
    /// The state as a leader of `term` loaded it.
    pub fn new(term: Term, cluster: Cluster) -> Self {
        let (operators, reports) = (Operators::default(), HashMap::new());
        Self { term, cluster, operators, reports, is_news: true, scheduled: Millis(0) }
    }

    /// Takes over changes that were committed. Fails with `Invalid` on what no plan made.
    pub fn apply(&mut self, changes: &[PairChange]) -> Result<()> {
        self.is_news = true;
        self.cluster.apply(changes)
    }

    /// Descriptors to be written behind with the next [`LeaderState::plan_due`].
    pub fn take_behind(&mut self) -> Vec<PairChange> {
        self.cluster.take_region_changes(BEHIND_BYTES_MAX)
    }

    /// What is to be committed now, beside decisions that somebody asked for. Fails with `Invalid`.
    pub fn plan_due(
        cluster: &Cluster,
        behind: Vec<PairChange>,
        now: Millis,
        unix_seconds: u64,
    ) -> Result<Vec<PairChange>> {
        let mut changes = behind;
        changes.extend(cluster.plan_tombstones(now));
        changes.extend(cluster.plan_disconnections(now, unix_seconds));
        if cluster.ids_reserved() < IDS_AT_HAND {
            changes.extend(cluster.plan_ids(IDS_AT_HAND)?);
        }
        Ok(changes)
    }

    /// Lets the schedulers look, if there is news or it is time to.
    pub fn schedule(&mut self, now: Millis) {
        if !self.is_news && now.since(self.scheduled) < ROUND_MILLIS {
            return;
        }
        (self.is_news, self.scheduled) = (false, now);
        self.cluster.note_drains(now);
        round(&mut self.cluster, &mut self.operators, now);
    }

    /// Takes a node's report in; its regions not, if a later report of the same node came before it.
    /// What [`Cluster::plan_heartbeat`] says of it is committed by now. Returns what was older than what is
    /// known.
    pub fn accept_report(&mut self, report: Report<'_>, now: Millis) -> Vec<StaleReport> {
        self.cluster.record_heartbeat(report.node, report.stores, now);
        let address = &report.node.address;
        let this = (report.node.started_at, report.sequence);
        let last = self.reports.get(address).copied();
        if last.is_some_and(|last| this <= last) {
            return Vec::new();
        }
        // A node that is heard of for the first time may be what others wait for.
        self.is_news |= last.is_none();
        if self.reports.len() >= NODES_MAX {
            self.reports.clear();
        }
        self.reports.insert(address.clone(), this);
        let mut stale = Vec::new();
        for region in report.regions {
            let known = self.cluster.regions().get(region.region.id);
            let before = known.map(|info| (info.region.epoch, info.leader));
            let next = Some((region.region.epoch, Some(region.leader)));
            match self.cluster.observe(region, now) {
                Ok(()) => self.is_news |= before != next,
                Err(why) => stale.push(why),
            }
        }
        if report.is_full {
            self.cluster.note_full_report(address);
        }
        for Refused { operator, step, why, is_final } in report.refusals {
            self.operators.note_refusal(operator, step, why, is_final, now);
        }
        stale
    }

    /// What a node with these stores is told.
    pub fn reply_to(&mut self, address: &str, stores: &[StoreId], now: Millis) -> ReportReply {
        let due = self.operators.instructions(&self.cluster, stores, now);
        let is_led_here = |region: RegionId| {
            let leader = self.cluster.regions().get(region).and_then(|info| info.leader);
            leader.is_some_and(|leader| stores.contains(&leader.store))
        };
        let is_busy = self.operators.running().any(|operator| is_led_here(operator.region));
        ReportReply { due, is_busy, all_wanted: !self.cluster.is_informed_by(address) }
    }
}
