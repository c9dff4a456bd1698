//! Turns of connections to receive a snapshot: one at a time for each replica.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use stele_node::snapshot::ReplicaKey;
use tokio::sync::{OwnedMutexGuard, oneshot};

#[derive(Default)]
struct Connection {
    /// Sender that ends the connection in use.
    end: Option<oneshot::Sender<()>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Connections by replica.
#[derive(Default)]
pub(super) struct Turns(Mutex<BTreeMap<ReplicaKey, Connection>>);

/// Turn of a connection to receive the snapshot of a replica.
pub(super) struct Turn {
    /// Completes when another connection for the replica comes.
    pub superseded: oneshot::Receiver<()>,
    _turn: OwnedMutexGuard<()>,
}

impl Turns {
    /// Ends the connection that receives a snapshot for the replica, and waits until it has ended. It may
    /// be broken without having noticed.
    pub(super) async fn begin(&self, replica: ReplicaKey) -> Turn {
        let (end, superseded) = oneshot::channel();
        let turn = {
            let mut turns = self.0.lock();
            // Those of which the connections have ended go.
            turns.retain(|other, it| *other == replica || Arc::strong_count(&it.turn) > 1);
            let connection = turns.entry(replica).or_default();
            if let Some(earlier) = connection.end.replace(end) {
                // It may have ended.
                let _ = earlier.send(());
            }
            connection.turn.clone()
        };
        Turn { superseded, _turn: turn.lock_owned().await }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use stele_types::{RegionId, StoreId};

    #[tokio::test]
    async fn a_new_connection_ends_the_one_before_and_waits_for_its_end() {
        let (all, replica) = (Turns::default(), (StoreId(1), RegionId(2)));
        let mut first = all.begin(replica).await;
        let _other = all.begin((StoreId(1), RegionId(3))).await;
        assert!(first.superseded.try_recv().is_err());
        let second = all.begin(replica);
        tokio::pin!(second);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut second).await;
        assert!(early.is_err());
        assert_eq!(first.superseded.try_recv(), Ok(()));
        drop(first);
        second.await;
    }
}
