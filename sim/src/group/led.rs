//! The leader's side: state loaded once in a term, changed by proposals of that very term, one after
//! the other; what is in memory is dropped when one fails.

use super::orders::ordered;
use super::{Answer, Call, Report, Stray};
use crate::plan::MS;
use crate::world::{Happening, Who, World};
use std::collections::BTreeMap;
use stele_placement::schedule::round;
use stele_placement::{
    Cluster, DrainGoal, Millis, Operators, PairChange, SYSTEM_REGION, StoreState, pairs,
};
use stele_raftstore::{Header, Input, Reply, Write};
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{CommandBuilder, StoreId};

const TEND_NANOS: u64 = 100 * MS;
const ROUND_MILLIS: u64 = 1_000;
const BEHIND_BYTES_MAX: usize = 256 << 10;
const IDS_AT_HAND: u64 = 64;

/// See the module.
pub struct Led {
    term: u64,
    /// The state.
    pub cluster: Cluster,
    /// What is under way.
    pub operators: Operators,
    reports: BTreeMap<String, (u64, u64)>,
    is_news: bool,
    scheduled: Millis,
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
            Some(led) if led.term == term => self.housekeep(id, slot),
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
                node.member.led = Some(Led::new(term, cluster));
            }
            Ok(None) => self.give_birth(id, slot, term),
            Err(error) => self.fail(format!("the placement state is not understood: {error}")),
        }
    }

    /// The founding node puts the first pairs, and the settings of this run.
    fn give_birth(&mut self, id: u64, slot: u64, term: u64) {
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
        let Some(led) = node.member.led.as_mut().filter(|led| led.term == term && written) else {
            // What is persisted is not known any more, or is the birth: start over from there.
            return self.group_lost(id, term);
        };
        let changes = led.proposing.take().unwrap_or_default();
        led.is_news = true;
        let applied = led.cluster.apply(&changes);
        let then = std::mem::take(&mut led.then);
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
        let Some(led) = node.member.led.as_mut().filter(|led| led.proposing.is_none()) else {
            return;
        };
        let changes = led.due(&goals, now);
        let is_met = |(id, goal): &(StoreId, DrainGoal)| {
            let state = led.cluster.store(*id).map(|it| it.state);
            state.is_some_and(|state| match goal {
                DrainGoal::Cancel => state == StoreState::Up,
                DrainGoal::Drain | DrainGoal::Remove => state != StoreState::Up,
            })
        };
        let met: Vec<_> = goals.iter().copied().filter(is_met).collect();
        if changes.is_empty() {
            led.schedule(now);
        } else {
            led.proposing = Some(changes.clone());
            let term = led.term;
            self.propose(id, slot, term, &changes);
        }
        self.nemesis.goals.retain(|goal| !met.contains(goal));
    }

    pub(crate) fn called(&mut self, id: u64, from: u64, life: u64, call: Call) {
        let now = self.millis(id);
        let leads = self.leading_slot(id).map(|(_, term)| term);
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.up) else { return };
        let Some(led) = node.member.led.as_mut().filter(|led| Some(led.term) == leads) else {
            return;
        };
        match call {
            Call::Join { .. } => {
                led.joins.retain(|(node, ..)| *node != from);
                led.joins.push((from, life, call));
            }
            Call::Report(report) => match led.take_in(&report, now) {
                Ok(changes) if changes.is_empty() => {
                    let answer = led.answer(id, &report, now);
                    self.answer(id, from, life, answer);
                }
                Ok(changes) => led.heard = changes,
                Err(why) => {
                    self.trace.note(self.now, id, 0, || format!("refuses a report: {why}"));
                }
            },
        }
    }

    fn answer(&mut self, from: u64, node: u64, life: u64, answer: Answer) {
        let ways = match from == node {
            true => vec![(1_000, false)],
            false => self.net.deliveries(&mut self.dice.net, (from, node), self.now, 200),
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
        let led = self.nodes.get_mut(&id)?.member.led.as_mut().filter(|led| led.term == term)?;
        led.cluster.take_ids(count)
    }
}

impl Led {
    fn new(term: u64, cluster: Cluster) -> Self {
        Self {
            term,
            cluster,
            operators: Operators::default(),
            reports: BTreeMap::new(),
            is_news: true,
            scheduled: Millis(0),
            proposing: None,
            then: Vec::new(),
            joins: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// What is to be persisted now.
    fn due(&mut self, goals: &[(StoreId, DrainGoal)], now: Millis) -> Vec<PairChange> {
        if let Some((node, life, Call::Join { address, slots, stores })) = self.joins.pop() {
            let Ok((ids, changes)) = self.cluster.plan_join(&address, &stores) else {
                return Vec::new();
            };
            let ids: Vec<(u64, StoreId)> = slots.into_iter().zip(ids).collect();
            let answer = Answer::Joined { ids };
            self.then.push(Then::Answer { node, life, answer });
            // Those that joined before are told again, by a decision that changes nothing.
            return match changes.is_empty() {
                true => vec![pairs::members(self.cluster.members_version())],
                false => changes,
            };
        }
        if !self.heard.is_empty() {
            return std::mem::take(&mut self.heard);
        }
        for (id, goal) in goals {
            match self.cluster.plan_state(*id, *goal, now) {
                Ok(changes) if !changes.is_empty() => return changes,
                _ => {}
            }
        }
        let mut changes = self.cluster.take_region_changes(BEHIND_BYTES_MAX);
        changes.extend(self.cluster.plan_burials(now));
        if self.cluster.ids_reserved() < IDS_AT_HAND {
            changes.extend(self.cluster.plan_ids(IDS_AT_HAND).unwrap_or_default());
        }
        changes
    }

    fn schedule(&mut self, now: Millis) {
        if !self.is_news && now.since(self.scheduled) < ROUND_MILLIS {
            return;
        }
        (self.is_news, self.scheduled) = (false, now);
        self.cluster.note_drains(now);
        round(&mut self.cluster, &mut self.operators, now);
    }

    /// Takes a report in; what of it is to be persisted comes back.
    fn take_in(&mut self, report: &Report, now: Millis) -> Result<Vec<PairChange>, String> {
        let planned = self.cluster.plan_heard(&report.node, &report.stores);
        let changes = planned.map_err(|error| error.to_string())?;
        self.cluster.hear(&report.node, &report.stores, now);
        let this = (report.node.started_at, report.sequence);
        let last = self.reports.insert(report.node.address.clone(), this);
        if last.is_some_and(|last| this <= last) {
            return Ok(changes);
        }
        self.is_news |= last.is_none();
        for region in &report.regions {
            let known = self.cluster.regions().get(region.region.id);
            let before = known.map(|info| (info.region.epoch, info.leader));
            let next = Some((region.region.epoch, Some(region.leader)));
            let is_taken = self.cluster.observe(region.clone(), now).is_ok();
            self.is_news |= is_taken && before != next;
        }
        if report.is_full {
            self.cluster.note_full_report(&report.node.address);
        }
        for (id, step, why) in &report.refusals {
            self.operators.note_refusal(*id, *step, why.clone(), false, now);
        }
        Ok(changes)
    }

    fn answer(&mut self, leader: u64, report: &Report, now: Millis) -> Answer {
        let stores: Vec<StoreId> = report.stores.iter().map(|store| store.id).collect();
        let due = self.operators.instructions(&self.cluster, &stores, now);
        let is_led_here = |region| {
            let info = self.cluster.regions().get(region);
            let leader = info.and_then(|info| info.leader);
            leader.is_some_and(|leader| stores.contains(&leader.store))
        };
        let soon = self.operators.running().any(|operator| is_led_here(operator.region));
        let gone = |stray: &&Stray| {
            self.cluster.left_behind(stray.region, stray.peer, stray.epoch).is_some()
        };
        Answer::Told {
            leader,
            orders: due.iter().map(ordered).collect(),
            gone: report.strays.iter().filter(gone).copied().collect(),
            all_wanted: !self.cluster.is_informed_by(&report.node.address),
            soon,
        }
    }
}
