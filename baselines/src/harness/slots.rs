//! Reply slots of clients: one for each, because a client has one pending request.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;
use stele_raftstore::{Reply, RequestId};

/// Interval at which a waiting client checks for failed stores.
const CHECK_EVERY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Slot {
    reply: Mutex<Option<(RequestId, Reply)>>,
    filled: Condvar,
}

pub struct Slots {
    slots: Vec<Slot>,
    failed: Mutex<Option<String>>,
}

impl Slots {
    pub fn new(count: usize) -> Self {
        let slots = (0..count).map(|_| Slot::default()).collect();
        Self { slots, failed: Mutex::new(None) }
    }

    /// Returns the id of a client's request.
    pub fn id(&self, slot: usize, request: u64) -> RequestId {
        RequestId(request * self.slots.len() as u64 + slot as u64)
    }

    pub fn answer(&self, id: RequestId, reply: Reply) {
        let slot = (id.0 % self.slots.len().max(1) as u64) as usize;
        if let Some(slot) = self.slots.get(slot) {
            *slot.reply.lock() = Some((id, reply));
            slot.filled.notify_one();
        }
    }

    /// Records that a store's loop stopped: no further replies come.
    pub fn fail(&self, reason: String) {
        self.failed.lock().get_or_insert(reason);
        for slot in &self.slots {
            slot.filled.notify_all();
        }
    }

    /// Returns the error that stopped a store, if any.
    pub fn failure(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    /// Waits for the reply to a request. Fails if a store stopped.
    pub fn wait(&self, slot: usize, id: RequestId) -> Result<Reply, String> {
        let Some(slot) = self.slots.get(slot) else {
            return Err("the client number is too high".into());
        };
        let mut reply = slot.reply.lock();
        loop {
            if let Some((_, reply)) = reply.take_if(|(answered, _)| *answered == id) {
                return Ok(reply);
            }
            if let Some(reason) = self.failure() {
                return Err(reason);
            }
            slot.filled.wait_for(&mut reply, CHECK_EVERY);
        }
    }
}
