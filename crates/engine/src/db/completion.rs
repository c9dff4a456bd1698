//! Completion of asynchronous calls: one state for all calls that share a group commit.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use stele_types::{Error, Result};

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// Outcome of one group commit, shared by all its members.
#[derive(Default)]
pub(crate) struct Outcome {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<()>>,
    callbacks: Vec<Callback>,
    waiters: usize,
    /// Set by a nudge and cleared by the next member that would sleep, so that no nudge is lost.
    nudged: bool,
}

fn copy(result: &Result<()>) -> Result<()> {
    result.as_ref().map(|&()| ()).map_err(Error::duplicate)
}

impl Outcome {
    /// Creates the outcome of a call that had nothing to do.
    pub fn done() -> Arc<Self> {
        let outcome = Arc::new(Self::default());
        outcome.finish(Ok(()));
        outcome
    }

    pub fn finish(&self, result: Result<()>) {
        let callbacks = {
            let mut state = self.state.lock();
            state.result = Some(copy(&result));
            std::mem::take(&mut state.callbacks)
        };
        self.changed.notify_all();
        for callback in callbacks {
            callback(copy(&result));
        }
    }

    pub fn result(&self) -> Option<Result<()>> {
        self.state.lock().result.as_ref().map(copy)
    }

    /// Sleeps until the outcome is known or a nudge comes; spurious returns are allowed.
    pub fn park(&self) {
        let mut state = self.state.lock();
        if state.result.is_none() && !state.nudged {
            state.waiters += 1;
            self.changed.wait(&mut state);
            state.waiters -= 1;
        }
        state.nudged = false;
    }

    /// Wakes one member, so that it may lead the next commit. Returns whether one was waiting.
    pub fn nudge(&self) -> bool {
        let mut state = self.state.lock();
        state.nudged = true;
        self.changed.notify_one();
        state.waiters > 0
    }

    fn on_done(&self, callback: Callback) {
        let mut state = self.state.lock();
        match &state.result {
            None => state.callbacks.push(callback),
            Some(result) => {
                let result = copy(result);
                drop(state);
                callback(result);
            }
        }
    }
}

/// Pending result of an asynchronous call. Dropping it does not cancel the call.
pub struct Completion {
    pub(super) outcome: Arc<Outcome>,
    pub(super) queue: Arc<super::commit::CommitQueue>,
}

impl Completion {
    /// Waits until the call's effects are durable and visible.
    pub fn wait(self) -> Result<()> {
        self.queue.wait(&self.outcome)
    }

    /// Whether the outcome is known.
    pub fn is_done(&self) -> bool {
        self.outcome.result().is_some()
    }

    /// Calls `callback` with the outcome, on the committing thread, or at once if it is known. The
    /// callback must not call the store.
    pub fn on_done(self, callback: impl FnOnce(Result<()>) + Send + 'static) {
        self.outcome.on_done(Box::new(callback));
    }
}

impl std::fmt::Debug for Completion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Completion").field("done", &self.is_done()).finish()
    }
}
