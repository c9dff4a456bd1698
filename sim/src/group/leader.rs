//! Leader of the placement group. It loads the state once in a term, and changes it by one proposal
//! at a time in that term. If a proposal fails, the state in memory is dropped.

use super::orders::ordered;
use super::{Answer, Call, Report, StalePeer};
use crate::check::orders;
use crate::plan::MS;
use crate::world::{Happening, Requester, World};
use stele_placement::{
    Cluster, DrainGoal, Kind, LeaderState, Millis, Operator, OperatorId, PairChange, Refused,
    SYSTEM_REGION, Step, StoreState, leader, pairs,
};
use stele_raftstore::{Done, Header, Input, Reply, Write};
use stele_storage::{EngineView, ScanOptions, StateMachine};
use stele_types::{CommandBuilder, KeyRange, Peer, PeerRole, Region, RegionEpoch, StoreId, Term};

const PLACEMENT_NANOS: u64 = 100 * MS;

/// Placement leader's state on one node.
pub struct GroupLeader {
    /// State of the current term.
    pub state: LeaderState,
    proposing: Option<Vec<PairChange>>,
    then: Vec<Then>,
    joins: Vec<(u64, u64, Call)>,
    heartbeat_changes: Vec<PairChange>,
    /// Settings that an administrator changed.
    settings: Vec<PairChange>,
}

/// Action after a proposal is committed.
enum Then {
    Answer { node: u64, incarnation: u64, answer: Answer },
}

impl World {
    fn millis(&self, node: u64) -> Millis {
        Millis(self.nodes.get(&node).map_or(0, |node| node.local(self.now)) / MS)
    }

    /// Returns the store of a node that leads region 1, and its term.
    fn leading_slot(&self, node: u64) -> Option<(u64, u64)> {
        self.slots_of(node).into_iter().find_map(|slot| {
            let reader = self.slots.get(&slot)?.readers()?.get(SYSTEM_REGION)?;
            Some((slot, reader.leading_term()?))
        })
    }

    pub(crate) fn run_placement(&mut self, id: u64, incarnation: u64) {
        if !self.nodes.get(&id).is_some_and(|node| node.up && node.incarnation == incarnation) {
            return;
        }
        self.after(PLACEMENT_NANOS, Happening::RunPlacement { node: id, incarnation });
        let Some((slot, term)) = self.leading_slot(id) else {
            return self.group_lost(id, u64::MAX);
        };
        let Some(member) = self.nodes.get_mut(&id).map(|node| &mut node.member) else { return };
        match &member.leader {
            Some(leader) if leader.state.term == Term(term) => self.housekeep(id, slot),
            _ if member.loading == Some(term) => {}
            _ => {
                (member.leader, member.loading) = (None, Some(term));
                self.group_read(slot, Requester::Load { node: id, term }, term);
            }
        }
    }

    pub(crate) fn group_lost(&mut self, id: u64, _term: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.member.leader, node.member.loading) = (None, None);
        }
    }

    pub(crate) fn group_loaded(&mut self, id: u64, slot: u64, term: u64, reply: &Reply) {
        let now = self.millis(id);
        let still = self.leading_slot(id) == Some((slot, term));
        if !still || !matches!(reply, Reply::Done(Done::ReadReady { .. })) {
            return self.group_lost(id, term);
        }
        let Some(engine) = self.engine(slot) else { return };
        let range = pairs::state_range();
        let found = engine.view().and_then(|view| view.scan(&ScanOptions::new(range, usize::MAX)));
        let Ok(found) = found else { return self.group_lost(id, term) };
        let pairs = found.into_iter().map(|pair| (pair.key, pair.value));
        let unix_seconds = self.nodes.get(&id).map_or(0, |node| node.now(self.now).unix_seconds);
        match Cluster::load(pairs, now, unix_seconds) {
            Ok(Some(cluster)) => {
                self.trace.note(self.now, id, slot, || {
                    format!("leads the placement group in term {term}")
                });
                let Some(node) = self.nodes.get_mut(&id) else { return };
                node.member.loading = None;
                node.member.leader = Some(GroupLeader::new(Term(term), cluster));
            }
            Ok(None) => self.bootstrap(id, slot, term),
            Err(error) => self.fail(format!("the placement state is invalid: {error}")),
        }
    }

    /// Proposes the bootstrap pairs and the settings of this run, on node 1.
    fn bootstrap(&mut self, id: u64, slot: u64, term: u64) {
        if id != 1 {
            return self.group_lost(id, term);
        }
        let mut changes = self.bootstrap_plan().pairs();
        let settings = self.plan.settings.iter();
        changes.extend(settings.map(|(name, value)| pairs::setting(name, *value)));
        self.propose(id, slot, term, &changes);
    }

    fn propose(&mut self, id: u64, slot: u64, term: u64, changes: &[PairChange]) {
        let mut command = CommandBuilder::new();
        for change in changes {
            let added = match &change.value {
                Some(value) => command.put(&change.key, value, 0).map(|_| ()),
                None => command.delete(&change.key).map(|_| ()),
            };
            if let Err(error) = added {
                return self.fail(format!("a decision does not fit a command: {error}"));
            }
        }
        let command = command.build().bytes().clone();
        let header = Header { region: SYSTEM_REGION, term, ..self.patient(slot) };
        self.request(slot, Requester::Proposal { node: id, term }, |id| {
            Input::Write(Write { id, header, command, frees: true })
        });
    }

    pub(crate) fn group_proposed(&mut self, id: u64, term: u64, reply: &Reply) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let written = matches!(reply, Reply::Done(Done::Written { .. }));
        let this = |leader: &&mut GroupLeader| leader.state.term == Term(term) && written;
        let Some(leader) = node.member.leader.as_mut().filter(this) else {
            // The persisted state is unknown, or holds only the bootstrap pairs: load it again.
            return self.group_lost(id, term);
        };
        let changes = leader.proposing.take().unwrap_or_default();
        let applied = leader.state.apply(&changes);
        let then = std::mem::take(&mut leader.then);
        if let Err(error) = applied {
            return self.fail(format!("a committed decision is invalid: {error}"));
        }
        for Then::Answer { node, incarnation, answer } in then {
            self.answer(id, node, incarnation, answer);
        }
    }

    fn housekeep(&mut self, id: u64, slot: u64) {
        let now = self.millis(id);
        let goals = self.nemesis.goals.clone();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let unix_seconds = node.now(self.now).unix_seconds;
        let Some(leader) = node.member.leader.as_mut().filter(|leader| leader.proposing.is_none())
        else {
            return;
        };
        let changes = leader.due(&goals, now, unix_seconds);
        let is_met = |(id, goal): &(StoreId, DrainGoal)| {
            let state = leader.state.cluster.store(*id).map(|it| it.state);
            state.is_some_and(|state| match goal {
                DrainGoal::Cancel => state == StoreState::Up,
                DrainGoal::Drain | DrainGoal::Remove => state != StoreState::Up,
            })
        };
        let met: Vec<_> = goals.iter().copied().filter(is_met).collect();
        self.nemesis.goals.retain(|goal| !met.contains(goal));
        match changes {
            Ok(changes) if changes.is_empty() => {
                let before = orders::running(&leader.state);
                leader.state.schedule(now);
                if let Some(text) = orders::invalid_admission(&leader.state, &before, now) {
                    self.fail(format!("the placement group of node {id} {text}"));
                }
            }
            Ok(changes) => {
                leader.proposing = Some(changes.clone());
                let Term(term) = leader.state.term;
                self.propose(id, slot, term, &changes);
            }
            Err(text) => self.fail(text),
        }
    }

    pub(crate) fn called(&mut self, id: u64, from: u64, incarnation: u64, call: Call) {
        let now = self.millis(id);
        let leads = self.leading_slot(id).map(|(_, term)| Term(term));
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.up) else { return };
        let Some(leader) = node.member.leader.as_mut().filter(|it| Some(it.state.term) == leads)
        else {
            return;
        };
        let report = match call {
            Call::Join { .. } => {
                leader.joins.retain(|(node, ..)| *node != from);
                return leader.joins.push((from, incarnation, call));
            }
            Call::Report(report) => report,
        };
        match leader.state.cluster.plan_heartbeat(&report.node, &report.stores) {
            Ok(changes) if changes.is_empty() => {
                let known = orders::epochs(&leader.state.cluster, &report);
                leader.accept_report(&report, now);
                let regressed = orders::regressed(&leader.state.cluster, &known);
                let reply = leader.reply_to(&report, now);
                let Term(leader_term) = leader.state.term;
                let invalid =
                    reply.due.iter().find_map(|it| orders::invalid_order(&leader.state, it, now));
                let removed = leader.removed_peers(&report);
                let owners = leader.owners(&report);
                if let Some(text) = regressed.or(invalid) {
                    self.fail(format!("the placement group of node {id} {text}"));
                }
                self.check_removed(&removed);
                if self.nemesis.makes_mistakes() {
                    self.order_harmful_removal(id, now);
                }
                let answer = Answer::ReportReply {
                    leader: id,
                    orders: reply.due.iter().map(ordered).collect(),
                    removed: removed.into_iter().map(|(peer, _)| peer).collect(),
                    owners,
                    all_wanted: reply.all_wanted,
                    soon: reply.is_busy,
                    term: leader_term,
                    leases: reply.leases,
                };
                self.answer(id, from, incarnation, answer);
            }
            // Applied when the node reports again.
            Ok(changes) => leader.heartbeat_changes = changes,
            Err(reason) => {
                self.trace.note(self.now, id, 0, || format!("refuses a report: {reason}"));
            }
        }
    }

    /// Orders the removal of a replica that its region needs, like a mistaken administrator.
    fn order_harmful_removal(&mut self, id: u64, now: Millis) {
        let leader = self.nodes.get_mut(&id).and_then(|node| node.member.leader.as_mut());
        let Some(leader) = leader else { return };
        let Some((info, peer)) = orders::required_voter(&leader.state.cluster, now) else { return };
        let peer = Peer { role: PeerRole::Learner, ..peer };
        let operator = Operator {
            id: OperatorId(0),
            region: info.region.id,
            epoch: info.region.epoch,
            kind: Kind::Manual,
            reason: "a mistake".into(),
            steps: vec![
                Step::Enter { promote: Vec::new(), demote: vec![peer] },
                Step::Leave,
                Step::Remove(peer),
            ],
            done: 0,
            refusal: None,
            created: Millis(0),
            timeout_millis: 10_000,
        };
        let text = operator.to_string();
        if leader.state.operators.admit(&mut leader.state.cluster, operator, now).is_ok() {
            self.fail(format!(
                "the placement group of node {id} begins {text}, which costs the region its quorum"
            ));
        }
    }

    fn answer(&mut self, from: u64, node: u64, incarnation: u64, answer: Answer) {
        if self.net.is_group_cut {
            return;
        }
        let ways = match from == node {
            true => vec![(1_000, false)],
            false => self.net.deliveries(&mut self.rngs.net, (from, node), self.now, 200),
        };
        for (delay, _) in ways.into_iter().filter(|(_, is_damaged)| !is_damaged) {
            let answer = Box::new(answer.clone());
            self.after(delay, Happening::Answer { node, incarnation, answer });
        }
    }

    /// Changes a setting of the cluster, if the placement group has a leader that stays.
    pub fn change_setting(&mut self, name: &'static str, value: u64) {
        for node in self.nodes.values_mut() {
            if let Some(leader) = node.member.leader.as_mut() {
                leader.settings.push(pairs::setting(name, value));
            }
        }
    }

    /// Returns ids for regions and peers, if the placement group has a leader with unused ids.
    pub(crate) fn take_ids(&mut self, count: u64) -> Option<std::ops::Range<u64>> {
        let leaders: Vec<(u64, u64)> =
            self.nodes.keys().filter_map(|id| Some((self.leading_slot(*id)?.1, *id))).collect();
        let (term, id) = leaders.into_iter().max()?;
        let leader = self.nodes.get_mut(&id)?.member.leader.as_mut();
        leader.filter(|leader| leader.state.term == Term(term))?.state.cluster.take_ids(count)
    }
}

impl GroupLeader {
    fn new(term: Term, cluster: Cluster) -> Self {
        let (proposing, then, joins, heartbeat_changes, settings) = Default::default();
        let state = LeaderState::new(term, cluster);
        Self { state, proposing, then, joins, heartbeat_changes, settings }
    }

    /// Returns the changes to persist now. Fails with an order that should have been refused.
    fn due(
        &mut self,
        goals: &[(StoreId, DrainGoal)],
        now: Millis,
        unix_seconds: u64,
    ) -> Result<Vec<PairChange>, String> {
        let cluster = &self.state.cluster;
        if let Some((node, incarnation, Call::Join { address, slots, stores })) = self.joins.pop() {
            let Ok((ids, changes)) = cluster.plan_join(&address, &stores) else {
                return Ok(Vec::new());
            };
            let ids: Vec<(u64, StoreId)> = slots.into_iter().zip(ids).collect();
            let answer = Answer::Joined { ids };
            self.then.push(Then::Answer { node, incarnation, answer });
            // Nodes that already joined get the same answer, by a decision that changes nothing.
            return Ok(match changes.is_empty() {
                true => vec![pairs::members(cluster.members_version())],
                false => changes,
            });
        }
        if !self.heartbeat_changes.is_empty() {
            return Ok(std::mem::take(&mut self.heartbeat_changes));
        }
        if !self.settings.is_empty() {
            return Ok(std::mem::take(&mut self.settings));
        }
        for (id, goal) in goals {
            match cluster.plan_state(*id, *goal, now) {
                Ok(changes) if !changes.is_empty() => {
                    return match orders::invalid_removal(cluster, *id, *goal, now) {
                        Some(text) => Err(text),
                        None => Ok(changes),
                    };
                }
                _ => {}
            }
        }
        let behind = self.state.take_unsaved_regions();
        let due = LeaderState::plan_due(&self.state.cluster, behind, now, unix_seconds);
        due.map_err(|error| format!("no decision can be made: {error}"))
    }

    fn accept_report(&mut self, report: &Report, now: Millis) {
        let refusals = report.refusals.iter().cloned();
        let refusals = refusals.map(|(operator, step, reason)| Refused {
            operator,
            step,
            reason,
            is_final: false,
        });
        let report = leader::Report {
            node: &report.node,
            sequence: report.sequence,
            stores: &report.stores,
            regions: report.regions.clone(),
            is_full: report.is_full,
            refusals: refusals.collect(),
        };
        self.state.accept_report(report, now);
    }

    fn reply_to(&mut self, report: &Report, now: Millis) -> leader::ReportReply {
        let stores: Vec<StoreId> = report.stores.iter().map(|store| store.id).collect();
        self.state.reply_to(&report.node.address, &stores, now)
    }

    /// Returns the owners of orphaned ranges on the node's stores.
    fn owners(&self, report: &Report) -> Vec<(StoreId, Vec<Region>)> {
        let owners = |ranges: &Vec<KeyRange>| {
            let mut owners = Vec::new();
            for range in ranges {
                let found = self.state.cluster.regions().in_range(range);
                owners.extend(found.map(|info| info.region.clone()));
            }
            owners
        };
        let orphaned_ranges =
            report.orphaned_ranges.iter().filter(|(_, ranges)| !ranges.is_empty());
        orphaned_ranges.map(|(store, ranges)| (*store, owners(ranges))).collect()
    }

    /// Returns the stale peers of a report that are no longer members, and the epoch that excludes
    /// them.
    fn removed_peers(&self, report: &Report) -> Vec<(StalePeer, RegionEpoch)> {
        let stale_peers = report.stale_peers.iter().copied();
        let later = |it: &StalePeer| self.state.cluster.left_behind(it.region, it.peer, it.epoch);
        stale_peers.filter_map(|peer| Some((peer, later(&peer)?))).collect()
    }
}
