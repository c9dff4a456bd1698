//! What a client can be told.

use std::time::Duration;

/// How long a client tries, and what it repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// For a call with all its attempts.
    pub timeout: Duration,
    /// For one attempt: a node that takes longer counts as unreachable.
    pub attempt_timeout: Duration,
    /// For making a connection.
    pub connect_timeout: Duration,
    /// Connections to each node, used in turn.
    pub connections_per_node: usize,
    /// Repeats a plain write whose attempt may have taken effect: it then happens at least once, and
    /// possibly again after a write of someone else. Without it such a write ends `Undetermined`. A
    /// compare-and-swap always does.
    pub retry_ambiguous: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            connections_per_node: 2,
            retry_ambiguous: true,
        }
    }
}
