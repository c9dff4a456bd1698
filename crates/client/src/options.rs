//! Client options.

use std::time::Duration;

/// Timeouts, connections and retry policy of a client.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Time limit of a call with all its attempts.
    pub timeout: Duration,
    /// Time limit of one attempt; a slower node counts as unreachable.
    pub attempt_timeout: Duration,
    /// Time limit for making a connection.
    pub connect_timeout: Duration,
    /// Number of connections to each node, used in turn.
    pub connections_per_node: usize,
    /// Whether a put or delete is repeated if an attempt may have taken effect. The cost: the
    /// repetition may take effect after another client's later write of the same key and overwrite
    /// it, although that write was acknowledged. Without it, such a call fails with `Undetermined`,
    /// as a compare-and-swap always does, and the caller decides.
    pub repeat_undetermined: bool,
    /// Receives the reason of a wait, once a call has waited 2 s because too few voters of the
    /// placement group are up. It is called once for each call.
    pub on_wait: Option<fn(&str)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            connections_per_node: 2,
            repeat_undetermined: false,
            on_wait: None,
        }
    }
}
