//! Where clients wait for answers: one place for each, for each has one request under way.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;
use stele_raftstore::{Reply, RequestId};

/// How often a client that waits looks whether anybody is left to answer.
const LOOK_EVERY: Duration = Duration::from_secs(1);

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

    /// The number of a client's request.
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

    /// A store's loop ended: nobody will answer.
    pub fn fail(&self, why: String) {
        self.failed.lock().get_or_insert(why);
        for slot in &self.slots {
            slot.filled.notify_all();
        }
    }

    /// Why there are no answers any more, if so.
    pub fn failure(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    /// The answer to this request, or why there is none.
    pub fn wait(&self, slot: usize, id: RequestId) -> Result<Reply, String> {
        let Some(slot) = self.slots.get(slot) else { return Err("no such client".into()) };
        let mut reply = slot.reply.lock();
        loop {
            if let Some((_, reply)) = reply.take_if(|(answered, _)| *answered == id) {
                return Ok(reply);
            }
            if let Some(why) = self.failure() {
                return Err(why);
            }
            slot.filled.wait_for(&mut reply, LOOK_EVERY);
        }
    }
}
