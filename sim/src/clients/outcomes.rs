//! Outcomes of operations.

use super::values::{Value, number_in, number_of};
use super::{Act, KEYS, Pending};
use crate::check::linear::{Change, Op};
use crate::check::moments::Written;
use crate::world::World;
use stele_replica::{Busy, Done, Modified, Refusal, Reply};
use stele_types::command::Unfit;

impl World {
    pub(super) fn take_reply(&mut self, mut pending: Pending, reply: Option<Reply>) {
        let bytes_max = self.clients.value_bytes_max;
        if let Some(Reply::Done(done)) = &reply
            && self.record_set(&pending, done)
        {
            return;
        }
        match (reply, &mut pending.act) {
            // The connection was lost.
            (None, _) => self.record_outcome(&pending, None),
            (Some(Reply::Done(Done::Written { index, .. })), Act::Write(_)) => {
                self.record_outcome(&pending, Some(self.now));
                if self.moments.is_on() {
                    let (region, called, returned) =
                        (pending.region, pending.called, self.number());
                    self.moments.written.push(Written { region, index, called, returned });
                }
            }
            (Some(Reply::Done(Done::Modified { result, .. })), Act::Cas { seen, .. }) => {
                let (succeeded, previous) = match result {
                    Modified::Replaced { previous } => (true, previous),
                    Modified::Unchanged { previous } => (false, previous),
                    other => {
                        let slot = pending.slot;
                        return self
                            .fail(format!("store {slot} decides a comparison as {other:?}"));
                    }
                };
                let previous = previous.map_or(Some(0), |it| number_of(&it.value, bytes_max));
                let Some(previous) = previous else {
                    return self.fail(format!(
                        "store {} returns a previous value that no client wrote",
                        pending.slot
                    ));
                };
                *seen = Some((succeeded, previous));
                self.record_outcome(&pending, Some(self.now));
            }
            (
                Some(Reply::Done(Done::Modified { result, .. })),
                Act::Modify { change, seen, .. },
            ) => {
                *seen = seen_by(*change, &result, bytes_max);
                if seen.is_none() {
                    let (slot, act) = (pending.slot, format!("{:?}", pending.act));
                    return self.fail(format!("store {slot} answers {act} with {result:?}"));
                }
                self.record_outcome(&pending, Some(self.now));
            }
            (Some(Reply::Unknown(_)), _) => self.record_outcome(&pending, None),
            (Some(Reply::Refused(Refusal::Invalid(reason))), act) => {
                let act = format!("{act:?}");
                self.fail(format!("store {} refuses {act}: {reason}", pending.slot));
            }
            // Invariant: a value that cannot be read fails no write that needs none, as a session's record is.
            (Some(Reply::Busy(Busy::Wait { reason })), Act::Write(_))
                if pending.session.is_none() && reason.contains("cannot be read") =>
            {
                self.fail(format!("store {} refuses a put: {reason}", pending.slot));
            }
            // The operation was not executed: a history in which its value is seen is not
            // linearizable.
            (Some(Reply::Refused(_) | Reply::Busy(_)), _) => {}
            (Some(other), act) => {
                let act = format!("{act:?}");
                self.fail(format!("{act} was answered with {other:?}"));
            }
        }
    }

    /// Adds an operation to its group's history; `None` for an unknown outcome.
    pub(super) fn record_outcome(&mut self, pending: &Pending, returned_nanos: Option<u64>) {
        if let Some(fill) = &pending.fill {
            self.counts.ops += u64::from(returned_nanos.is_some());
            let filled = fill.numbers.iter().filter(|_| returned_nanos.is_some());
            return self.clients.filled.extend(filled);
        }
        if let Some(program) = &pending.program {
            return self.record_program(pending, program, None);
        }
        let number = self.number();
        if returned_nanos.is_none() {
            if matches!(pending.act, Act::Read(_)) {
                return;
            }
            self.counts.ambiguous += 1;
        } else {
            self.counts.ops += 1;
        }
        if pending.is_final
            && let Act::Read(seen) = &pending.act
        {
            let numbers = seen.iter().map(|(key, _)| usize::from(*key));
            let numbers = numbers.map(|key| pending.group * usize::from(KEYS) + key);
            self.clients.finals.extend(numbers);
        }
        let op = Op {
            called: pending.called,
            returned: returned_nanos.map(|_| number),
            called_nanos: pending.called_nanos,
            returned_nanos,
            slot: pending.slot,
            is_final: pending.is_final,
            by_lease: pending
                .thread_read
                .as_ref()
                .is_some_and(super::thread_reads::ThreadRead::is_by_lease),
            act: pending.act.clone(),
        };
        self.trace.mix(op.called ^ number.rotate_left(32));
        self.clients.histories[pending.group].push(op);
    }
}

/// Returns what a modification saw; `None` for a result that it cannot have.
fn seen_by(change: Change, result: &Modified, bytes_max: u64) -> Option<Option<Value>> {
    match (change, result) {
        (Change::Increment(_) | Change::Append(_), Modified::Updated { value }) => {
            number_of(value, bytes_max).map(Some)
        }
        (Change::Increment(_), Modified::Unfit(Unfit::NotANumber)) => Some(None),
        (Change::Take, Modified::Replaced { previous: Some(pair) }) => {
            number_in(pair, bytes_max).map(Some)
        }
        (Change::Take, Modified::Unchanged { previous: None }) => Some(Some(0)),
        _ => None,
    }
}
