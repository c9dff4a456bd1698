//! Outgoing connection of one lane: dials, sends, detects the end, pauses, dials again.

use super::batch::FrameBatch;
use super::closed::{CloseReason, RejectReason};
use super::connection::{self, Dialled, Reader};
use super::frame::FrameKind;
use super::hello::{self, Lane, Welcome};
use super::node::RemoteNode;
use super::outgoing::{Sending, Step};
use super::shared::{Shared, Stats};
use std::sync::Arc;
use std::time::Duration;
use stele_node::succession::Verdict;
use stele_types::checksum::crc32c;
use stele_types::{Prng, StoreId, StoreRun};
use tokio::time::timeout;

/// Keeps a lane to a node connected as long as a store is reached through it.
pub(super) async fn run(shared: Arc<Shared>, node: Arc<RemoteNode>, lane: Lane) {
    let options = &shared.options;
    let seed = options.seed ^ u64::from(crc32c(node.address.as_bytes())) << 8 ^ lane as u64;
    let mut backoff = Backoff::new(options.backoff_min, options.backoff_max, seed);
    let mut last_label = "";
    let mut had_connection = false;
    while !node.is_abandoned() {
        let mut was_connected = false;
        let reason = once(&shared, &node, lane, &mut was_connected).await;
        if was_connected {
            Stats::add(&shared.stats.reconnects, usize::from(had_connection));
            had_connection = true;
            backoff.reset();
            last_label = "";
        }
        node.disconnected(lane, &shared);
        shared.stats.count_closed(&reason);
        // Repeated failures with the same label are not logged.
        if reason.label() != last_label {
            let remote = format!("{} ({}, outgoing)", node.address, lane.name());
            shared.deliver.closed(&remote, &reason);
            last_label = reason.label();
        }
        if matches!(&reason, CloseReason::Refused(reason, _) if *reason != RejectReason::TooMany) {
            backoff.use_longest();
        }
        shared.nodes.refresh(&node, &shared);
        // A notification may end the pause earlier.
        let _ = timeout(backoff.pause(), node.link(lane).retry.notified()).await;
    }
}

async fn once(
    shared: &Arc<Shared>,
    node: &RemoteNode,
    lane: Lane,
    was_connected: &mut bool,
) -> CloseReason {
    let connected = connection::dial(shared, &node.address, lane, &node.stores()).await;
    let Dialled { mut reader, writer, welcome, node: name } = match connected {
        Ok(connected) => connected,
        Err(reason) => return reason,
    };
    *was_connected = true;
    let (heard, mut refused) = judge(shared, node, &welcome).await;
    // The address of some of its stores may be stolen, or old.
    let stores = node.stores();
    refused.extend(stores.iter().filter(|store| shared.is_foreign(**store, name.as_ref())));
    let _connected = shared.runs.connect(heard);
    node.connected(lane, (welcome.gone, refused), shared);
    let reads_joined = welcome.version >= hello::JOINED;
    // bug server.joined_to_earlier_versions: let reads_joined = true;
    let batch = if reads_joined { FrameBatch::joining() } else { FrameBatch::default() };
    let _connection = node.link(lane).connect(writer, batch);
    let ended = tokio::select! {
        () = node.ended() => return CloseReason::Ended,
        ended = read_keepalives(shared, node, lane, &mut reader) => ended,
        ended = write_messages(Sending { shared, node, lane }) => ended,
    };
    ended.err().unwrap_or(CloseReason::Ended)
}

/// Judges the runs that an answering node states for the stores that are reached through it. Returns
/// those that are accepted, and the stores to which no messages are sent.
async fn judge(
    shared: &Arc<Shared>,
    node: &RemoteNode,
    welcome: &Welcome,
) -> (Vec<(StoreId, StoreRun)>, Vec<StoreId>) {
    let (mut heard, mut refused) = (Vec::new(), Vec::new());
    let stores = node.stores();
    for (store, run) in welcome.runs.iter().filter(|(store, _)| stores.contains(store)) {
        match shared.admit(*store, run, &node.address).await {
            Verdict::Same | Verdict::Successor => heard.push((*store, run.clone())),
            Verdict::Undecided | Verdict::Unverified | Verdict::Refused(_) => refused.push(*store),
        }
    }
    (heard, refused)
}

/// Reads keepalives; the receiving side sends nothing else.
async fn read_keepalives(
    shared: &Shared,
    node: &RemoteNode,
    lane: Lane,
    reader: &mut Reader,
) -> Result<(), CloseReason> {
    while !node.is_abandoned() {
        let frame = connection::next_frame(shared, reader).await?;
        match frame.kind {
            // Only one connection tells: keepalives of two are not ordered.
            FrameKind::Alive if lane == Lane::Urgent => {
                let gone = hello::read_alive(&frame.body);
                let gone = gone.ok_or(CloseReason::Malformed("unreadable keepalive"))?;
                node.set_gone(gone, shared);
            }
            FrameKind::Alive => {}
            FrameKind::Refused => return Err(hello::read_refused(&frame.body).0),
            _ => return Err(CloseReason::Malformed("the receiving side sent a message")),
        }
    }
    Ok(())
}

/// Writes what senders leave to the task of the connection, and keepalives.
async fn write_messages(to: Sending<'_>) -> Result<(), CloseReason> {
    let (link, options) = (to.node.link(to.lane), &to.shared.options);
    loop {
        let step = timeout(options.stall_max, link.step(to)).await;
        if step.map_err(|_| CloseReason::Stalled)?? == Step::Idle {
            let waited = timeout(options.keepalive_interval, link.queue.filled()).await;
            if waited.is_err() {
                link.add_keepalive();
            }
        }
    }
}

/// Exponential backoff up to a bound, half of each pause random: nodes that lost the same peer do
/// not reconnect in step.
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    rng: Prng,
}

impl Backoff {
    /// Creates the backoff; the first pause is `min`.
    pub(super) fn new(min: Duration, max: Duration, seed: u64) -> Self {
        Self { min, max, next: min, rng: Prng::new(seed) }
    }

    pub(super) fn pause(&mut self) -> Duration {
        let half = self.next / 2;
        self.next = (self.next * 2).min(self.max);
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(self.rng.below(nanos.saturating_add(1)))
    }

    /// Makes the next pause the longest: an attempt soon would change nothing.
    pub(super) fn use_longest(&mut self) {
        self.next = self.max;
    }

    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_differ_by_chance() {
        let (min, max) = (Duration::from_millis(50), Duration::from_secs(2));
        let pauses = |seed| {
            let mut backoff = Backoff::new(min, max, seed);
            (0..12).map(|_| backoff.pause()).collect::<Vec<_>>()
        };
        let mut bound = min;
        for pause in pauses(1) {
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} of {bound:?}");
            bound = (bound * 2).min(max);
        }
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}
