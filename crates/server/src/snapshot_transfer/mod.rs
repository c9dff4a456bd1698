//! Snapshots between stores. The sender reads a region's pairs in key order from a pinned view; the
//! receiver writes them into a value file and staged runs, never through its log. An aborted
//! snapshot leaves nothing.

mod pairs;

use crate::paging::Pages;
use crate::store::{Engine, StoreHandle};
use crate::stores::Stores;
use crate::tasks::caught;
use crate::transport::{CloseReason, SnapshotOffer, SnapshotReceiver, SnapshotSender, Transport};
use bytes::Bytes;
use std::sync::Arc;
use stele_raftstore::{Done, Input, Reply, SendSnapshot, SnapshotHeader, wire};
use stele_storage::{EngineView, ScanOptions, StorageEngine};
use stele_types::{Error, KeyRange, Result};
use tokio::sync::Semaphore;

/// Decoders of bytes from outside, for fuzz targets.
pub(crate) mod fuzzing {
    use super::pairs;
    use stele_storage::Pair;
    use stele_types::Result;

    /// Decodes the pairs of a snapshot from its chunks.
    pub fn snapshot_pairs<'a>(chunks: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Pair>> {
        let (mut decoder, mut pairs) = (pairs::Decoder::default(), Vec::new());
        for chunk in chunks {
            pairs.extend(decoder.push(chunk)?);
        }
        decoder.finish().map(|()| pairs)
    }

    /// Encodes pairs.
    pub fn snapshot_bytes(pairs: &[Pair]) -> Vec<u8> {
        let mut out = Vec::new();
        pairs.iter().for_each(|pair| pairs::encode(pair, &mut out));
        out
    }
}

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
        let offered = header.clone();
        let make = |id| Input::SnapshotOffered { id, header: offered };
        let ranges = match store.request(0, make).await {
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
    let mut buffer = Vec::new();
    for range in snapshot.ranges {
        let mut next = Some(range);
        while let Some(range) = next {
            let view = snapshot.view.clone();
            let slice = tokio::task::spawn_blocking(move || slice(&*view, range));
            let (bytes, rest) = slice.await.map_err(|_| stopping())??;
            next = rest;
            buffer.extend_from_slice(&bytes);
            send_chunks(&mut sender, &mut buffer, CHUNK_BYTES).await?;
        }
    }
    send_chunks(&mut sender, &mut buffer, 1).await?;
    sender.finish().await.map_err(closed)
}

/// Sends whole chunks until fewer than `keep_below` bytes are left.
async fn send_chunks(
    sender: &mut SnapshotSender,
    buffer: &mut Vec<u8>,
    keep_below: usize,
) -> Result<()> {
    let mut sent = 0;
    while buffer.len() - sent >= keep_below {
        let end = buffer.len().min(sent + CHUNK_BYTES);
        let chunk = buffer.get(sent..end).unwrap_or_default();
        sender.send(Bytes::copy_from_slice(chunk)).await.map_err(closed)?;
        sent = end;
    }
    buffer.drain(..sent);
    Ok(())
}

/// Returns the next pairs of `range`, encoded, and the rest of the range.
fn slice(view: &impl EngineView, range: KeyRange) -> Result<(Vec<u8>, Option<KeyRange>)> {
    let options = ScanOptions { bytes_max: CHUNK_BYTES, ..ScanOptions::new(range, SLICE_PAIRS) };
    let mut pages = Pages::new(view, options);
    let mut bytes = Vec::new();
    let Some(found) = pages.next()? else { return Ok((bytes, None)) };
    found.iter().for_each(|pair| pairs::encode(pair, &mut bytes));
    let rest = pages.rest();
    Ok((bytes, (!rest.is_empty()).then_some(rest)))
}

async fn ingest(
    store: &Arc<StoreHandle>,
    receiver: &mut SnapshotReceiver,
    ranges: Vec<KeyRange>,
    header: SnapshotHeader,
) -> Result<()> {
    let engine = store.engine().clone();
    let mut ingest = blocking(move || engine.begin_ingest(ranges)).await?;
    let mut decoder = pairs::Decoder::default();
    while let Some(chunk) = receiver.next().await.map_err(closed)? {
        let pairs = decoder.push(&chunk)?;
        let engine = store.engine().clone();
        ingest = blocking(move || {
            engine.receive(&mut ingest, pairs)?;
            Ok(ingest)
        })
        .await?;
    }
    decoder.finish()?;
    // Flushes here what installing would flush: the loop then stops for moments only.
    let engine = store.engine().clone();
    blocking(move || engine.checkpoint()).await?;
    store.input(Input::SnapshotReceived { header, ingest });
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
