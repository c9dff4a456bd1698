//! Snapshots between stores. The sender reads a region's pairs in key order from a pinned view; the
//! receiver writes them into a value file and staged runs, never through its log.
//!
//! What goes on after a connection broke, and what does not, is decided in [`stele_node::snapshot`].

use crate::store::{Engine, StoreHandle};
use crate::stores::Stores;
use crate::tasks::{blocking, caught, stopping};
use crate::transport::{CloseReason, SnapshotOffer, SnapshotReceiver, Transport};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::snapshot::{BROKEN_NANOS_MAX, Parts, RETRY_NANOS, Reception, ReplicaKey, Source};
use stele_replica::{Done, Input, Reply, Request, SendSnapshot, wire};
use stele_types::{Error, Result, StoreId};
use tokio::sync::{OwnedMutexGuard, Semaphore, oneshot, watch};

/// Bytes of one chunk, approximately.
const CHUNK_BYTES: usize = 1 << 20;
const CHUNK_PAIRS: usize = 1024;
/// Most snapshots sent at the same time, and most received.
const SNAPSHOTS_MAX: usize = 2;

pub(crate) struct SnapshotTransfer {
    stores: Arc<Stores>,
    sending: Arc<Semaphore>,
    receiving: Arc<Semaphore>,
    turns: Turns,
    /// Parts that were received before their connection broke.
    parts: Arc<Mutex<Parts<Reception<Engine>>>>,
    started: Instant,
    stop: watch::Sender<bool>,
}

impl SnapshotTransfer {
    pub(crate) fn new(stores: Arc<Stores>) -> Self {
        let limit = || Arc::new(Semaphore::new(SNAPSHOTS_MAX));
        let (sending, receiving, stop) = (limit(), limit(), watch::Sender::new(false));
        let parts = Arc::new(Mutex::new(Parts::new(SNAPSHOTS_MAX)));
        let (turns, started) = (Turns::default(), Instant::now());
        Self { stores, sending, receiving, turns, parts, started, stop }
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        let parts = self.parts.lock().close();
        drop(parts);
    }

    fn now_nanos(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    pub(crate) async fn send(&self, transport: Transport, snapshot: SendSnapshot<Engine>) {
        let (region, to) = (snapshot.header.region.id, snapshot.header.to.id);
        let from = self.stores.get(snapshot.header.from.store);
        // The store must learn the end, also if it is a panic: otherwise it waits for it.
        let sending = self.stream(&transport, snapshot);
        let mut stop = self.stop.subscribe();
        let result = tokio::select! {
            result = caught("a snapshot", sending) => result.flatten(),
            _ = stop.wait_for(|stop| *stop) => Err(stopping()),
        };
        if let Err(error) = &result {
            tracing::info!("snapshot of region {region} to peer {to} ended: {error}");
        }
        if let Some(store) = from {
            store.input(Input::SnapshotSent { region, to, ok: result.is_ok() });
        }
    }

    async fn stream(&self, transport: &Transport, snapshot: SendSnapshot<Engine>) -> Result<()> {
        let mut header = Vec::new();
        wire::encode_snapshot(&snapshot.header, &mut header);
        let mut sending = Sending {
            from: snapshot.header.from.store,
            to: snapshot.to_store,
            header: Bytes::from(header),
            source: Some(Source::new(&snapshot, CHUNK_BYTES, CHUNK_PAIRS)),
        };
        loop {
            let room = self.sending.acquire().await;
            let sent = sending.on_connection(transport).await;
            drop(room);
            let reason = match sent {
                Ok(()) => return Ok(()),
                Err(Failure::Broken(reason)) => reason,
                Err(Failure::Final(error)) => return Err(error),
            };
            let now = self.now_nanos();
            if !sending.source.as_mut().is_some_and(|source| source.may_retry(now)) {
                return Err(closed(reason));
            }
            tracing::debug!("snapshot to store {} goes on: {reason}", sending.to);
            tokio::time::sleep(Duration::from_nanos(RETRY_NANOS)).await;
        }
    }

    /// Receives a snapshot that another store offers, if this store accepts it.
    pub(crate) async fn receive(&self, offer: SnapshotOffer) {
        let header = match wire::decode_snapshot(&offer.header()) {
            Ok(header) => header,
            Err(error) => return offer.refuse(&error.to_string()).await,
        };
        let Some(store) = self.stores.get(header.to.store) else {
            return offer.refuse("the store is not on this node").await;
        };
        let replica = (store.id(), header.region.id);
        let mut turn = self.turns.begin(replica).await;
        let Ok(_room) = self.receiving.try_acquire() else {
            return offer.refuse("the store is receiving other snapshots").await;
        };
        let _receiving = store.begin_receiving();
        let encoded = offer.header();
        let part = self.parts.lock().take(replica);
        let found = part.and_then(|part| part.of(&encoded)).filter(|_| offer.resumes());
        let offered = Request::SnapshotOffered(header.clone());
        // Invariant: a part, too, goes on only if the store still accepts its snapshot.
        let ranges = match store.submit(offered, None).await {
            Reply::Done(Done::SnapshotAccepted { ranges }) => ranges,
            other => return offer.refuse(&format!("{other:?}")).await,
        };
        let engine = store.engine().clone();
        let reception = match found {
            Some(reception) => reception,
            None => match blocking(move || Reception::begin(engine, header, ranges)).await {
                Ok(reception) => reception,
                Err(error) => return offer.refuse(&error.to_string()).await,
            },
        };
        let broken = match offer.accept(reception.position()).await {
            Ok(receiver) => self.receive_chunks(&store, receiver, reception, &mut turn).await,
            Err(_) => Some(reception),
        };
        if let Some(reception) = broken {
            // The sender goes on with the next connection, which waits for the end of this turn.
            self.keep(replica, encoded, reception);
        }
    }

    /// Keeps a part for its sender, for a limited time.
    fn keep(&self, replica: ReplicaKey, header: Bytes, reception: Reception<Engine>) {
        let dropped = self.parts.lock().put(replica, header, reception, self.now_nanos());
        drop(dropped);
        let (parts, started) = (self.parts.clone(), self.started);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_nanos(BROKEN_NANOS_MAX)).await;
            let expired = parts.lock().expire(started.elapsed().as_nanos() as u64);
            drop(expired);
        });
    }

    /// Stages the chunks of a connection. Installs the snapshot after the last one. Returns the part that
    /// was received if the connection broke.
    async fn receive_chunks(
        &self,
        store: &Arc<StoreHandle>,
        mut receiver: SnapshotReceiver,
        mut reception: Reception<Engine>,
        turn: &mut Turn,
    ) -> Option<Reception<Engine>> {
        let result = loop {
            let next = tokio::select! {
                next = receiver.next() => next,
                _ = &mut turn.superseded => return Some(reception),
            };
            let chunk = match next {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break blocking(move || reception.finish()).await,
                Err(reason) if reason.is_break() => return Some(reception),
                Err(reason) => break Err(closed(reason)),
            };
            let after = receiver.position();
            let received =
                blocking(move || reception.receive(chunk, after).map(|()| reception)).await;
            match received {
                Ok(received) => reception = received,
                Err(error) => break Err(error),
            }
        };
        let result = result.map(|input| store.input(input));
        if let Err(error) = &result {
            tracing::info!("snapshot to store {} ended: {error}", store.id());
        }
        receiver.done(result.map_err(|error| error.to_string())).await;
        None
    }
}

struct Sending {
    from: StoreId,
    to: StoreId,
    header: Bytes,
    /// `None` after a panic of a read.
    source: Option<Source<Engine>>,
}

enum Failure {
    Broken(CloseReason),
    /// Another one would not help.
    Final(Error),
}

impl From<CloseReason> for Failure {
    fn from(reason: CloseReason) -> Self {
        match reason.is_break() {
            true => Self::Broken(reason),
            false => Self::Final(closed(reason)),
        }
    }
}

impl Sending {
    async fn on_connection(&mut self, transport: &Transport) -> std::result::Result<(), Failure> {
        let resumes = self.source.as_ref().is_some_and(Source::resumes);
        let opened = transport.open_snapshot(self.from, self.to, self.header.clone(), resumes);
        let mut sender = opened.await?;
        let mut source = self.source.take().ok_or_else(|| Failure::Final(stopping()))?;
        if !source.accepted(sender.position()) {
            return Err(Failure::Final(Error::Busy("the receiver lost its part".to_owned())));
        }
        if sender.is_resumable() {
            source.note(sender.position());
        }
        loop {
            let read = blocking(move || {
                let chunk = source.next_chunk()?;
                Ok((source, chunk))
            });
            let (next, chunk) = read.await.map_err(Failure::Final)?;
            source = next;
            let Some(chunk) = chunk else { break };
            let sent = sender.send(chunk).await;
            if sender.is_resumable() {
                source.note(sender.position());
            }
            if let Err(reason) = sent {
                self.source = Some(source);
                return Err(reason.into());
            }
        }
        self.source = Some(source);
        sender.finish().await.map_err(Failure::from)
    }
}

fn closed(reason: CloseReason) -> Error {
    Error::Busy(format!("the connection ended: {reason}"))
}

#[derive(Default)]
struct Connection {
    end: Option<oneshot::Sender<()>>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Turns of connections to receive a snapshot: one at a time for each replica.
#[derive(Default)]
struct Turns(Mutex<BTreeMap<ReplicaKey, Connection>>);

struct Turn {
    /// Completes when another connection for the replica comes.
    pub superseded: oneshot::Receiver<()>,
    _turn: OwnedMutexGuard<()>,
}

impl Turns {
    /// Ends the connection that receives a snapshot for the replica, and waits until it has ended. It may
    /// be broken without having noticed.
    async fn begin(&self, replica: ReplicaKey) -> Turn {
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
