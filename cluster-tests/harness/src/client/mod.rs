//! A client that tries each operation once and reports what is known of the outcome. Retries would
//! hide what really happened from the history.

mod answer;
mod route;
mod session;

pub(crate) use answer::{AnswerKind, FailedAnswer};
pub(crate) use session::{Session, SessionOptions, Swap};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome<T> {
    Done(T),
    /// It did not take effect and never will.
    Refused(FailedAnswer),
    /// It may have taken effect, or may still do so.
    Ambiguous(FailedAnswer),
}

impl<T> Outcome<T> {
    /// Returns whether it took effect.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}
