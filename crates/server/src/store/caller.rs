//! What gets the reply to a request of a store.

use stele_replica::{Reply, Unknown};
use tokio::sync::oneshot;

/// Gets the reply to one request. Called on the store's loop or on the thread that sent the request: it must
/// not block.
pub struct Caller(Option<Box<dyn FnOnce(Reply) + Send>>);

impl Caller {
    /// Reply to a request of which the loop took note and no reply came.
    pub const LOST: Reply = Reply::Unknown(Unknown::StoreStopped);

    /// Creates a caller that passes the reply to `answer`.
    pub fn new(answer: impl FnOnce(Reply) + Send + 'static) -> Self {
        Self(Some(Box::new(answer)))
    }

    /// Returns a caller with a channel on which the reply comes.
    pub fn waiting() -> (Self, oneshot::Receiver<Reply>) {
        let (sender, receiver) = oneshot::channel();
        let answer = |reply| {
            // The receiver may have gone.
            let _ = sender.send(reply);
        };
        (Self::new(answer), receiver)
    }

    /// Passes the reply on.
    pub fn answer(mut self, reply: Reply) {
        self.pass(reply);
    }

    fn pass(&mut self, reply: Reply) {
        if let Some(answer) = self.0.take() {
            answer(reply);
        }
    }
}

/// Invariant: each request has a reply, also if it is dropped: a client waits for it.
impl Drop for Caller {
    fn drop(&mut self) {
        // bug server.dropped_request_unanswered: skip
        self.pass(Self::LOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use stele_replica::Refusal;

    #[test]
    fn a_request_is_answered_once_also_if_it_is_dropped() {
        let (replies, got) = mpsc::channel();
        let caller = || {
            let replies = replies.clone();
            Caller::new(move |reply| replies.send(reply).unwrap())
        };
        caller().answer(Reply::Refused(Refusal::StoreStopped));
        assert_eq!(got.try_recv(), Ok(Reply::Refused(Refusal::StoreStopped)));
        assert!(got.try_recv().is_err());
        drop(caller());
        assert_eq!(got.try_recv(), Ok(Caller::LOST));
        let (caller, reply) = Caller::waiting();
        drop(caller);
        assert_eq!(reply.blocking_recv(), Ok(Caller::LOST));
    }
}
