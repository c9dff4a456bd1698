//! Inputs that wait for a store's loop.

use parking_lot::{Condvar, Mutex};
use std::time::Duration;
use stele_raftstore::Input;
use stele_storage::StorageEngine;

struct State<E: StorageEngine> {
    inputs: Vec<Input<E>>,
    stopped: bool,
}

/// Queue of inputs. It is bounded by its senders: clients wait for their replies, and messages are
/// within Raft's window.
pub struct Inbox<E: StorageEngine> {
    state: Mutex<State<E>>,
    filled: Condvar,
}

impl<E: StorageEngine> Inbox<E> {
    pub fn new() -> Self {
        let state = State { inputs: Vec::new(), stopped: false };
        Self { state: Mutex::new(state), filled: Condvar::new() }
    }

    pub fn push(&self, inputs: impl IntoIterator<Item = Input<E>>) {
        let mut state = self.state.lock();
        let was_empty = state.inputs.is_empty();
        state.inputs.extend(inputs);
        let wakes = was_empty && !state.inputs.is_empty();
        drop(state);
        if wakes {
            self.filled.notify_one();
        }
    }

    /// Moves all queued inputs to `into`, after waiting up to `at_most` for one. Returns false if
    /// stopped and empty.
    pub fn take(&self, into: &mut Vec<Input<E>>, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if state.inputs.is_empty() && !state.stopped {
            match at_most {
                Some(limit) if limit.is_zero() => {}
                Some(limit) => {
                    self.filled.wait_for(&mut state, limit);
                }
                None => self.filled.wait(&mut state),
            }
        }
        std::mem::swap(&mut state.inputs, into);
        !state.stopped || !into.is_empty()
    }

    /// Stops the queue; queued inputs are still delivered.
    pub fn stop(&self) {
        self.state.lock().stopped = true;
        self.filled.notify_all();
    }
}
