//! Reads of completion queues: a thread looks up many keys, sorts the values by location and reads
//! them with many reads in flight at the device.

use super::completion_queue::{Answer, Ticket};
use super::is_live;
use crate::store::{Store, View};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::error::caught;
use stele_types::{Clock, Locator, Result, ValueRef};

/// A get or lookup that waits for a reading thread.
#[derive(Debug)]
pub(super) struct QueuedRead {
    pub ticket: Ticket,
    pub key: Bytes,
    pub wanted: Wanted,
}

/// Requested answer of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Value,
    Existence,
}

/// State of a read after the lookup of its key.
enum LookedUp {
    Answered(Answer),
    /// The value must be read.
    At(Locator),
}

/// Answers reads of one store.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
}

impl Reader {
    pub(super) fn new(store: Arc<Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Completes all of `reads`. A panic completes the rest with an error: it drops their tickets,
    /// and a read changes nothing else.
    pub(super) fn answer(&self, reads: Vec<QueuedRead>) {
        // The panic hook has reported it.
        let _ = caught("a read of a completion queue", || self.look_up_and_read(reads));
    }

    fn look_up_and_read(&self, reads: Vec<QueuedRead>) {
        let shared = self.store.shared();
        // The view is of a moment after the submission of all of them, and pins the value files.
        let view = View::new(shared);
        let (mut tickets, mut places) = (Vec::new(), Vec::new());
        for QueuedRead { ticket, key, wanted } in reads {
            match self.look_up(&view, &ticket, &key, wanted) {
                Ok(LookedUp::Answered(answer)) => ticket.complete(Ok(answer)),
                Ok(LookedUp::At(at)) => {
                    tickets.push(Some(ticket));
                    places.push(at);
                }
                Err(error) => ticket.complete(Err(error)),
            }
        }
        shared.log.read_each(&places, |at, value| {
            let (Some(ticket), Some(place)) =
                (tickets.get_mut(at).and_then(Option::take), places.get(at))
            else {
                return;
            };
            if let Ok(value) = &value {
                shared.values.insert(place, value);
            }
            ticket.complete(value.map(|value| Answer::Value(Some(value))));
        });
    }

    fn look_up(
        &self,
        view: &View,
        ticket: &Ticket,
        key: &[u8],
        wanted: Wanted,
    ) -> Result<LookedUp> {
        let found = view.reference(key)?;
        let found = found.filter(|(_, expires_at_s)| is_live(&*self.clock, *expires_at_s));
        let answer = match (wanted, found) {
            (Wanted::Existence, found) => Answer::Exists(found.is_some()),
            (Wanted::Value, None) => Answer::Value(None),
            (Wanted::Value, Some((ValueRef::Inline(value), _))) => {
                ticket.check_value_bytes(value.len())?;
                Answer::Value(Some(value))
            }
            (Wanted::Value, Some((ValueRef::At(at), _))) => {
                ticket.check_value_bytes(at.length as usize)?;
                match self.store.shared().values.get(&at) {
                    Some(value) => Answer::Value(Some(value)),
                    None => return Ok(LookedUp::At(at)),
                }
            }
        };
        Ok(LookedUp::Answered(answer))
    }
}
