//! Counters of the transport, for metrics.

use super::closed::CloseReason;
use super::hello::Lane;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Totals since the start.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            lanes: [LaneStats; 3],
            closed: [AtomicU64; CloseReason::LABELS.len()],
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
    /// Of these, in place of one that had ended.
    reconnects,
    /// Times that reading stopped as too many bytes were on their way in.
    waits_for_room,
    /// Connections taken.
    connections_in,
    /// Snapshots sent to the end.
    snapshots_sent,
    /// Snapshots received to the end.
    snapshots_received,
}

/// `sent` or `received`, frames and bytes.
pub type Direction = (&'static str, u64, u64);

/// Totals of one lane.
#[derive(Debug, Default)]
pub struct LaneStats {
    /// Frames written, signs of life excepted.
    pub frames_sent: AtomicU64,
    /// Their bytes.
    pub bytes_sent: AtomicU64,
    /// Frames read, signs of life excepted.
    pub frames_received: AtomicU64,
    /// Bytes of their bodies.
    pub bytes_received: AtomicU64,
}

impl Stats {
    pub(super) fn lane(&self, lane: Lane) -> &LaneStats {
        let [urgent, data, bulk] = &self.lanes;
        match lane {
            Lane::Urgent => urgent,
            Lane::Data => data,
            Lane::Bulk => bulk,
        }
    }

    /// Of each lane: its name, and for each direction frames and bytes.
    pub fn lanes(&self) -> [(&'static str, [Direction; 2]); 3] {
        [Lane::Urgent, Lane::Data, Lane::Bulk].map(|lane| {
            let of = self.lane(lane);
            let sent = ("sent", of.frames_sent.load(Relaxed), of.bytes_sent.load(Relaxed));
            let received =
                ("received", of.frames_received.load(Relaxed), of.bytes_received.load(Relaxed));
            (lane.name(), [sent, received])
        })
    }

    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Relaxed);
    }

    pub(super) fn count_closed(&self, reason: &CloseReason) {
        if let Some(counter) = self.closed.get(reason.number()) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// How many connections ended for each reason, by its label.
    pub fn closed(&self) -> Vec<(&'static str, u64)> {
        let counts = self.closed.iter().map(|counter| counter.load(Relaxed));
        CloseReason::LABELS.into_iter().zip(counts).collect()
    }
}
