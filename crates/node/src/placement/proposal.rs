//! Write of a decision to the placement region.

use bytes::Bytes;
use stele_placement::{PairChange, SYSTEM_REGION};
use stele_replica::{Header, Write};
use stele_types::{CommandBuilder, Result, Term};

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
