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
            /// Returns every counter with its name.
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
    /// Write calls.
    writes,
    /// Messages delivered to stores.
    messages_received,
    /// Bytes read from connections.
    bytes_received,
    /// Messages dropped because too many waited.
    dropped_full,
    /// Messages dropped because their node is not connected.
    dropped_down,
    /// Messages dropped because no address is known.
    dropped_unknown,
    /// Messages dropped because they are larger than a frame.
    dropped_large,
    /// Messages received for a store that is not on this node.
    strays_received,
    /// Outgoing connections made.
    connections_out,
    /// Outgoing connections that replaced one that had ended.
    reconnects,
    /// Times that reading paused because too many bytes of large frames were incomplete.
    waits_for_room,
    /// Incoming connections accepted.
    connections_in,
    /// Snapshots sent completely.
    snapshots_sent,
    /// Snapshots received completely.
    snapshots_received,
}

/// `sent` or `received`, frames and bytes.
pub(super) type Direction = (&'static str, u64, u64);

/// Totals of one lane.
#[derive(Debug, Default)]
pub(super) struct LaneStats {
    /// Frames written, without keepalives.
    pub frames_sent: AtomicU64,
    /// Bytes of these frames.
    pub bytes_sent: AtomicU64,
    /// Frames read, without keepalives.
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
            Lane::Bulk | Lane::Probe => bulk,
        }
    }

    /// Returns each lane's name, and frames and bytes for each direction.
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

    /// Returns the number of closed connections by reason label.
    pub fn closed(&self) -> Vec<(&'static str, u64)> {
        let counts = self.closed.iter().map(|counter| counter.load(Relaxed));
        CloseReason::LABELS.into_iter().zip(counts).collect()
    }
}
