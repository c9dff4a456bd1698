//! Snapshots between stores. The sender reads a region's pairs in key order from a pinned view; the
//! receiver writes them into a value file and staged runs, never through its log. An aborted
//! snapshot leaves nothing.

use crate::store::{Engine, StoreHandle};
use crate::stores::Stores;
use crate::tasks::caught;
use crate::transport::{CloseReason, SnapshotOffer, SnapshotReceiver, Transport};
use std::sync::Arc;
use stele_node::snapshot::{Reception, Source};
use stele_raftstore::{Done, Input, Reply, SendSnapshot, SnapshotHeader, wire};
use stele_types::{Error, KeyRange, Result};
use tokio::sync::Semaphore;

/// Bytes of one chunk, at most.
const CHUNK_BYTES: usize = 1 << 20;
/// Pairs read at a time.
const SLICE_PAIRS: usize = 1024;
/// Most snapshots sent at the same time, and most received.
const SNAPSHOTS_MAX: usize = 2;

/// Sender and receiver of a node's snapshots.
pub struct Snapshots {
    stores: Arc<Stores>,
    sending: Arc<Semaphore>,
    receiving: Arc<Semaphore>,
}

impl Snapshots {
    /// Creates the service for a node's stores.
    pub fn new(stores: Arc<Stores>) -> Self {
        let limit = || Arc::new(Semaphore::new(SNAPSHOTS_MAX));
        Self { stores, sending: limit(), receiving: limit() }
    }

    /// Streams a snapshot and reports the outcome to the sending store.
    pub async fn send(&self, transport: Transport, snapshot: SendSnapshot<Engine>) {
        let (region, to) = (snapshot.header.region.id, snapshot.header.to.id);
        let from = self.stores.get(snapshot.header.from.store);
        let _room = self.sending.acquire().await;
        // The store must learn the end, also if it is a panic: otherwise it waits for it.
        let result = caught("a snapshot", stream(&transport, snapshot)).await.flatten();
        if let Err(error) = &result {
            tracing::info!("snapshot of region {region} to peer {to} ended: {error}");
        }
        if let Some(store) = from {
            store.input(Input::SnapshotSent { region, to, ok: result.is_ok() });
        }
    }

    /// Receives a snapshot that another store offers, if this store accepts it.
    pub async fn receive(&self, offer: SnapshotOffer) {
        let header = match wire::decode_snapshot(&offer.header()) {
            Ok(header) => header,
            Err(error) => return offer.refuse(&error.to_string()).await,
        };
        let Ok(_room) = self.receiving.try_acquire() else {
            return offer.refuse("the store is receiving other snapshots").await;
        };
        let Some(store) = self.stores.get(header.to.store) else {
            return offer.refuse("the store is not on this node").await;
        };
        let _receiving = store.begin_receiving();
        let offered = header.clone();
        let make = |id| Input::SnapshotOffered { id, header: offered };
        let ranges = match store.request(make).await {
            Reply::Done(Done::SnapshotAccepted { ranges }) => ranges,
            other => return offer.refuse(&format!("{other:?}")).await,
        };
        // A connection that breaks here ends the snapshot: its sender tries again.
        let Ok(mut receiver) = offer.accept().await else { return };
        let result = ingest(&store, &mut receiver, ranges, header).await;
        if let Err(error) = &result {
            tracing::info!("snapshot to store {} ended: {error}", store.id());
        }
        receiver.done(result.map_err(|error| error.to_string())).await;
    }
}

async fn stream(transport: &Transport, snapshot: SendSnapshot<Engine>) -> Result<()> {
    let mut header = Vec::new();
    wire::encode_snapshot(&snapshot.header, &mut header);
    let from = snapshot.header.from.store;
    let opened = transport.open_snapshot(from, snapshot.to_store, &header).await;
    let mut sender = opened.map_err(closed)?;
    let mut source = Source::new(&snapshot, CHUNK_BYTES, SLICE_PAIRS);
    loop {
        let (rest, piece) = blocking(move || {
            let piece = source.next_piece()?;
            Ok((source, piece))
        })
        .await?;
        source = rest;
        let Some(piece) = piece else { break };
        sender.send(piece).await.map_err(closed)?;
    }
    sender.finish().await.map_err(closed)
}

async fn ingest(
    store: &Arc<StoreHandle>,
    receiver: &mut SnapshotReceiver,
    ranges: Vec<KeyRange>,
    header: SnapshotHeader,
) -> Result<()> {
    let engine = store.engine().clone();
    let mut reception = blocking(move || Reception::begin(engine, header, ranges)).await?;
    while let Some(chunk) = receiver.next().await.map_err(closed)? {
        reception = blocking(move || {
            reception.receive(&chunk)?;
            Ok(reception)
        })
        .await?;
    }
    store.input(blocking(move || reception.finish()).await?);
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| stopping())?
}

fn closed(reason: CloseReason) -> Error {
    Error::Busy(format!("the connection ended: {reason}"))
}

fn stopping() -> Error {
    Error::Busy("the server is stopping".to_owned())
}
