//! Operators under way: at most one for a region, advanced by the leaders' reports.

use super::guard::guard;
use super::recent_moves::RecentMoves;
use super::status::{Status, merge_delay, status};
use super::{Kind, Operator, OperatorId, Order, Step};
use crate::Millis;
use crate::cluster::Cluster;
use crate::schedule::ClusterView;
use std::collections::{BTreeMap, VecDeque};
use stele_types::{Error, Peer, PeerId, RegionEpoch, RegionId, RegionPhase, StoreId};

/// Operator that ended, with its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The operator.
    pub operator: Operator,
    /// Time of the end.
    pub at: Millis,
    /// Reason for the cancellation; `None` if all steps are done.
    pub given_up: Option<String>,
}

/// Reason why an operator was not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// It could lose data or availability.
    #[error("{0}")]
    Unsafe(String),
    /// The region has an operator that may not be superseded.
    #[error("{0}")]
    Occupied(String),
    /// A limit on concurrent operators is reached.
    #[error("{0}; try again later")]
    Busy(String),
}

impl From<NotAdmitted> for Error {
    fn from(reason: NotAdmitted) -> Self {
        match reason {
            NotAdmitted::Unsafe(text) => Self::Invalid(text),
            NotAdmitted::Occupied(text) | NotAdmitted::Busy(text) => Self::Busy(text),
        }
    }
}

/// Instruction for the leader of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Operator of the step.
    pub operator: OperatorId,
    /// Index of the step, from 0.
    pub step: usize,
    /// Region to change. In a merge it may be the neighbour of the operator's region.
    pub region: RegionId,
    /// Epoch that the region must still have.
    pub epoch: RegionEpoch,
    /// Leader of the region.
    pub leader: Peer,
    /// Proposal to make.
    pub order: Order,
}

/// Operators under way, and the last ones that ended.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    running: BTreeMap<RegionId, Operator>,
    others: BTreeMap<RegionId, RegionId>,
    ended: VecDeque<Finished>,
    /// Last instructions sent, by the operator's region.
    sent: BTreeMap<RegionId, Sent>,
    leader_moves: RecentMoves<RegionId>,
    replica_moves: RecentMoves<PeerId>,
    last: OperatorId,
}

#[derive(Clone, Debug)]
struct Sent {
    instruction: Instruction,
    at: Millis,
    times: u32,
}

/// Time before the same instruction is sent again, doubled with every repetition. A repetition is
/// needed because a reply may be lost; the doubling spares a leader that cannot execute it.
pub(crate) const RESEND_MILLIS: u64 = 500;
pub(crate) const RESEND_MILLIS_MAX: u64 = 4_000;

/// Limit for the operators that move leaders off slow or unfit stores, so that 100 leaders leave one
/// within three rounds.
const EVICTIONS_MAX: u64 = 64;
const ENDED_MAX: usize = 256;

impl Operators {
    /// Iterates over the operators under way, by region.
    pub fn running(&self) -> impl Iterator<Item = &Operator> {
        self.running.values()
    }

    /// Iterates over the last operators that ended, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &Finished> {
        self.ended.iter()
    }

    /// Returns the operator under way for a region.
    pub fn of(&self, region: RegionId) -> Option<&Operator> {
        self.running.get(&region)
    }

    pub(crate) fn has_operator(&self, region: RegionId) -> bool {
        self.running.contains_key(&region) || self.others.contains_key(&region)
    }

    fn merging_into(&self, region: RegionId) -> Option<&Operator> {
        self.running.get(self.others.get(&region)?)
    }

    /// Returns the time of the last leadership transfer of a region by an operator, if it was less
    /// than [`MOVE_PAUSE_MILLIS`](super::recent_moves::MOVE_PAUSE_MILLIS) ago.
    pub(crate) fn leader_moved(&self, region: RegionId, now: Millis) -> Option<Millis> {
        // bug placement.leader_pause_ignored: return None;
        self.leader_moves.last(region, now)
    }

    /// Returns when balancing placed a replica, if it was less than
    /// [`MOVE_PAUSE_MILLIS`](super::recent_moves::MOVE_PAUSE_MILLIS) ago.
    pub(crate) fn replica_moved(&self, replica: PeerId, now: Millis) -> Option<Millis> {
        // bug placement.replica_pause_ignored: return None;
        self.replica_moves.last(replica, now)
    }

    /// Returns how many operators of these kinds are under way.
    pub fn count(&self, kinds: &[Kind]) -> u64 {
        self.running.values().filter(|operator| kinds.contains(&operator.kind)).count() as u64
    }

    /// Returns how many replicas a store is going to receive.
    pub fn receiving(&self, store: StoreId) -> u64 {
        self.running.values().flat_map(Operator::receivers).filter(|to| *to == store).count() as u64
    }

    /// Returns how many replicas a store, as a leader, is going to send.
    pub fn sending(&self, cluster: &Cluster, store: StoreId) -> u64 {
        let led_there = |operator: &&Operator| {
            let info = cluster.regions().get(operator.region);
            info.and_then(|info| info.leader).is_some_and(|leader| leader.store == store)
        };
        let sends = |operator: &Operator| operator.receivers().count() as u64;
        self.running.values().filter(led_there).map(sends).sum()
    }

    /// Starts an operator. New peers and regions get numbers from the cluster's reserve.
    pub fn admit(
        &mut self,
        cluster: &mut Cluster,
        mut operator: Operator,
        now: Millis,
    ) -> Result<OperatorId, NotAdmitted> {
        let view = ClusterView { cluster, operators: self, now };
        guard(&view, &operator).map_err(NotAdmitted::Unsafe)?;
        check_occupied(&view, &operator).map_err(NotAdmitted::Occupied)?;
        check_limits(&view, &operator).map_err(NotAdmitted::Busy)?;
        let peers = cluster.regions().get(operator.region).map_or(0, |i| i.region.peers.len());
        let Some(ids) = cluster.take_ids(operator.ids_wanted(peers)) else {
            return Err(NotAdmitted::Busy("no numbers for peers are reserved".into()));
        };
        for region in [Some(operator.region), operator.other_region()].into_iter().flatten() {
            self.supersede(region, now);
        }
        operator.number(peers, ids);
        self.last = OperatorId(self.last.0 + 1);
        (operator.id, operator.created) = (self.last, now);
        if let Some(other) = operator.other_region() {
            self.others.insert(other, operator.region);
        }
        self.running.insert(operator.region, operator);
        Ok(self.last)
    }

    fn supersede(&mut self, region: RegionId, now: Millis) {
        let merging = self.merging_into(region).map(|operator| operator.region);
        for region in [Some(region), merging].into_iter().flatten() {
            self.end(region, now, Some("superseded by a more urgent operator".into()));
        }
    }

    /// Records a leader's refusal of a step. If the step can never succeed (`is_final`) and an
    /// administrator ordered the operator, ends it with this text. An operator of a scheduler stays
    /// until its timeout.
    pub(crate) fn note_refusal(
        &mut self,
        id: OperatorId,
        step: usize,
        text: String,
        is_final: bool,
        now: Millis,
    ) {
        let running = self.running.values_mut().find(|operator| operator.id == id);
        let Some(operator) = running.filter(|operator| operator.done == step) else { return };
        operator.refusal = Some(text.clone());
        if is_final && operator.kind == Kind::Manual {
            let region = operator.region;
            self.end(region, now, Some(text));
        }
    }

    /// Cancels the operator of a region. Completed steps stay; schedulers repair what they left. That
    /// a merge is cancelled must be committed before ([`Cluster::plan_cancelled_merge`]): then its
    /// preparation is rolled back, unless the target has committed it.
    pub fn cancel(&mut self, region: RegionId, now: Millis) -> bool {
        self.end(region, now, Some("cancelled by an administrator".into()))
    }

    fn end(&mut self, region: RegionId, at: Millis, given_up: Option<String>) -> bool {
        let Some(operator) = self.running.remove(&region) else { return false };
        self.sent.remove(&region);
        if let Some(other) = operator.other_region() {
            self.others.remove(&other);
        }
        if given_up.is_none() && operator.final_leader().is_some() {
            self.leader_moves.note(region, at);
        }
        if given_up.is_none() && operator.kind == Kind::Balance {
            let placed = operator.steps.iter().filter_map(|step| match step {
                Step::AddLearner(peer) => Some(peer.id),
                _ => None,
            });
            placed.for_each(|replica| self.replica_moves.note(replica, at));
        }
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(Finished { operator, at, given_up });
        true
    }

    /// Advances every operator to the known state of its region.
    pub fn advance(&mut self, cluster: &Cluster, now: Millis) {
        let regions: Vec<RegionId> = self.running.keys().copied().collect();
        for region in regions {
            self.advance_one(cluster, region, now);
        }
    }

    fn advance_one(&mut self, cluster: &Cluster, region: RegionId, now: Millis) {
        let Some(mut operator) = self.running.get(&region).cloned() else { return };
        let outcome = progress(&ClusterView { cluster, operators: self, now }, &mut operator);
        self.running.insert(region, operator);
        if let Some(given_up) = outcome {
            self.end(region, now, given_up);
        }
    }

    /// Returns the instructions due for leaders on these stores. The same instruction is repeated
    /// after `RESEND_MILLIS` at the earliest.
    pub fn instructions(
        &mut self,
        cluster: &Cluster,
        stores: &[StoreId],
        now: Millis,
    ) -> Vec<Instruction> {
        self.advance(cluster, now);
        let view = ClusterView { cluster, operators: self, now };
        let due = |operator: &Operator| Some((operator.region, instruction(&view, operator)?));
        let mut due: Vec<(RegionId, Instruction)> = self.running.values().filter_map(due).collect();
        due.retain(|(_, instruction)| stores.contains(&instruction.leader.store));
        due.retain(|(region, instruction)| self.note_sent(*region, instruction, now));
        due.into_iter().map(|(_, instruction)| instruction).collect()
    }

    /// Records the instruction as sent if it may be sent now. Returns whether it may.
    fn note_sent(&mut self, region: RegionId, instruction: &Instruction, now: Millis) -> bool {
        let before = self.sent.get(&region).filter(|sent| sent.instruction == *instruction);
        let times = before.map_or(0, |sent| sent.times);
        let pause = (RESEND_MILLIS << times.min(8)).min(RESEND_MILLIS_MAX);
        if before.is_some_and(|sent| now.since(sent.at) < pause) {
            return false;
        }
        let times = if before.is_some() { times + 1 } else { 0 };
        let sent = Sent { instruction: instruction.clone(), at: now, times };
        self.sent.insert(region, sent);
        true
    }

    /// Returns why the operator of a region waits; `None` if it does not.
    pub fn wait_reason(&self, cluster: &Cluster, region: RegionId, now: Millis) -> Option<String> {
        let operator = self.running.get(&region)?;
        let info = cluster.regions().get(region)?;
        let view = ClusterView { cluster, operators: self, now };
        match status(&view, operator, info) {
            Status::Waiting(reason) => Some(reason),
            Status::Due(_, Order::CommitMerge { .. }) => merge_delay(&view, info),
            _ => None,
        }
    }
}

/// Advances `operator` over the steps that are done. `Some`: it ended, in success (`None`) or for a
/// reason.
fn progress(view: &ClusterView<'_>, operator: &mut Operator) -> Option<Option<String>> {
    loop {
        let merges = matches!(
            operator.step(),
            Some(
                Step::PrepareMerge(_)
                    | Step::CommitMerge(_)
                    | Step::RollbackMerge
                    | Step::AbandonMerge
            )
        );
        let Some(info) = view.cluster.regions().get(operator.region) else {
            if matches!(operator.step(), Some(Step::AbandonMerge)) {
                return Some(Some("the target has committed the merge".into()));
            }
            // The source region of a committed merge no longer exists.
            return Some((!merges).then(|| "the region is gone".into()));
        };
        let step = operator.step()?;
        let now = info.region.epoch;
        let may_change_range = merges || matches!(step, Step::Split { .. });
        if now.version != operator.epoch.version && !may_change_range {
            return Some(Some("the region's range has changed".into()));
        }
        match status(view, operator, info) {
            Status::Done => {
                operator.done += 1;
                operator.epoch = now;
                operator.refusal = None;
                if operator.step().is_none() {
                    return Some(None);
                }
            }
            Status::Impossible(reason) => return Some(Some(reason)),
            // Only the operator's own steps may have changed the members, if its plan depends on them.
            // bug placement.ignore_conflict: never
            Status::Due(region, _)
                if region == operator.region && now.conf_version != operator.epoch.conf_version =>
            {
                if !operator.adopt_members(now) {
                    return Some(Some("members changed outside this operator".into()));
                }
            }
            Status::Due(..) | Status::Waiting(_) => {
                let late = view.now.since(operator.created) > operator.timeout_millis;
                let said = operator.refusal.as_ref().map(|said| format!(": {said}"));
                let reason = format!("it timed out{}", said.unwrap_or_default());
                return late.then_some(Some(reason));
            }
        }
    }
}

fn instruction(view: &ClusterView<'_>, operator: &Operator) -> Option<Instruction> {
    let info = view.cluster.regions().get(operator.region)?;
    let Status::Due(region, order) = status(view, operator, info) else { return None };
    let info = view.cluster.regions().get(region)?;
    Some(Instruction {
        operator: operator.id,
        step: operator.done,
        region,
        epoch: info.region.epoch,
        leader: info.leader?,
        order,
    })
}

/// Fails if another operator, which may not be superseded, is under way for the same regions.
fn check_occupied(view: &ClusterView<'_>, operator: &Operator) -> Result<(), String> {
    let operators = view.operators;
    for region in [Some(operator.region), operator.other_region()].into_iter().flatten() {
        let running = operators.of(region).or_else(|| operators.merging_into(region));
        if let Some(running) = running.filter(|running| !may_supersede(view, running, operator)) {
            let text = format!("operator {} is under way for region {region}", running.id);
            return Err(format!("{text}: {running}"));
        }
    }
    Ok(())
}

fn check_limits(view: &ClusterView<'_>, operator: &Operator) -> Result<(), String> {
    let (operators, config) = (view.operators, view.cluster.config());
    let moves = [Kind::Balance, Kind::Drain, Kind::Merge];
    let moving = operators.count(&moves);
    if moves.contains(&operator.kind) && moving >= config.moves_max {
        return Err(format!(
            "moves and merges under way: {moving} of at most {}",
            config.moves_max
        ));
    }
    let evictions = operators.count(&[Kind::Evict]);
    // bug placement.few_evictions: `EVICTIONS_MAX` is `config.leader_moves_max()`
    if operator.kind == Kind::Evict && evictions >= EVICTIONS_MAX {
        return Err(format!(
            "leaders that leave slow or unfit stores: {evictions} of at most {EVICTIONS_MAX}"
        ));
    }
    let leaders = operators.count(&[Kind::Leaders]);
    if operator.kind == Kind::Leaders && leaders >= config.leader_moves_max() {
        return Err(format!(
            "leaders that move: {leaders} of at most {}",
            config.leader_moves_max()
        ));
    }
    let sender = view.cluster.regions().get(operator.region).and_then(|info| info.leader);
    let mut receivers = operator.receivers().peekable();
    if let Some(sender) = sender.filter(|_| receivers.peek().is_some())
        && operators.sending(view.cluster, sender.store) >= config.snapshots_max
    {
        return Err(format!("store {} already sends as many replicas as allowed", sender.store));
    }
    for store in receivers {
        if operators.receiving(store) >= config.snapshots_max {
            return Err(format!("store {store} already receives as many replicas as allowed"));
        }
    }
    Ok(())
}

/// Whether `new` may replace `running`: `running` only improves the balance, and no change of votes
/// is in progress. An administrator may also move leaders and replicas of regions with a merge that
/// is prepared and not committed: what is left of the merge is finished or rolled back afterwards.
fn may_supersede(view: &ClusterView<'_>, running: &Operator, new: &Operator) -> bool {
    let info = view.cluster.regions().get(running.region);
    let is_merging = info.is_some_and(|i| matches!(i.region.phase, RegionPhase::Merging { .. }));
    if is_merging && new.kind == Kind::Manual && !new.merges() {
        // bug placement.merge_bars_moves: return false;
        return true;
    }
    let settled =
        info.is_some_and(|i| !i.region.is_joint() && i.region.phase == RegionPhase::Normal);
    new.kind <= Kind::Repair && running.kind >= Kind::Evict && settled
}

#[cfg(test)]
mod tests;
