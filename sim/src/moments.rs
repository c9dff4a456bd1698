//! Moments in virtual time: whichever node takes itself for the leader of the placement group takes them, by
//! the coordinator of the server. This module adds the network, and the parts of nodes in a moment.

use crate::check::moments::{Complete, Written};
use crate::plan::{MS, Plan, fork};
use crate::world::{Happening, Requester, World};
use std::collections::{BTreeMap, BTreeSet};
use stele_node::moment::{Coordinator, CutPart, Next};
use stele_placement::StoreState;
use stele_replica::{Done, Header, MomentCall, MomentStep, PAUSE_NANOS, Reply};
use stele_types::{Level, MomentId, Prng, RegionId, RegionKind, Term};

/// Time in which the regions of a node answer; it answers with what it has.
const NODE_NANOS: u64 = PAUSE_NANOS / 4 * 3;
/// Most by which a late call or answer is later than others.
const LATE_NANOS_MAX: u64 = 120 * MS;
/// Time in which nodes are sealed.
const SEALED_NANOS: u64 = 500 * MS;

/// Moments of a run.
pub struct Moments {
    prng: Prng,
    is_on: bool,
    /// Node that all calls and answers go to or come from; others are lost.
    asked_only: Option<u64>,
    under_way: BTreeMap<u64, Taking>,
    collecting: BTreeMap<Asked, Collecting>,
    /// Complete moments, in the order of their ends.
    pub complete: Vec<Complete>,
    /// Acknowledged writes, in the order of their answers.
    pub written: Vec<Written>,
    /// Number of the event with which each region was seen first.
    pub since: BTreeMap<RegionId, u64>,
}

/// Moment that a node takes.
struct Taking {
    coordinator: Coordinator<u64>,
    /// Number of the event of its request.
    requested: u64,
    incarnation: u64,
    /// Store that leads the placement group on that node, and its term.
    leads: (u64, u64),
    is_confirming: bool,
}

/// Node that pauses or seals its regions for a moment.
type Asked = (u64, MomentId, bool);

/// Answer of a node that is not complete.
struct Collecting {
    to: u64,
    incarnation: u64,
    waiting: BTreeSet<RegionId>,
    answer: Collected,
}

/// Answer of a node.
#[derive(Clone, Debug, Default)]
pub struct Collected {
    parts: Vec<CutPart>,
    sealed: Vec<(RegionId, Term)>,
    missing: Option<(RegionId, String)>,
}

/// Event of a moment.
#[expect(missing_docs, reason = "the fields are the variants' words")]
pub enum MomentEvent {
    /// The next moment begins.
    Begin,
    /// A node is asked to pause its regions, or to seal these.
    Call {
        node: u64,
        from: u64,
        incarnation: u64,
        moment: MomentId,
        seals: Option<Vec<(RegionId, Term)>>,
    },
    /// The time of a node to answer ends.
    NodeLate { node: u64, moment: MomentId, is_seal: bool },
    /// The answer of a node arrives.
    Answer { node: u64, from: u64, incarnation: u64, moment: MomentId, answer: Collected },
    /// The time of all nodes to answer ends.
    Late { node: u64, moment: MomentId },
}

impl MomentEvent {
    /// Returns the node on which it happens.
    pub fn node(&self) -> Option<u64> {
        match self {
            Self::Begin => None,
            Self::Call { node, .. }
            | Self::NodeLate { node, .. }
            | Self::Answer { node, .. }
            | Self::Late { node, .. } => Some(*node),
        }
    }
}

impl Moments {
    /// Creates the moments of a plan.
    pub fn new(plan: &Plan) -> Self {
        Self {
            prng: fork(plan.seed, "moments"),
            is_on: false,
            asked_only: None,
            under_way: BTreeMap::new(),
            collecting: BTreeMap::new(),
            complete: Vec::new(),
            written: Vec::new(),
            since: BTreeMap::new(),
        }
    }

    /// Returns whether writes are recorded, and moments taken once they were begun.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Records writes, or no longer.
    pub(crate) fn record(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Loses the calls of moments to all nodes but one, and delays none of the others.
    pub(crate) fn ask_only(&mut self, node: Option<u64>) {
        self.asked_only = node;
    }

    pub(crate) fn is_under_way(&self) -> bool {
        !self.under_way.is_empty()
    }
}

impl World {
    /// Takes moments from now on, if the plan says so.
    pub fn begin_moments(&mut self) {
        if self.plan.takes_moments {
            self.moments.is_on = true;
            self.after(MS, Happening::Moment(MomentEvent::Begin));
        }
    }

    /// Takes no further moments.
    pub fn end_moments(&mut self) {
        self.moments.is_on = false;
        self.moments.under_way.clear();
    }

    pub(crate) fn moment(&mut self, event: MomentEvent) {
        match event {
            MomentEvent::Begin => self.take_moments(),
            MomentEvent::Call { node, from, incarnation, moment, seals } => {
                self.answer_moment(node, (from, incarnation), moment, seals);
            }
            MomentEvent::NodeLate { node, moment, is_seal } => {
                self.collected((node, moment, is_seal), true);
            }
            MomentEvent::Answer { node, from, incarnation, moment, answer } => {
                let Some(taking) = self.taking(node).filter(|it| it.incarnation == incarnation)
                else {
                    return;
                };
                let Collected { parts, sealed, missing } = answer;
                taking.coordinator.sealed(moment, &sealed);
                match (sealed.is_empty(), missing) {
                    (false, Some((region, reason))) => {
                        taking.coordinator.not_sealed(region, reason)
                    }
                    (_, missing) => taking.coordinator.paused(&from, moment, parts, missing),
                }
                self.step_moment(node);
            }
            MomentEvent::Late { node, moment } => {
                let taking = self.taking(node);
                if let Some(taking) = taking.filter(|it| it.coordinator.number() == moment) {
                    taking.coordinator.end_wait();
                    self.step_moment(node);
                }
            }
        }
    }

    /// Returns the moment that a node takes. It ends with its process.
    fn taking(&mut self, id: u64) -> Option<&mut Taking> {
        let node = self.nodes.get(&id).filter(|node| node.up)?;
        let taking = self.moments.under_way.get_mut(&id)?;
        (taking.incarnation == node.incarnation).then_some(taking)
    }

    fn take_moments(&mut self) {
        if !self.moments.is_on {
            return;
        }
        let pause = (200 + self.moments.prng.below(1_200)) * MS;
        self.after(pause, Happening::Moment(MomentEvent::Begin));
        for node in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.take_moment(node);
        }
    }

    pub(crate) fn take_moment(&mut self, id: u64) {
        let Some(leads) = self.leading_slot(id) else { return };
        let Some(node) = self.nodes.get(&id).filter(|node| node.up) else { return };
        let incarnation = node.incarnation;
        if self.taking(id).is_some() {
            return;
        }
        let begins_at_oldest_level = self.plan.begins_at_oldest_level;
        let Some(state) = self.leader_state(id) else { return };
        if begins_at_oldest_level && state.cluster.levels().in_use < Level::MOMENTS {
            self.counts.above_level += 1;
            return;
        }
        let Some(ids) = state.cluster.take_ids(1) else { return };
        let stores = state.cluster.stores();
        let members = stores.filter(|store| store.state != StoreState::Tombstone);
        let addresses: BTreeSet<String> = members.map(|store| store.address.clone()).collect();
        let nodes: BTreeSet<u64> = addresses.iter().filter_map(|it| self.node_at(it)).collect();
        let moment = MomentId(ids.start);
        let requested = self.number();
        let coordinator = Coordinator::new(moment, nodes.iter().copied());
        let is_confirming = false;
        let taking = Taking { coordinator, requested, incarnation, leads, is_confirming };
        self.moments.under_way.insert(id, taking);
        self.counts.moments_begun += 1;
        nodes.into_iter().for_each(|node| self.call_for_moment(id, node, moment, None));
        self.after(PAUSE_NANOS, Happening::Moment(MomentEvent::Late { node: id, moment }));
        self.step_moment(id);
    }

    fn call_for_moment(
        &mut self,
        from: u64,
        node: u64,
        moment: MomentId,
        seals: Option<Vec<(RegionId, Term)>>,
    ) {
        let Some(taking) = self.moments.under_way.get(&from) else { return };
        let incarnation = taking.incarnation;
        for delay in self.ways(from, node, moment) {
            let seals = seals.clone();
            let event = MomentEvent::Call { node, from, incarnation, moment, seals };
            self.after(delay, Happening::Moment(event));
        }
    }

    /// Returns the delays of the copies of a call or an answer that arrive. Those of every second moment pass
    /// where messages of consensus are cut: otherwise hardly a leader that was deposed would answer. Some are
    /// late: regions that pause together show no order of their writes.
    fn ways(&mut self, from: u64, to: u64, moment: MomentId) -> Vec<u64> {
        let mut net = self.net.clone();
        let only = self.moments.asked_only;
        if only.is_some_and(|node| node != from && node != to) {
            return Vec::new();
        }
        if from == to || only.is_some() || moment.0.is_multiple_of(2) {
            net.cut.clear();
        }
        let prng = &mut self.moments.prng;
        let copies = net.deliveries(prng, (from, to), self.now, 200).into_iter();
        let sound: Vec<u64> =
            copies.filter(|(_, is_damaged)| !is_damaged).map(|(delay, _)| delay).collect();
        let late = |delay: u64| match prng.below(3) {
            0 if only.is_none() => delay + prng.below(LATE_NANOS_MAX),
            _ => delay,
        };
        sound.into_iter().map(late).collect()
    }

    fn step_moment(&mut self, id: u64) {
        loop {
            let Some(taking) = self.moments.under_way.get_mut(&id) else { return };
            let (moment, requested) = (taking.coordinator.number(), taking.requested);
            match taking.coordinator.step() {
                Next::Wait => return,
                Next::Seal(seals) => {
                    for (node, regions) in seals {
                        self.call_for_moment(id, node, moment, Some(regions));
                    }
                    let late = MomentEvent::Late { node: id, moment };
                    self.after(SEALED_NANOS, Happening::Moment(late));
                }
                Next::Confirm => {
                    let (slot, term) = taking.leads;
                    if std::mem::replace(&mut taking.is_confirming, true) {
                        return;
                    }
                    return self.group_read(slot, Requester::Confirm { node: id, moment }, term);
                }
                Next::Complete(complete) => {
                    self.moments.under_way.remove(&id);
                    let completed = self.number();
                    let text = || format!("moment {} is complete: {:?}", moment, complete.parts);
                    self.trace.note(self.now, id, 0, text);
                    self.moments.complete.push(Complete::new(&complete, requested, completed));
                    self.counts.moments += 1;
                    return;
                }
                Next::Abandoned(reason) => {
                    self.moments.under_way.remove(&id);
                    let text = || format!("moment {moment} is abandoned: {reason}");
                    self.trace.note(self.now, id, 0, text);
                    return;
                }
            }
        }
    }

    pub(crate) fn moment_confirmed(&mut self, id: u64, moment: MomentId, reply: Option<&Reply>) {
        let taking = self.taking(id);
        let Some(taking) = taking.filter(|it| it.coordinator.number() == moment) else { return };
        let is_leader = matches!(reply, Some(Reply::Done(Done::ReadReady { .. })));
        let outcome = if is_leader { Ok(()) } else { Err(format!("{reply:?}")) };
        taking.coordinator.confirmed(outcome);
        self.step_moment(id);
    }
}

// Nodes that are asked.

impl World {
    fn answer_moment(
        &mut self,
        id: u64,
        (to, incarnation): (u64, u64),
        moment: MomentId,
        seals: Option<Vec<(RegionId, Term)>>,
    ) {
        if !self.nodes.get(&id).is_some_and(|node| node.up) {
            return;
        }
        let is_seal = seals.is_some();
        let wanted = seals.map(|it| it.into_iter().map(|(region, _)| region).collect());
        let led = self.led_on(id, wanted.as_ref());
        let waiting: BTreeSet<RegionId> = led.iter().map(|(_, region)| *region).collect();
        let missing = wanted.and_then(|wanted: BTreeSet<RegionId>| {
            Some((*wanted.difference(&waiting).next()?, "it is not led here".to_owned()))
        });
        let answer = Collected { missing, ..Collected::default() };
        let collecting = Collecting { to, incarnation, waiting, answer };
        // A call that comes twice begins again: the regions refuse it.
        self.moments.collecting.insert((id, moment, is_seal), collecting);
        let step = if is_seal { MomentStep::Seal } else { MomentStep::Pause };
        for (slot, region) in led {
            let header = Header { region, ..Header::default() };
            let requester = Requester::Moment { node: id, moment, region, is_seal };
            self.request(slot, requester, MomentCall { header, moment, step });
        }
        let late = MomentEvent::NodeLate { node: id, moment, is_seal };
        self.after(NODE_NANOS, Happening::Moment(late));
        self.collected((id, moment, is_seal), false);
    }

    /// Returns the data regions that stores of a node lead, as far as they know, each with its store.
    fn led_on(&self, id: u64, wanted: Option<&BTreeSet<RegionId>>) -> Vec<(u64, RegionId)> {
        let mut led = Vec::new();
        for slot in self.slots_of(id) {
            let Some(it) = self.slots.get(&slot) else { continue };
            let Some(readers) = it.readers() else { continue };
            for region in readers.all() {
                let leader = readers.get(region.id).and_then(|reader| reader.leader());
                let is_led = leader.is_some_and(|leader| Some(leader.store) == it.id);
                let is_wanted = wanted.is_none_or(|wanted| wanted.contains(&region.id));
                if is_led && is_wanted && region.kind == RegionKind::Data {
                    led.push((slot, region.id));
                }
            }
        }
        led
    }

    pub(crate) fn moment_reply(
        &mut self,
        asked: (u64, MomentId, bool),
        region: RegionId,
        reply: Option<Reply>,
    ) {
        let Some(collecting) = self.moments.collecting.get_mut(&asked) else { return };
        collecting.waiting.remove(&region);
        let answer = &mut collecting.answer;
        match reply {
            Some(Reply::Done(Done::Paused { range, last, term })) => {
                answer.parts.push(CutPart { region, range, term, last });
            }
            Some(Reply::Done(Done::Sealed { term, .. })) => answer.sealed.push((region, term)),
            other => answer.missing = Some((region, format!("{other:?}"))),
        }
        self.collected(asked, false);
    }

    /// Sends the answer of a node, if all of its regions have answered or its time has ended.
    fn collected(&mut self, asked: (u64, MomentId, bool), is_late: bool) {
        let (node, moment, _) = asked;
        let collecting = self.moments.collecting.get(&asked);
        if collecting.is_none_or(|it| !it.waiting.is_empty() && !is_late) {
            return;
        }
        let Some(collecting) = self.moments.collecting.remove(&asked) else { return };
        let Collecting { to, incarnation, answer, .. } = collecting;
        let is_of_deposed = self.moments.asked_only == Some(node) && !answer.parts.is_empty();
        self.counts.moments_of_deposed += u64::from(is_of_deposed);
        for delay in self.ways(node, to, moment) {
            let answer = answer.clone();
            let event = MomentEvent::Answer { node: to, from: node, incarnation, moment, answer };
            self.after(delay, Happening::Moment(event));
        }
    }
}
