//! Counters of the transport, for metrics.

use super::closed::Closed;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the start.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            closed: [AtomicU64; Closed::LABELS.len()],
        }

        impl Stats {
            /// Every counter with its name.
            pub fn each(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Messages written to connections.
    messages_sent,
    /// Bytes written to connections.
    bytes_sent,
    /// Calls that wrote.
    writes,
    /// Messages handed to stores.
    messages_received,
    /// Bytes read from connections.
    bytes_received,
    /// Messages dropped since too many waited.
    dropped_full,
    /// Messages dropped since their node is not connected.
    dropped_down,
    /// Messages dropped since nobody knows an address.
    dropped_unknown,
    /// Messages dropped since no frame takes them.
    dropped_large,
    /// Messages that came for a store that is not here.
    strays_received,
    /// Connections made.
    connections_out,
    /// Connections taken.
    connections_in,
    /// Snapshots sent to the end.
    snapshots_sent,
    /// Snapshots received to the end.
    snapshots_received,
}

impl Stats {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn count_closed(&self, reason: &Closed) {
        if let Some(counter) = self.closed.get(reason.number()) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// How many connections ended for each reason, by its label.
    pub fn closed(&self) -> Vec<(&'static str, u64)> {
        let counts = self.closed.iter().map(|counter| counter.load(Relaxed));
        Closed::LABELS.into_iter().zip(counts).collect()
    }
}
