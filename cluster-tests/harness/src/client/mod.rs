//! A client that tries each operation once and says what it knows of it: the history of what really
//! happened must not be hidden behind retries.

mod route;
mod session;

pub use session::{Session, SessionOptions, Swap};

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// It happened.
    Done(T),
    /// It did not happen and will not.
    Refused(String),
    /// It may have happened, or may happen yet.
    Ambiguous(String),
}

impl<T> Outcome<T> {
    /// Whether it happened.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}
