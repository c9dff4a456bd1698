//! Snapshots that a node receives: one connection for each replica, and parts that were received before their
//! connection broke.

use super::SNAPSHOTS_MAX;
use crate::transport::Position;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stele_types::{RegionId, StoreId, mutant};
use tokio::sync::{OwnedMutexGuard, oneshot};

/// Replica that a snapshot is for.
pub(super) type Replica = (StoreId, RegionId);

/// Part of a snapshot, and the position after the last chunk in it.
pub(super) struct Staged<R> {
    pub reception: R,
    pub position: Position,
}

struct Kept<R> {
    number: u64,
    /// Encoded header: sender, index and term.
    header: Bytes,
    staged: Staged<R>,
}

struct State<R> {
    kept: BTreeMap<Replica, Kept<R>>,
    /// Connections by replica: the sender that ends the one in use, and its turn.
    turns: BTreeMap<Replica, Connection>,
    /// Number of the last part that was kept.
    last: u64,
    is_closed: bool,
}

#[derive(Default)]
struct Connection {
    end: Option<oneshot::Sender<()>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Parts that wait for their sender.
pub(super) struct StagedSnapshots<R> {
    state: Mutex<State<R>>,
    /// Time after which a part is dropped.
    kept_for: Duration,
}

/// Turn of a connection to receive the snapshot of a replica.
pub(super) struct Turn {
    /// Completes when another connection for the replica comes.
    pub superseded: oneshot::Receiver<()>,
    _turn: OwnedMutexGuard<()>,
}

impl<R: Send + 'static> StagedSnapshots<R> {
    /// Creates the list without a part. Each is dropped after `kept_for`.
    pub fn new(kept_for: Duration) -> Self {
        let (kept, turns) = (BTreeMap::new(), BTreeMap::new());
        let state = Mutex::new(State { kept, turns, last: 0, is_closed: false });
        Self { state, kept_for }
    }

    /// Ends the connection that receives a snapshot for the replica, and waits until it has ended. It may
    /// be broken without having noticed.
    pub async fn begin(&self, replica: Replica) -> Turn {
        let (end, superseded) = oneshot::channel();
        let turn = {
            let mut state = self.state.lock();
            // Those of which the connections have ended go.
            state.turns.retain(|other, it| *other == replica || Arc::strong_count(&it.turn) > 1);
            let connection = state.turns.entry(replica).or_default();
            if let Some(earlier) = connection.end.replace(end) {
                // It may have ended.
                let _ = earlier.send(());
            }
            connection.turn.clone()
        };
        Turn { superseded, _turn: turn.lock_owned().await }
    }

    /// Keeps a part; the oldest one goes if there are too many.
    pub fn put(self: &Arc<Self>, replica: Replica, header: Bytes, staged: Staged<R>) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        state.last += 1;
        let number = state.last;
        let mut dropped = vec![state.kept.insert(replica, Kept { number, header, staged })];
        if state.kept.len() > SNAPSHOTS_MAX {
            let oldest = state.kept.iter().min_by_key(|(_, kept)| kept.number);
            let oldest = oldest.map(|(replica, _)| *replica);
            dropped.push(oldest.and_then(|replica| state.kept.remove(&replica)));
        }
        // A part removes its files when it is dropped.
        drop(state);
        drop(dropped);
        let all = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(all.kept_for).await;
            all.expire(replica, number);
        });
    }

    /// Removes and returns the part of the snapshot with this header. A part of another snapshot for the
    /// same replica is dropped.
    pub fn take(&self, replica: Replica, header: &Bytes) -> Option<Staged<R>> {
        let kept = self.state.lock().kept.remove(&replica)?;
        let is_same = kept.header == *header || mutant::active("server.resumes_another_snapshot");
        is_same.then_some(kept.staged)
    }

    /// Drops all parts, and those that follow: their stores stop.
    pub fn close(&self) {
        let kept = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.kept)
        };
        drop(kept);
    }

    fn expire(&self, replica: Replica, number: u64) {
        let mut state = self.state.lock();
        let is_same = state.kept.get(&replica).is_some_and(|kept| kept.number == number);
        let expired = is_same.then(|| state.kept.remove(&replica));
        drop(state);
        drop(expired);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLICA: Replica = (StoreId(1), RegionId(2));

    fn part(number: u32) -> Staged<u32> {
        Staged { reception: number, position: Position::default() }
    }

    fn header(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    fn taken(all: &StagedSnapshots<u32>, replica: Replica, text: &'static str) -> Option<u32> {
        all.take(replica, &header(text)).map(|staged| staged.reception)
    }

    fn list() -> Arc<StagedSnapshots<u32>> {
        Arc::new(StagedSnapshots::new(Duration::from_millis(400)))
    }

    async fn wait(millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    #[tokio::test]
    async fn a_part_goes_on_only_as_the_same_snapshot_and_for_a_limited_time() {
        let all = list();
        all.put(REPLICA, header("at 5"), part(1));
        assert_eq!(taken(&all, REPLICA, "at 5"), Some(1));
        assert_eq!(taken(&all, REPLICA, "at 5"), None, "it is used once");
        all.put(REPLICA, header("at 5"), part(2));
        assert_eq!(taken(&all, REPLICA, "at 6"), None, "of another sender, index or term");
        assert_eq!(taken(&all, REPLICA, "at 5"), None, "and the part is gone");
        all.put(REPLICA, header("at 5"), part(3));
        wait(300).await;
        all.put(REPLICA, header("at 5"), part(4));
        wait(200).await;
        assert_eq!(taken(&all, REPLICA, "at 5"), Some(4), "the later part has its own time");
        all.put(REPLICA, header("at 5"), part(5));
        wait(1_000).await;
        assert_eq!(taken(&all, REPLICA, "at 5"), None);
    }

    #[tokio::test]
    async fn parts_are_bounded_and_go_when_the_node_stops() {
        let all = list();
        let replica = |region| (StoreId(1), RegionId(region));
        for region in 0..=SNAPSHOTS_MAX as u64 {
            all.put(replica(region), header("h"), part(region as u32));
        }
        assert_eq!(taken(&all, replica(0), "h"), None, "the oldest is gone");
        assert_eq!(taken(&all, replica(1), "h"), Some(1));
        all.close();
        assert_eq!(taken(&all, replica(2), "h"), None);
        all.put(replica(3), header("h"), part(3));
        assert_eq!(taken(&all, replica(3), "h"), None);
    }

    #[tokio::test]
    async fn a_new_connection_ends_the_one_before_and_waits_for_its_end() {
        let all = list();
        let mut first = all.begin(REPLICA).await;
        let _other = all.begin((StoreId(1), RegionId(3))).await;
        assert!(first.superseded.try_recv().is_err());
        let second = all.begin(REPLICA);
        tokio::pin!(second);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut second).await;
        assert!(early.is_err());
        assert_eq!(first.superseded.try_recv(), Ok(()));
        drop(first);
        second.await;
    }
}
