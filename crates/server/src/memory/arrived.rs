//! Hand-over of the memory of a request's messages from its body to its handler.

use super::{Class, ConnectionMemory, Exceeded, RequestMemory};
use parking_lot::Mutex;
use std::sync::Arc;

/// Memory of the last whole message of a request: an extension of the request.
#[derive(Debug)]
pub struct Arrived {
    connection: Arc<ConnectionMemory>,
    class: Class,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Invariant: of at most one message. A body delivers the end of a message only when the message
    /// before it was decoded, and a handler that needs its memory for longer has taken it by then.
    message: Option<Arc<RequestMemory>>,
    refusal: Option<Exceeded>,
}

impl Arrived {
    /// Creates it for a request without a message yet.
    pub fn new(connection: &Arc<ConnectionMemory>, class: Class) -> Arc<Self> {
        Arc::new(Self { connection: connection.clone(), class, state: Mutex::default() })
    }

    /// Takes the memory of the message that was decoded last.
    pub fn take(&self) -> Arc<RequestMemory> {
        let taken = self.state.lock().message.take();
        taken.unwrap_or_else(|| self.new_memory())
    }

    /// Returns the reason if a message was refused. Its bytes were dropped.
    pub fn refusal(&self) -> Option<Exceeded> {
        self.state.lock().refusal
    }

    pub(super) fn new_memory(&self) -> Arc<RequestMemory> {
        RequestMemory::new(&self.connection, self.class)
    }

    pub(super) fn put(&self, message: Arc<RequestMemory>) {
        self.state.lock().message = Some(message);
    }

    pub(super) fn refuse(&self, exceeded: Exceeded) {
        self.state.lock().refusal = Some(exceeded);
    }
}
