//! Leadership: changes between two observations of Raft, and the term in which this peer serves.

use stele_types::{PeerId, Term};

/// State of Raft at one observation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub leads: bool,
    pub term: Term,
    pub leader: Option<PeerId>,
}

/// Leadership of a peer.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    seen: Seen,
    /// Term in which this peer leads *and* has applied its first entry.
    serving: Option<Term>,
}

/// Differences between two observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    /// It no longer leads, or leads a later term.
    pub is_lost: bool,
    /// It leads, and did not lead this term before.
    pub is_won: bool,
    /// The leader is another one, or has become known or unknown.
    pub is_leader_changed: bool,
}

impl Leadership {
    /// Compares Raft's state with the last one; `None` if nothing changed.
    pub fn observe(&mut self, seen: Seen) -> Option<Transition> {
        let before = std::mem::replace(&mut self.seen, seen);
        let stays_leader = before.leads && seen.leads && before.term == seen.term;
        (before != seen).then_some(Transition {
            is_lost: before.leads && !stays_leader,
            is_won: seen.leads && !stays_leader,
            is_leader_changed: before.leader != seen.leader || before.leads != seen.leads,
        })
    }

    /// Starts serving in a term. Invariant: only after the first entry of that term is applied.
    /// Before that a new leader may lack the effects of what earlier terms committed.
    pub fn start_serving(&mut self, term: Term) {
        self.serving = Some(term);
    }

    /// Stops serving. Returns whether it served.
    pub fn stop_serving(&mut self) -> bool {
        self.serving.take().is_some()
    }

    /// Returns whether this peer serves in any term.
    pub fn is_serving(&self) -> bool {
        self.serving.is_some()
    }

    /// Returns whether this peer serves in `term`: it knows all that earlier terms committed, and
    /// may propose.
    pub fn is_serving_in(&self, term: Term) -> bool {
        self.serving == Some(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_observation_yields_what_changed_since_the_last_one() {
        let seen = |leads, term, leader: u64| Seen {
            leads,
            term: Term(term),
            leader: (leader != 0).then_some(PeerId(leader)),
        };
        let change = |is_lost, is_won, is_leader_changed| {
            Some(Transition { is_lost, is_won, is_leader_changed })
        };
        let rows = [
            ("nothing", seen(false, 0, 0), None),
            ("a term", seen(false, 1, 0), change(false, false, false)),
            ("elected", seen(true, 1, 9), change(false, true, true)),
            ("the same", seen(true, 1, 9), None),
            ("elected again", seen(true, 3, 9), change(true, true, false)),
            ("deposed", seen(false, 4, 0), change(true, false, true)),
            ("follows", seen(false, 4, 8), change(false, false, true)),
        ];
        let mut leadership = Leadership::default();
        for (name, seen, expected) in rows {
            assert_eq!(leadership.observe(seen), expected, "{name}");
        }
    }

    #[test]
    fn a_peer_serves_one_term() {
        let mut leadership = Leadership::default();
        assert!(!leadership.stop_serving());
        leadership.start_serving(Term(3));
        assert!(leadership.is_serving_in(Term(3)) && !leadership.is_serving_in(Term(4)));
        assert!(leadership.is_serving() && leadership.stop_serving() && !leadership.is_serving());
    }
}
