//! The placement leader of one node: it loads the state of its term, commits decisions one after
//! the other, and drops the state when its term ends or the outcome of a proposal is unknown.
//!
//! The owner does the I/O. After [`PlacementLeader::lead`] and its inputs it calls
//! [`PlacementLeader::poll`] and carries out the work that this returns; at most one piece of work
//! is under way. `T` is what an answer becomes; [`PlacementLeader::take_answers`] returns them.

mod requests;
#[cfg(test)]
mod tests;

pub use requests::Accepted;

use bytes::Bytes;
use std::collections::VecDeque;
use stele_placement::{Cluster, LeaderState, Millis, PairChange, SYSTEM_REGION};
use stele_replica::{Header, Write};
use stele_types::{ClusterId, CommandBuilder, Error, Result, Term};

pub(crate) const DECISIONS_MAX: usize = 1024;

/// Input or output for the placement region. The owner reports the result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read all pairs after leadership in this term was confirmed; report [`PlacementLeader::loaded`].
    Load(Term),
    /// Commit the changes by a [`proposal`] of this term; report [`PlacementLeader::proposed`] when its
    /// fate is known.
    Propose(Term, Vec<PairChange>),
}

/// Reason why a decision was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotDecided<E> {
    /// This node does not lead the placement group.
    NotLeader,
    /// The state does not allow the decision.
    Refused(E),
    /// The decision was not made, or its outcome is unknown. The caller must ask again.
    Retry(String),
}

/// Failure of a decision that its plan did not refuse.
#[derive(Clone)]
enum Failure {
    NotLeader,
    Retry(String),
}

impl<E> From<Failure> for NotDecided<E> {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotLeader => Self::NotLeader,
            Failure::Retry(text) => Self::Retry(text),
        }
    }
}

/// Last part of a decision: receives the state with the committed changes, or the failure.
type Finish<T> =
    Box<dyn FnOnce(Result<&mut LeaderState, Failure>, Millis) -> Option<T> + Send + Sync>;
type Plan<T> =
    Box<dyn FnOnce(Result<&mut LeaderState, Failure>, Millis) -> Planned<T> + Send + Sync>;

enum Planned<T> {
    /// The decision ended without a change.
    Ended(Option<T>),
    /// The changes must be committed first.
    Changes(Vec<PairChange>, Finish<T>),
}

struct Waiting<T> {
    is_tick: bool,
    plan: Plan<T>,
}

enum UnderWay<T> {
    Nothing,
    Loading(Term),
    Bootstrapping(Term),
    Proposing { term: Term, changes: Vec<PairChange>, is_tick: bool, finish: Finish<T> },
}

/// The placement group on one node: follows its term, and decides while this node leads.
pub struct PlacementLeader<T> {
    cluster: ClusterId,
    bootstrap: Option<Vec<PairChange>>,
    term: Option<Term>,
    state: Option<LeaderState>,
    /// The pairs of this term were loaded and are empty.
    is_empty: bool,
    under_way: UnderWay<T>,
    waiting: VecDeque<Waiting<T>>,
    answers: Vec<T>,
}

impl<T> PlacementLeader<T> {
    /// Creates the leader of a node that does not lead. `bootstrap` holds the first pairs if the
    /// node bootstrapped the cluster. Invariant: no other node writes them.
    pub fn new(cluster: ClusterId, bootstrap: Option<Vec<PairChange>>) -> Self {
        Self {
            cluster,
            bootstrap,
            term: None,
            state: None,
            is_empty: false,
            under_way: UnderWay::Nothing,
            waiting: VecDeque::new(),
            answers: Vec::new(),
        }
    }

    /// Takes the term in which a store of this node leads the placement region; `None` if none
    /// does. Invariant: the state of another term is never used, because that term may have missed
    /// later decisions.
    pub fn lead(&mut self, term: Option<Term>) {
        if self.term == term {
            return;
        }
        self.term = term;
        self.is_empty = false;
        // bug node.state_of_another_term: self.state.iter_mut().zip(term).for_each(|(s, term)| s.term = term);
        // bug node.state_of_another_term: skip
        self.state = None;
        self.fail_waiting(&Failure::NotLeader);
    }

    /// Returns the state, if it is that of the term. It holds committed decisions only.
    pub fn state(&self, term: Term) -> Option<&LeaderState> {
        self.state.as_ref().filter(|state| state.term == term)
    }

    /// Returns the state, if it is that of the term, for changes that need no commit.
    pub fn state_mut(&mut self, term: Term) -> Option<&mut LeaderState> {
        self.state.as_mut().filter(|state| state.term == term)
    }

    /// Returns the term in which this node leads, as it last heard.
    pub fn term(&self) -> Option<Term> {
        self.term
    }

    /// Returns whether a proposal is under way.
    pub fn is_proposing(&self) -> bool {
        matches!(self.under_way, UnderWay::Proposing { .. } | UnderWay::Bootstrapping(_))
    }

    /// Takes the answers of decisions that ended.
    pub fn take_answers(&mut self) -> Vec<T> {
        std::mem::take(&mut self.answers)
    }

    /// Queues a decision. `plan` runs on the committed state, after all earlier decisions. `answer`
    /// runs when the changes are committed and applied, or when the decision has failed. Invariant:
    /// a decision is answered, and visible, only after its proposal is committed in the term that
    /// loaded the state.
    pub fn decide<A, E>(
        &mut self,
        plan: impl FnOnce(&Cluster, Millis) -> Result<(A, Vec<PairChange>), E> + Send + Sync + 'static,
        answer: impl FnOnce(Result<(A, &mut LeaderState), NotDecided<E>>) -> T + Send + Sync + 'static,
    ) where
        A: Send + Sync + 'static,
        E: 'static,
        T: 'static,
    {
        let plan: Plan<T> = Box::new(move |state, now| {
            let state = match state {
                Ok(state) => state,
                Err(failure) => return Planned::Ended(Some(answer(Err(failure.into())))),
            };
            match plan(&state.cluster, now) {
                Err(refusal) => Planned::Ended(Some(answer(Err(NotDecided::Refused(refusal))))),
                Ok((value, changes)) => Planned::Changes(
                    changes,
                    Box::new(move |state, _| {
                        let done = state.map(|state| (value, state));
                        Some(answer(done.map_err(NotDecided::from)))
                    }),
                ),
            }
        });
        self.queue(plan, false);
    }

    /// Queues the periodic work: what is due to be persisted, then the schedulers. Called about ten
    /// times a second.
    pub fn tick(&mut self, unix_seconds: u64)
    where
        T: 'static,
    {
        let is_proposed = matches!(self.under_way, UnderWay::Proposing { is_tick: true, .. });
        if self.term.is_none() || is_proposed || self.waiting.iter().any(|it| it.is_tick) {
            return;
        }
        let plan: Plan<T> = Box::new(move |state, now| {
            let Ok(state) = state else { return Planned::Ended(None) };
            let unsaved = state.take_unsaved_regions();
            // The plan fails only for more ids than one request may reserve.
            let due = LeaderState::plan_due(&state.cluster, unsaved, now, unix_seconds);
            let schedule: Finish<T> = Box::new(|state, now| {
                if let Ok(state) = state {
                    state.schedule(now);
                }
                None
            });
            Planned::Changes(due.unwrap_or_default(), schedule)
        });
        self.queue(plan, true);
    }

    fn queue(&mut self, plan: Plan<T>, is_tick: bool) {
        let failure = match self.term {
            None => Failure::NotLeader,
            // bug node.queue_unbounded: always
            Some(_) if self.waiting.len() < DECISIONS_MAX => {
                return self.waiting.push_back(Waiting { is_tick, plan });
            }
            Some(_) => Failure::Retry(format!("{DECISIONS_MAX} decisions wait already")),
        };
        self.fail(plan, failure);
    }

    fn fail(&mut self, plan: Plan<T>, failure: Failure) {
        if let Planned::Ended(answer) = plan(Err(failure), Millis(0)) {
            self.answers.extend(answer);
        }
    }

    fn fail_waiting(&mut self, failure: &Failure) {
        for Waiting { plan, .. } in std::mem::take(&mut self.waiting) {
            self.fail(plan, failure.clone());
        }
    }

    /// Starts the next work, unless work is under way or nothing waits. Ends decisions that need
    /// none. Invariant: one proposal at a time, so that each plan sees the state that its changes
    /// are applied to.
    pub fn poll(&mut self, now: Millis) -> Option<Work> {
        let is_free = matches!(self.under_way, UnderWay::Nothing);
        // bug node.two_proposals: `!is_free` is `false`
        if !is_free || self.waiting.is_empty() {
            return None;
        }
        let term = self.term?;
        if self.state(term).is_none() {
            return Some(self.load(term));
        }
        while let Some(state) = self.state.as_mut()
            && let Some(Waiting { is_tick, plan }) = self.waiting.pop_front()
        {
            match plan(Ok(state), now) {
                Planned::Ended(answer) => self.answers.extend(answer),
                Planned::Changes(changes, finish) if changes.is_empty() => {
                    self.answers.extend(finish(Ok(state), now));
                }
                Planned::Changes(changes, finish) => {
                    let work = Work::Propose(term, changes.clone());
                    self.under_way = UnderWay::Proposing { term, changes, is_tick, finish };
                    return Some(work);
                }
            }
        }
        None
    }

    fn load(&mut self, term: Term) -> Work {
        match self.bootstrap.clone().filter(|_| std::mem::take(&mut self.is_empty)) {
            Some(first) => {
                self.under_way = UnderWay::Bootstrapping(term);
                Work::Propose(term, first)
            }
            None => {
                self.under_way = UnderWay::Loading(term);
                Work::Load(term)
            }
        }
    }

    /// Takes the pairs of the placement region, or the reason why they were not read. Ignores a
    /// result of work that is not under way.
    pub fn loaded(
        &mut self,
        term: Term,
        pairs: Result<Vec<(Bytes, Bytes)>>,
        now: Millis,
        unix_seconds: u64,
    ) {
        if !matches!(self.under_way, UnderWay::Loading(of) if of == term) {
            return;
        }
        self.under_way = UnderWay::Nothing;
        if self.term != Some(term) {
            return;
        }
        let found = pairs.and_then(|pairs| Cluster::load(pairs, now, unix_seconds));
        let failure = match found {
            Ok(Some(cluster)) if cluster.id() == self.cluster => {
                self.state = Some(LeaderState::new(term, cluster));
                return;
            }
            Ok(Some(cluster)) => format!(
                "the placement state belongs to cluster {}, this node to {}",
                cluster.id(),
                self.cluster
            ),
            Ok(None) if self.bootstrap.is_some() => {
                self.is_empty = true;
                return;
            }
            Ok(None) => "the placement group has no state yet".to_owned(),
            Err(error) => error.to_string(),
        };
        self.fail_waiting(&Failure::Retry(failure));
    }

    /// Takes the outcome of the proposal under way. Only after `Undetermined` the changes may still be
    /// committed. Invariant: then the state is dropped and loaded again, because it may lack them. After
    /// a refusal it stays, with its operators.
    pub fn proposed(&mut self, term: Term, outcome: Result<()>, now: Millis) {
        // bug node.keep_lost_decision: let outcome = Ok(());
        match std::mem::replace(&mut self.under_way, UnderWay::Nothing) {
            UnderWay::Bootstrapping(of) if of == term => {
                if let Err(error) = outcome {
                    self.fail_waiting(&Failure::Retry(error.to_string()));
                }
            }
            UnderWay::Proposing { term: of, changes, finish, .. } if of == term => {
                self.committed(term, outcome, &changes, finish, now);
            }
            other => self.under_way = other,
        }
    }

    fn committed(
        &mut self,
        term: Term,
        outcome: Result<()>,
        changes: &[PairChange],
        finish: Finish<T>,
        now: Millis,
    ) {
        let (error, is_known) = match (outcome, self.state_mut(term)) {
            (Ok(()), None) => {
                self.answers.extend(finish(Err(Failure::NotLeader), now));
                return;
            }
            (Ok(()), Some(state)) => match state.apply(changes) {
                Ok(()) => {
                    let answer = finish(Ok(state), now);
                    self.answers.extend(answer);
                    return;
                }
                Err(error) => (error, false),
            },
            (Err(error), _) => {
                let is_known = !matches!(error, Error::Undetermined(_));
                // bug node.refusal_drops_state: `is_known` is `false`
                (error, is_known)
            }
        };
        let failure = Failure::Retry(error.to_string());
        self.answers.extend(finish(Err(failure.clone()), now));
        // bug node.keep_state_after_failure: always
        if is_known {
            if let Some(state) = self.state_mut(term) {
                state.note_refused(changes);
            }
        } else if self.term == Some(term) {
            self.state = None;
            self.fail_waiting(&failure);
        }
    }
}

/// Returns the write that commits `changes`, all or none, in exactly this term. Fails with `Invalid`
/// on changes that do not fit one command.
///
/// Invariant: a decision has no deadline; it ends when it is committed, or with the term. After a
/// deadline the leader would load its state again in the same term, without the decision, which may be
/// committed later.
/// Test: `a_decision_has_no_deadline_after_which_its_fate_would_be_unknown_in_the_same_term`.
pub fn proposal(term: Term, changes: &[PairChange]) -> Result<Write> {
    let mut command = CommandBuilder::new();
    for change in changes {
        match &change.value {
            Some(value) => command.put(&change.key, value, 0)?,
            None => command.delete(&change.key)?,
        };
    }
    let command: Bytes = command.build().bytes().clone();
    let header = Header { region: SYSTEM_REGION, term: term.0, ..Header::default() };
    // bug node.decision_with_deadline: let header = Header { deadline_nanos: 1, ..header };
    Ok(Write { header, command, only_deletes: true })
}
