//! Nodes of which the answers count. A node asks the leader of the placement group, and takes the one for the leader
//! that another node names. Over TLS it knows which node answers: one with a replica of the placement region.

use stele_placement::Millis;
use stele_types::{StoreId, Term};

/// Time without an answer that counted, after which any node of the cluster may answer: all replicas of the
/// placement region may have moved meanwhile, and a recovery without a majority may begin with a lower term.
const FORGOTTEN_AFTER_MS: u64 = 10_000;

/// What the last answer to a report stated.
#[derive(Debug, Default)]
pub(super) struct KnownLeaders {
    /// Stores with a replica of the placement region.
    stores: Vec<StoreId>,
    term: Term,
    at: Millis,
}

impl KnownLeaders {
    /// Returns why an answer of the node with this name does not count; `None` if it does. `seen_here` are
    /// the stores with a replica of the placement region by this node's own one. `owner` returns the name of the node to
    /// which a store is bound. A leader of an earlier version states no stores, and any node may answer
    /// after it.
    ///
    /// Invariant: over TLS, decisions of the placement group come from a node that has a replica of its region, and
    /// not from an earlier term: any other member would decide for the nodes that ask it.
    /// Tests: `an_answer_counts_only_from_a_node_with_a_replica_and_in_no_earlier_term`,
    /// `a_member_without_a_replica_of_the_placement_region_answers_no_report`.
    pub(super) fn refusal(
        &self,
        from: &str,
        term: Option<Term>,
        now: Millis,
        seen_here: &[StoreId],
        owner: impl Fn(StoreId) -> Option<String>,
    ) -> Option<String> {
        if now.0.saturating_sub(self.at.0) > FORGOTTEN_AFTER_MS {
            return None;
        }
        // bug server.earlier_terms_answer: `*term < self.term` is `false`
        if let Some(term) = term.filter(|term| *term < self.term) {
            return Some(format!(
                "it answered for the placement group in term {term}, after term {}",
                self.term
            ));
        }
        if self.stores.is_empty() {
            return None;
        }
        // A store that is not bound may be on any node.
        let stores = self.stores.iter().chain(seen_here);
        let owners: Vec<String> = stores.map(|store| owner(*store)).collect::<Option<_>>()?;
        // bug server.any_member_answers: always
        if owners.iter().any(|owner| owner == from) {
            return None;
        }
        Some(format!(
            "it answered for the placement group, of which it has no replica: nodes {} have one",
            owners.join(", ")
        ))
    }

    /// Notes an answer that counts.
    pub(super) fn note(&mut self, stores: Vec<StoreId>, term: Term, now: Millis) {
        *self = Self { stores, term, at: now };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_only_from_a_node_with_a_replica_and_in_no_earlier_term() {
        let mut known = KnownLeaders::default();
        let owner = |store: StoreId| Some(format!("n{store}"));
        let (early, late) = (Millis(20_000), Millis(30_001));
        let term = |term| Some(Term(term));
        let none = known.refusal("n9", term(1), early, &[StoreId(3)], owner);
        assert_eq!(none, None, "nothing is known");
        known.note(vec![StoreId(1), StoreId(2)], Term(5), early);
        let refusal = |from: &str, term, at| known.refusal(from, term, at, &[StoreId(3)], owner);
        assert_eq!([refusal("n2", term(5), early), refusal("n3", term(5), early)], [None, None]);
        assert_eq!(refusal("n2", None, early), None, "no report");
        let refused = refusal("n2", term(4), early).unwrap();
        assert!(refused.contains("in term 4, after term 5"), "{refused}");
        for term in [term(5), term(u64::MAX), None] {
            let refused = refusal("n9", term, early).unwrap();
            assert!(refused.contains("no replica: nodes n1, n2, n3 have one"), "{refused}");
        }
        assert_eq!(known.refusal("n9", term(5), early, &[], |_| None), None, "not bound");
        assert_eq!(refusal("n9", term(1), late), None, "all may have moved");
        known.note(Vec::new(), Term(6), early);
        let none = known.refusal("n9", term(6), early, &[StoreId(3)], owner);
        assert_eq!(none, None, "an earlier version leads");
    }
}
