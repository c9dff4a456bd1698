//! Placement leader of a node: its work for the placement region, mistaken administrators, and the
//! checks of its decisions.

use super::{Call, PlacementAnswer};
use crate::check::orders;
use crate::plan::{CLUSTER, MS};
use crate::world::{Happening, MemberList, Requester, Slot, World};
use stele_node::members::list_of;
use stele_node::placement::{self, Accepted, NotDecided, PlacementLeader, Work};
use stele_placement::{
    Cluster, DrainGoal, Grant, Kind, LeaderState, Millis, Operator, OperatorId, PairChange,
    Permissions, SYSTEM_REGION, Step, StoreState, pairs,
};
use stele_replica::LinearizableRead;
use stele_replica::{Done, Header, Reply};
use stele_storage::{EngineView, ScanOptions, StateMachine};
use stele_types::{Error, Peer, PeerRole, RegionId, Result, StoreId, Term};

const PLACEMENT_NANOS: u64 = 100 * MS;

/// Decision that ended.
pub enum Answered {
    /// Its caller gets an answer: node, incarnation, answer.
    To(u64, u64, Box<PlacementAnswer>),
    /// A report was accepted, and one of its steps may be invalid.
    Report(u64, u64, Box<PlacementAnswer>, Option<String>),
    /// A report was refused.
    Refused(String),
    /// The decision should have been refused.
    Invalid(String),
    /// Its caller gets no answer, and asks again.
    Nothing,
}

impl World {
    fn millis(&self, node: u64) -> Millis {
        Millis(self.nodes.get(&node).map_or(0, |node| node.local(self.now)) / MS)
    }

    /// Returns the store of a node that leads region 1, and its term.
    pub(crate) fn leading_slot(&self, node: u64) -> Option<(u64, u64)> {
        self.slots_of(node).into_iter().find_map(|slot| {
            let reader = self.slots.get(&slot)?.readers()?.get(SYSTEM_REGION)?;
            Some((slot, reader.leading_term()?))
        })
    }

    pub(crate) fn leader_state(&mut self, id: u64) -> Option<&mut LeaderState> {
        let (_, term) = self.leading_slot(id)?;
        self.nodes.get_mut(&id)?.member.placement.as_mut()?.state_mut(Term(term))
    }

    /// Returns the first pairs, with the settings of this run, on the node that bootstrapped the
    /// cluster.
    fn first_pairs(&self, id: u64) -> Option<Vec<PairChange>> {
        let is_first =
            |slot: &u64| self.slots.get(slot).is_some_and(|it| it.id == Some(StoreId(1)));
        self.slots_of(id).iter().any(is_first).then(|| {
            let settings = self.plan.settings.iter();
            let settings = settings.map(|(name, value)| pairs::setting(name, *value));
            self.bootstrap_plan().pairs().into_iter().chain(settings).collect()
        })
    }

    /// Gives the placement leader of a node an input, does the work that follows, and checks what
    /// the leader did.
    pub(super) fn lead(
        &mut self,
        id: u64,
        input: impl FnOnce(&mut PlacementLeader<Answered>, Millis),
    ) {
        let (leading, now) = (self.leading_slot(id), self.millis(id));
        let first_pairs = self.first_pairs(id);
        let Some(node) = self.nodes.get_mut(&id).filter(|node| node.up) else { return };
        let member = &mut node.member;
        let new = || PlacementLeader::new(CLUSTER, first_pairs);
        let leader = member.placement.get_or_insert_with(new);
        leader.lead(leading.map(|(_, term)| Term(term)));
        let state = leader.term().and_then(|term| leader.state(term));
        let before = orders::Before::of(state);
        if state.is_none() {
            member.epochs.clear();
        }
        input(leader, now);
        let work = leader.poll(now);
        let answers = leader.take_answers();
        let state = leader.term().and_then(|term| leader.state(term));
        let invalid = state.and_then(|state| {
            let regressed = orders::regressed(&state.cluster, &mut member.epochs);
            regressed.or_else(|| orders::invalid_admission(state, &before, now))
        });
        if let Some(text) = invalid {
            self.fail(format!("the placement group of node {id} {text}"));
        }
        self.note_moves(id, &before.running);
        for answered in answers {
            self.decided(id, answered);
        }
        if let (Some(work), Some((slot, _))) = (work, leading) {
            self.do_work(id, slot, work);
        }
    }

    fn decided(&mut self, id: u64, answered: Answered) {
        match answered {
            Answered::To(node, incarnation, answer) => self.answer(id, node, incarnation, *answer),
            Answered::Report(node, incarnation, answer, invalid) => {
                if let Some(text) = invalid {
                    self.fail(format!("the placement group of node {id} {text}"));
                }
                if let PlacementAnswer::Report { answer, .. } = &*answer {
                    self.check_removed(&answer.removed);
                }
                self.answer(id, node, incarnation, *answer);
            }
            Answered::Refused(reason) => {
                self.trace.note(self.now, id, 0, || format!("refuses a report: {reason}"));
            }
            Answered::Invalid(text) => self.fail(text),
            Answered::Nothing => {}
        }
    }

    fn do_work(&mut self, id: u64, slot: u64, work: Work) {
        match work {
            Work::Load(Term(term)) => {
                self.group_read(slot, Requester::Load { node: id, term }, term);
            }
            Work::Propose(Term(term), changes) => {
                let state = self.leader_state(id);
                let applied = state.map(|state| state.cluster.clone().apply(&changes));
                if let Some(Err(error)) = applied {
                    self.fail(format!("a decision is invalid: {error}"));
                }
                self.propose(id, slot, term, &changes);
            }
        }
    }

    pub(crate) fn run_placement(&mut self, id: u64, incarnation: u64) {
        if !self.nodes.get(&id).is_some_and(|node| node.up && node.incarnation == incarnation) {
            return;
        }
        self.after(PLACEMENT_NANOS, Happening::RunPlacement { node: id, incarnation });
        self.check_decisions(id);
        self.check_known(id);
        let goals = self.nemesis.goals.clone();
        let unix_seconds = self.nodes.get(&id).map_or(0, |node| node.now(self.now).unix_seconds());
        self.lead(id, |leader, _| {
            goals.iter().for_each(|(store, goal)| decide_goal(leader, *store, *goal));
            leader.tick(unix_seconds);
        });
        let Some(state) = self.leader_state(id) else { return };
        let is_met = |(id, goal): &(StoreId, DrainGoal)| {
            let state = state.cluster.store(*id).map(|it| it.state);
            state.is_some_and(|state| match goal {
                DrainGoal::Cancel => state == StoreState::Up,
                DrainGoal::Drain | DrainGoal::Remove | DrainGoal::Lost => state != StoreState::Up,
            })
        };
        let met: Vec<_> = goals.into_iter().filter(is_met).collect();
        self.nemesis.goals.retain(|goal| !met.contains(goal));
    }

    pub(crate) fn group_lost(&mut self, id: u64, term: u64) {
        let stopped = || Err(Error::Undetermined("the store stopped".into()));
        self.lead(id, |leader, now| {
            leader.loaded(Term(term), stopped().map(|()| Vec::new()), now, 0);
            leader.proposed(Term(term), stopped(), now);
        });
    }

    pub(crate) fn group_loaded(&mut self, id: u64, slot: u64, term: u64, reply: &Reply) {
        let pairs = match reply {
            Reply::Done(Done::ReadReady { .. }) => self.state_pairs(slot),
            other => Err(Error::Busy(format!("{other:?}"))),
        };
        let (now, unix_seconds) = (
            self.millis(id),
            self.nodes.get(&id).map_or(0, |node| node.now(self.now).unix_seconds()),
        );
        match pairs.as_ref().ok().map(|pairs| Cluster::load(pairs.clone(), now, unix_seconds)) {
            Some(Ok(Some(_))) => {
                // A state that is loaded again in the same term knows no earlier moves.
                self.checks.moves.forget();
                self.checks.known.forget();
                self.trace.note(self.now, id, slot, || {
                    format!("leads the placement group in term {term}")
                });
            }
            Some(Err(error)) => self.fail(format!("the placement state is invalid: {error}")),
            Some(Ok(None)) | None => {}
        }
        self.lead(id, |leader, now| leader.loaded(Term(term), pairs, now, unix_seconds));
    }

    /// Checks that a placement leader's state holds the decisions that its store holds.
    fn check_decisions(&mut self, id: u64) {
        let Some((slot, _)) = self.leading_slot(id) else { return };
        let is_proposing = |leader: &PlacementLeader<Answered>| leader.is_proposing();
        let leader = self.nodes.get(&id).and_then(|node| node.member.placement.as_ref());
        // The check does not find damage before the store does.
        let is_damaged = self.slots.get(&slot).is_none_or(Slot::may_fail_reads);
        let readers = self.slots.get(&slot).and_then(|slot| slot.readers());
        let reader = readers.and_then(|readers| readers.get(SYSTEM_REGION));
        // A decision is answered when it is committed, and a read would wait until it is visible.
        let sees_all = reader.is_some_and(|reader| reader.sees_all_committed());
        if leader.is_none_or(is_proposing) || is_damaged || !sees_all || self.plan.is_helix {
            // What is not persisted may wait for the proposal under way.
            self.forget_unsaved();
            return;
        }
        let (now, pairs) = (self.millis(id), self.state_pairs(slot));
        let records = pairs.as_ref().map_or(0, Vec::len);
        let held = pairs.and_then(|pairs| Cluster::load(pairs, now, 0));
        let (Ok(Some(held)), Some(state)) = (held, self.leader_state(id)) else { return };
        let too_many = orders::too_many_records(&held, records);
        if let Some(text) = orders::other_decisions(&state.cluster, &held).or(too_many) {
            self.fail(format!("the placement group of node {id} {text}"));
        }
        self.check_classes(id, &held);
    }

    fn state_pairs(&self, slot: u64) -> Result<Vec<(bytes::Bytes, bytes::Bytes)>> {
        let stopped = || Error::Busy("the store stopped".into());
        let engine = self.engine(slot).ok_or_else(stopped)?;
        let readers = self.slots.get(&slot).and_then(|slot| slot.readers()).ok_or_else(stopped)?;
        let reader = readers.get(SYSTEM_REGION).ok_or_else(stopped)?;
        let header = Header { region: SYSTEM_REGION, ..Header::default() };
        let view = LinearizableRead::confirmed_state(&reader, &header, readers, || engine.view())?;
        let view = view.map_err(|reply| Error::Busy(format!("{reply:?}")))?;
        let found = view.scan(&ScanOptions::new(pairs::state_range(), usize::MAX))?;
        Ok(found.into_iter().map(|pair| (pair.key, pair.value)).collect())
    }

    fn propose(&mut self, id: u64, slot: u64, term: u64, changes: &[PairChange]) {
        let write = match placement::proposal(Term(term), changes) {
            Ok(write) => write,
            Err(error) => return self.fail(format!("a decision does not fit a command: {error}")),
        };
        let requester = Requester::Proposal { node: id, term };
        self.request(slot, requester, write);
    }

    pub(crate) fn group_proposed(&mut self, id: u64, term: u64, reply: &Reply) {
        if !matches!(reply, Reply::Done(_)) {
            self.trace.note(self.now, id, 0, || format!("a decision is not committed: {reply:?}"));
            // A store with a full device, or with too many entries to apply, takes no writes.
            self.forget_unsaved();
        }
        let outcome = match reply {
            Reply::Done(Done::Written { .. }) => Ok(()),
            Reply::Refused(_) | Reply::Busy(_) => Err(Error::Busy(format!("{reply:?}"))),
            other => Err(Error::Undetermined(format!("{other:?}"))),
        };
        self.lead(id, |leader, now| leader.proposed(Term(term), outcome, now));
    }

    pub(crate) fn called(&mut self, id: u64, from: u64, incarnation: u64, call: Call) {
        if self.leading_slot(id).is_none() {
            return self.name_leader(id, from, incarnation);
        }
        let to = move |answer| Answered::To(from, incarnation, Box::new(answer));
        match call {
            Call::Join { address, slots, stores } => self.lead(id, |leader, now| {
                leader.join((address, None), stores, now, move |joined| match joined {
                    Ok((ids, state)) => to(PlacementAnswer::Joined {
                        ids: slots.into_iter().zip(ids).collect(),
                        members: list(&state.cluster),
                        levels: state.cluster.levels(),
                    }),
                    Err(_) => Answered::Nothing,
                });
            }),
            Call::Report { mut report, members_version } => {
                if !self.drop_unheard(id, from, &mut report) {
                    return self.decided(id, Answered::Refused("no store is heard".into()));
                }
                let address = self.address_of(id).unwrap_or_default();
                self.lead(id, |leader, now| {
                    leader.report(*report, now, move |accepted| match accepted {
                        Ok(Accepted { answer, state, .. }) => {
                            let mut steps = answer.steps.iter();
                            let invalid =
                                steps.find_map(|it| orders::invalid_order(state, it, now));
                            let is_known = state.cluster.members_version() == members_version;
                            let members = (!is_known).then(|| list(&state.cluster));
                            let levels = state.cluster.levels();
                            let leader = address;
                            let answer =
                                PlacementAnswer::Report { leader, answer, members, levels };
                            Answered::Report(from, incarnation, Box::new(answer), invalid)
                        }
                        Err(NotDecided::Refused(reason)) => Answered::Refused(reason.to_string()),
                        Err(_) => Answered::Nothing,
                    });
                });
                if self.nemesis.makes_mistakes() {
                    self.order_harmful_removal(id, self.millis(id));
                }
            }
        }
    }

    /// Answers a call to a node that does not lead. The product's node forwards it, or names the leader.
    fn name_leader(&mut self, id: u64, from: u64, incarnation: u64) {
        let own = self.address_of(id);
        let leader = self.known_group_leader(id).filter(|leader| Some(leader) != own.as_ref());
        if let Some(leader) = leader.filter(|_| id != from) {
            self.answer(id, from, incarnation, PlacementAnswer::NotLeader { leader });
        }
    }

    /// Orders the removal of a replica that its region needs, like a mistaken administrator.
    fn order_harmful_removal(&mut self, id: u64, now: Millis) {
        let Some(state) = self.leader_state(id) else { return };
        let Some((info, peer)) = orders::required_voter(&state.cluster, now) else { return };
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
        if state.operators.admit(&mut state.cluster, operator, now).is_ok() {
            self.fail(format!(
                "the placement group of node {id} begins {text}, which costs the region its quorum"
            ));
        }
    }

    fn answer(&mut self, from: u64, node: u64, incarnation: u64, answer: PlacementAnswer) {
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

    /// Changes a setting of the cluster, if the placement group has a leader that stays; and grants a right
    /// in the same decision, once all nodes have reported to it.
    pub fn change_setting(&mut self, name: &'static str, value: u64) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.lead(id, |leader, _| {
                let plan = move |cluster: &Cluster, _| {
                    let mut changes = cluster.plan_setting(name, value)?;
                    let (name, permissions) = (format!("{name}-{value}"), Permissions::READ);
                    let grant = Grant { name, permissions, ..Grant::default() };
                    changes.extend(cluster.plan_grant(grant).unwrap_or_default());
                    Ok::<_, Error>(((), changes))
                };
                leader.decide(plan, |_| Answered::Nothing);
            });
        }
    }

    /// Cancels the merge of a region, like an administrator, if the placement group has a leader.
    pub(crate) fn cancel_merge(&mut self, region: RegionId) {
        for id in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.lead(id, |leader, _| {
                let plan =
                    move |cluster: &Cluster, _| Ok(((), cluster.plan_cancelled_merge(region)?));
                leader.decide(plan, move |decided: Result<_, NotDecided<Error>>| {
                    if let Ok(((), state)) = decided {
                        let now = state.cluster.regions().get(region).and_then(|it| it.reported);
                        state.operators.cancel(region, now.unwrap_or_default());
                    }
                    Answered::Nothing
                });
            });
        }
    }

    /// Returns ids for regions and peers, if the placement group has a leader with unused ids.
    pub(crate) fn take_ids(&mut self, count: u64) -> Option<std::ops::Range<u64>> {
        let leaders: Vec<(u64, u64)> =
            self.nodes.keys().filter_map(|id| Some((self.leading_slot(*id)?.1, *id))).collect();
        let (_, id) = leaders.into_iter().max()?;
        self.leader_state(id)?.cluster.take_ids(count)
    }
}

fn list(cluster: &Cluster) -> MemberList {
    (cluster.members_version(), list_of(cluster, |state| state as i32))
}

/// Decides to drain a store, or to cancel that. Another state of the store may not allow it.
fn decide_goal(leader: &mut PlacementLeader<Answered>, id: StoreId, goal: DrainGoal) {
    let plan = move |cluster: &Cluster, now| {
        let changes = cluster.plan_state(id, goal, now).map_err(|_| None)?;
        match orders::invalid_removal(cluster, id, goal, now).filter(|_| !changes.is_empty()) {
            Some(text) => Err(Some(text)),
            None => Ok(((), changes)),
        }
    };
    leader.decide(plan, |decided| match decided {
        Err(NotDecided::Refused(Some(text))) => Answered::Invalid(text),
        _ => Answered::Nothing,
    });
}
