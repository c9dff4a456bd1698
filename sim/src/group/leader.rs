//! The leader's side: state loaded once in a term, changed by proposals of that very term, one after
//! the other; what is in memory is dropped when one fails.

use super::orders::ordered;
use super::{Answer, Call, Report, Stray};
use crate::check::orders;
use crate::plan::MS;
use crate::world::{Happening, Who, World};
use stele_placement::{
    Cluster, DrainGoal, Kind, LeaderState, Millis, Operator, OperatorId, PairChange, Refused,
    SYSTEM_REGION, Step, StoreState, leader, pairs,
};
use stele_raftstore::{Header, Input, Reply, Write};
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{CommandBuilder, KeyRange, Peer, PeerRole, Region, RegionEpoch, StoreId, Term};

const TEND_NANOS: u64 = 100 * MS;

/// See the module.
pub struct Lead {
    /// The state, and what is under way.
    pub led: LeaderState,
    proposing: Option<Vec<PairChange>>,
    then: Vec<Then>,
    joins: Vec<(u64, u64, Call)>,
    heard: Vec<PairChange>,
}

/// What is done once a proposal is committed.
enum Then {
    Answer { node: u64, life: u64, answer: Answer },
}

impl World {
    fn millis(&self, node: u64) -> Millis {
        Millis(self.nodes.get(&node).map_or(0, |node| node.local(self.now)) / MS)
    }

    /// The store of a node that leads region 1, and its term.
    fn leading_slot(&self, node: u64) -> Option<(u64, u64)> {
        self.slots_of(node).into_iter().find_map(|slot| {
            let reader = self.slots.get(&slot)?.readers()?.get(SYSTEM_REGION)?;
            Some((slot, reader.leading_term()?))
        })
    }

    pub(crate) fn tend(&mut self, id: u64, life: u64) {
        if !self.nodes.get(&id).is_some_and(|node| node.up && node.life == life) {
            return;
        }
        self.after(TEND_NANOS, Happening::Tend { node: id, life });
        let Some((slot, term)) = self.leading_slot(id) else {
            return self.group_lost(id, u64::MAX);
        };
        let Some(member) = self.nodes.get_mut(&id).map(|node| &mut node.member) else { return };
        match &member.led {
            Some(lead) if lead.led.term == Term(term) => self.housekeep(id, slot),
            _ if member.loading == Some(term) => {}
            _ => {
                (member.led, member.loading) = (None, Some(term));
                let request = self.ask(slot, Who::Load { node: id, term });
                self.group_read(slot, request, term);
            }
        }
    }

    pub(crate) fn group_lost(&mut self, id: u64, _term: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            (node.member.led, node.member.loading) = (None, None);
        }
    }

    pub(crate) fn group_loaded(&mut self, id: u64, slot: u64, term: u64, reply: &Reply) {
        let now = self.millis(id);
        let still = self.leading_slot(id) == Some((slot, term));
        if !still || !matches!(reply, Reply::ReadReady { .. }) {
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
                self.trace.note(self.now, id, slot, || format!("tends the cluster, term {term}"));
                let Some(node) = self.nodes.get_mut(&id) else { return };
                node.member.loading = None;
                node.member.led = Some(Lead::new(Term(term), cluster));
            }
            Ok(None) => self.bootstrap(id, slot, term),
            Err(error) => self.fail(format!("the placement state is not understood: {error}")),
        }
    }

    /// The founding node puts the first pairs, and the settings of this run.
    fn bootstrap(&mut self, id: u64, slot: u64, term: u64) {
        if id != 1 {
            return self.group_lost(id, term);
        }
        let mut changes = self.birth().pairs();
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
        let request = self.ask(slot, Who::Proposal { node: id, term });
        let header = Header { region: SYSTEM_REGION, term, ..self.patient(slot) };
        let write = Write { id: request, header, command, frees: true };
        self.push(slot, Input::Write(write));
    }

    pub(crate) fn group_proposed(&mut self, id: u64, term: u64, reply: &Reply) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let written = matches!(reply, Reply::Written { .. });
        let this = |lead: &&mut Lead| lead.led.term == Term(term) && written;
        let Some(lead) = node.member.led.as_mut().filter(this) else {
            // What is persisted is not known any more, or is the birth: start over from there.
            return self.group_lost(id, term);
        };
        let changes = lead.proposing.take().unwrap_or_default();
        let applied = lead.led.apply(&changes);
        let then = std::mem::take(&mut lead.then);
        if let Err(error) = applied {
            return self.fail(format!("a committed decision is not understood: {error}"));
        }
        for Then::Answer { node, life, answer } in then {
            self.answer(id, node, life, answer);
        }
    }

    fn housekeep(&mut self, id: u64, slot: u64) {
        let now = self.millis(id);
        let goals = self.nemesis.goals.clone();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        let unix_seconds = node.now(self.now).unix_seconds;
        let Some(lead) = node.member.led.as_mut().filter(|lead| lead.proposing.is_none()) else {
            return;
        };
        let changes = lead.due(&goals, now, unix_seconds);
        let is_met = |(id, goal): &(StoreId, DrainGoal)| {
            let state = lead.led.cluster.store(*id).map(|it| it.state);
            state.is_some_and(|state| match goal {
                DrainGoal::Cancel => state == StoreState::Up,
                DrainGoal::Drain | DrainGoal::Remove => state != StoreState::Up,
            })
        };
        let met: Vec<_> = goals.iter().copied().filter(is_met).collect();
        self.nemesis.goals.retain(|goal| !met.contains(goal));
        match changes {
            Ok(changes) if changes.is_empty() => {
                lead.led.schedule(now);
                if let Some(text) = orders::wrongly_admitted(&lead.led, now) {
                    self.fail(format!("the placement group of node {id} {text}"));
                }
            }
            Ok(changes) => {
                lead.proposing = Some(changes.clone());
                let Term(term) = lead.led.term;
                self.propose(id, slot, term, &changes);
            }
            Err(text) => self.fail(text),
        }
    }

    pub(crate) fn called(&mut self, id: u64, from: u64, life: u64, call: Call) {
        let now = self.millis(id);
        let leads = self.leading_slot(id).map(|(_, term)| Term(term));
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.up) else { return };
        let Some(lead) = node.member.led.as_mut().filter(|it| Some(it.led.term) == leads) else {
            return;
        };
        let report = match call {
            Call::Join { .. } => {
                lead.joins.retain(|(node, ..)| *node != from);
                return lead.joins.push((from, life, call));
            }
            Call::Report(report) => report,
        };
        match lead.led.cluster.plan_heartbeat(&report.node, &report.stores) {
            Ok(changes) if changes.is_empty() => {
                let known = orders::epochs(&lead.led.cluster, &report);
                lead.accept_report(&report, now);
                let back = orders::gone_back(&lead.led.cluster, &known);
                let told = lead.reply_to(&report, now);
                let wrong = told.due.iter().find_map(|it| orders::wrong(&lead.led, it, now));
                let gone = lead.left_behind(&report);
                let owners = lead.owners(&report);
                if let Some(text) = back.or(wrong) {
                    self.fail(format!("the placement group of node {id} {text}"));
                }
                self.check_gone(&gone);
                if self.nemesis.makes_mistakes() {
                    self.remove_by_hand(id, now);
                }
                let answer = Answer::Told {
                    leader: id,
                    orders: told.due.iter().map(ordered).collect(),
                    gone: gone.into_iter().map(|(stray, _)| stray).collect(),
                    owners,
                    all_wanted: told.all_wanted,
                    soon: told.is_busy,
                };
                self.answer(id, from, life, answer);
            }
            // Taken in when the node reports again.
            Ok(changes) => lead.heard = changes,
            Err(why) => {
                self.trace.note(self.now, id, 0, || format!("refuses a report: {why}"));
            }
        }
    }

    /// A person orders a replica to go that its region can't spare.
    fn remove_by_hand(&mut self, id: u64, now: Millis) {
        let lead = self.nodes.get_mut(&id).and_then(|node| node.member.led.as_mut());
        let Some(lead) = lead else { return };
        let Some((info, peer)) = orders::spared_by_nobody(&lead.led.cluster, now) else { return };
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
        if lead.led.operators.admit(&mut lead.led.cluster, operator, now).is_ok() {
            self.fail(format!(
                "the placement group of node {id} begins {text}, which costs a quorum"
            ));
        }
    }

    fn answer(&mut self, from: u64, node: u64, life: u64, answer: Answer) {
        if self.net.is_group_cut {
            return;
        }
        let ways = match from == node {
            true => vec![(1_000, false)],
            false => self.net.deliveries(&mut self.rngs.net, (from, node), self.now, 200),
        };
        for (delay, _) in ways.into_iter().filter(|(_, is_damaged)| !is_damaged) {
            let answer = Box::new(answer.clone());
            self.after(delay, Happening::Answer { node, life, answer });
        }
    }

    /// Numbers for regions and peers, if the placement group has a leader that has some.
    pub(crate) fn take_ids(&mut self, count: u64) -> Option<std::ops::Range<u64>> {
        let leaders: Vec<(u64, u64)> =
            self.nodes.keys().filter_map(|id| Some((self.leading_slot(*id)?.1, *id))).collect();
        let (term, id) = leaders.into_iter().max()?;
        let lead = self.nodes.get_mut(&id)?.member.led.as_mut();
        lead.filter(|lead| lead.led.term == Term(term))?.led.cluster.take_ids(count)
    }
}

impl Lead {
    fn new(term: Term, cluster: Cluster) -> Self {
        let (proposing, then, joins, heard) = Default::default();
        Self { led: LeaderState::new(term, cluster), proposing, then, joins, heard }
    }

    /// What is to be persisted now; fails with what should have been refused.
    fn due(
        &mut self,
        goals: &[(StoreId, DrainGoal)],
        now: Millis,
        unix_seconds: u64,
    ) -> Result<Vec<PairChange>, String> {
        let cluster = &self.led.cluster;
        if let Some((node, life, Call::Join { address, slots, stores })) = self.joins.pop() {
            let Ok((ids, changes)) = cluster.plan_join(&address, &stores) else {
                return Ok(Vec::new());
            };
            let ids: Vec<(u64, StoreId)> = slots.into_iter().zip(ids).collect();
            let answer = Answer::Joined { ids };
            self.then.push(Then::Answer { node, life, answer });
            // Those that joined before are told again, by a decision that changes nothing.
            return Ok(match changes.is_empty() {
                true => vec![pairs::members(cluster.members_version())],
                false => changes,
            });
        }
        if !self.heard.is_empty() {
            return Ok(std::mem::take(&mut self.heard));
        }
        for (id, goal) in goals {
            match cluster.plan_state(*id, *goal, now) {
                Ok(changes) if !changes.is_empty() => {
                    return match orders::too_few_left(cluster, *id, *goal, now) {
                        Some(text) => Err(text),
                        None => Ok(changes),
                    };
                }
                _ => {}
            }
        }
        let behind = self.led.take_behind();
        let due = LeaderState::plan_due(&self.led.cluster, behind, now, unix_seconds);
        due.map_err(|error| format!("nothing can be decided: {error}"))
    }

    fn accept_report(&mut self, report: &Report, now: Millis) {
        let refusals = report.refusals.iter().cloned();
        let refusals =
            refusals.map(|(operator, step, why)| Refused { operator, step, why, is_final: false });
        let report = leader::Report {
            node: &report.node,
            sequence: report.sequence,
            stores: &report.stores,
            regions: report.regions.clone(),
            is_full: report.is_full,
            refusals: refusals.collect(),
        };
        self.led.accept_report(report, now);
    }

    fn reply_to(&mut self, report: &Report, now: Millis) -> leader::ReportReply {
        let stores: Vec<StoreId> = report.stores.iter().map(|store| store.id).collect();
        self.led.reply_to(&report.node.address, &stores, now)
    }

    /// Whose the keys are that are unclaimed on the node's stores.
    fn owners(&self, report: &Report) -> Vec<(StoreId, Vec<Region>)> {
        let owners = |ranges: &Vec<KeyRange>| {
            let mut owners = Vec::new();
            for range in ranges {
                let found = self.led.cluster.regions().in_range(range);
                owners.extend(found.map(|info| info.region.clone()));
            }
            owners
        };
        let orphaned_ranges =
            report.orphaned_ranges.iter().filter(|(_, ranges)| !ranges.is_empty());
        orphaned_ranges.map(|(store, ranges)| (*store, owners(ranges))).collect()
    }

    /// Replicas of a report that are members no more, and since which epoch.
    fn left_behind(&self, report: &Report) -> Vec<(Stray, RegionEpoch)> {
        let strays = report.strays.iter().copied();
        let later = |it: &Stray| self.led.cluster.left_behind(it.region, it.peer, it.epoch);
        strays.filter_map(|stray| Some((stray, later(&stray)?))).collect()
    }
}
