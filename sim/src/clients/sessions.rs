//! Requests of sessions: each client is a session that repeats a request after an unknown outcome, also
//! after one that is forced, until it knows the first result. The history has one operation for all
//! attempts of a request: if two took effect, no order explains it.

use super::{Act, Pending, Target};
use crate::plan::{MS, Plan, SECOND, fork};
use crate::world::{EPOCH_S, Requester, World};
use stele_replica::{Done, Modification, Modify, NewPair, Refusal, Reply};
use stele_types::{Level, Prng, SessionId, SessionRequest};

/// Time from the first attempt after which an operation ends without its outcome.
const GIVE_UP_NANOS: u64 = 8 * SECOND;
/// Seconds from the first attempt to the deadline of all attempts.
const LIFE_S: u64 = 20;
/// Bound of the pause before an attempt.
const PAUSE_NANOS: u64 = 60 * MS;

/// The sessions of all clients.
pub(super) struct Sessions {
    prng: Prng,
    permille: u64,
    numbers: u64,
    /// Seconds by which the cluster's time was ahead of the virtual time at the last refusal.
    ahead_s: i64,
}

/// Attempts of a request that is under way.
pub(super) struct Attempts {
    modify: Modify,
    key: u8,
    /// An attempt may have taken effect.
    is_ambiguous: bool,
    /// No attempt is on its way.
    is_paused: bool,
    give_up: u64,
}

impl Sessions {
    pub(super) fn new(plan: &Plan) -> Self {
        let (prng, permille) = (fork(plan.seed, "sessions"), plan.session_permille);
        Self { prng, permille, numbers: 0, ahead_s: 0 }
    }

    /// Returns whether the next operation is one.
    fn draws(&mut self) -> bool {
        self.permille > 0 && self.prng.below(1_000) < self.permille
    }

    fn next(&mut self, at: usize, virtual_s: u64) -> SessionRequest {
        self.numbers += 1;
        // Some deadlines pass while the request is repeated.
        let life_s = if self.prng.below(8) == 0 { 1 } else { LIFE_S };
        let expires_at_s = virtual_s.saturating_add_signed(self.ahead_s) + life_s;
        SessionRequest { session: SessionId(at as u64), number: self.numbers, expires_at_s }
    }
}

/// Returns the Unix seconds of a virtual time.
fn unix_s(now: u64) -> u64 {
    EPOCH_S + now / SECOND
}

impl World {
    /// Returns whether the next operation is a request of a session, which the node of its destination takes.
    pub(super) fn draws_session(&mut self, target: &Target) -> bool {
        self.clients.sessions.draws() && self.may_use(target.slot, Level::SESSIONS)
    }

    /// Sends the first attempt of a request.
    pub(super) fn send_in_session(
        &mut self,
        (at, key): (usize, u8),
        target: &Target,
        requester: Requester,
        mut modify: Modify,
    ) {
        modify.session = Some(self.clients.sessions.next(at, unix_s(self.now)));
        if let Some(pending) = &mut self.clients.list[at].pending {
            pending.session = Some(Attempts {
                modify: modify.clone(),
                key,
                is_ambiguous: false,
                is_paused: false,
                give_up: self.now + GIVE_UP_NANOS,
            });
        }
        self.counts.in_sessions += 1;
        self.request(target.slot, requester, modify);
    }

    /// Takes the end of an attempt; `None` for one that timed out. Returns the operation if it is over.
    pub(super) fn attempt_ended(
        &mut self,
        at: usize,
        mut pending: Pending,
        reply: Option<Reply>,
    ) -> Option<(Pending, Option<Reply>)> {
        let Some(attempts) = &mut pending.session else { return Some((pending, reply)) };
        let sessions = &mut self.clients.sessions;
        let is_lost = sessions.prng.below(3) == 0;
        match &reply {
            Some(Reply::Done(_)) if !is_lost => {
                // An attempt that spent long on its way.
                if sessions.prng.coin() {
                    let (slot, modify) = (pending.slot, attempts.modify.clone());
                    self.request(slot, Requester::Ignored, modify);
                }
                return Some((pending, reply));
            }
            Some(Reply::Refused(Refusal::SessionDeadline { cluster_s })) => {
                let ahead_s = cluster_s.cast_signed().wrapping_sub(unix_s(self.now).cast_signed());
                self.clients.sessions.ahead_s = ahead_s;
                // No attempt had an effect: the client begins another request.
                if !attempts.is_ambiguous {
                    return Some((pending, reply));
                }
            }
            None | Some(Reply::Done(_) | Reply::Unknown(_)) => {
                attempts.is_ambiguous |= !attempts.is_paused
            }
            Some(_) if !attempts.is_ambiguous => return Some((pending, reply)),
            Some(_) => {}
        }
        if self.now >= attempts.give_up {
            let reply = reply.filter(|_| !attempts.is_ambiguous);
            return Some((pending, reply));
        }
        attempts.is_paused = true;
        let pause = 1 + self.clients.sessions.prng.below(PAUSE_NANOS);
        self.clients.list[at].pending = Some(pending);
        self.client_in(at, pause);
        None
    }

    /// Sends the next attempt, if the pause before it is over.
    pub(super) fn repeat_in_session(&mut self, at: usize, mut pending: Pending) -> Option<Pending> {
        let Some(attempts) = pending.session.as_mut().filter(|attempts| attempts.is_paused) else {
            return Some(pending);
        };
        let (mut modify, key) = (attempts.modify.clone(), attempts.key);
        let target = self.target(pending.group, key);
        let Some(target) = target.filter(|target| self.may_use(target.slot, Level::SESSIONS))
        else {
            return self.attempt_ended(at, pending, None).map(|(pending, _)| pending);
        };
        attempts.is_paused = false;
        modify.header = target.header;
        attempts.modify = modify.clone();
        (pending.slot, pending.incarnation) = (target.slot, target.incarnation);
        pending.region = target.region.id;
        self.counts.repeated += 1;
        self.clients.list[at].pending = Some(pending);
        self.client_in(at, super::PATIENCE_NANOS);
        let requester = Requester::Client { at, step: self.clients.list[at].step };
        self.request(target.slot, requester, modify);
        None
    }

    /// Puts or deletes a key as a request of a session.
    pub(super) fn set_in_session(
        &mut self,
        at: usize,
        (group, key): (usize, u8),
        target: &Target,
        new: (super::Value, NewPair),
    ) {
        let (value, new) = new;
        let requester = self.begin_operation(at, group, target, Act::Write(vec![(key, value)]));
        let name = stele_types::ColumnFamily::Default.engine_key(&super::key_of(group, key));
        let change = Modification::Set { new };
        let modify = Modify { header: target.header, key: name, change, session: None };
        self.send_in_session((at, key), target, requester, modify);
    }

    /// Records a put or delete of a session.
    pub(super) fn record_set(&mut self, pending: &Pending, done: &Done) -> bool {
        let is_set = pending.session.is_some()
            && matches!((&pending.act, done), (Act::Write(_), Done::Modified { .. }));
        if is_set {
            self.record_outcome(pending, Some(self.now));
        }
        is_set
    }
}
