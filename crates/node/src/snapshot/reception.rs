//! Receiving side: chunks are decoded and staged; the loop installs the whole.

use super::pairs::Decoder;
use super::position::Position;
use bytes::Bytes;
use std::sync::Arc;
use stele_replica::{Input, SnapshotHeader};
use stele_storage::StorageEngine;
use stele_types::{KeyRange, Result};

/// Snapshot being received. Dropping it removes what was staged.
pub struct Reception<E: StorageEngine> {
    engine: Arc<E>,
    header: SnapshotHeader,
    ingest: E::Ingest,
    decoder: Decoder,
    position: Position,
}

impl<E: StorageEngine> Reception<E> {
    /// Begins to stage an accepted snapshot with these ranges.
    pub fn begin(engine: Arc<E>, header: SnapshotHeader, ranges: Vec<KeyRange>) -> Result<Self> {
        let ingest = engine.begin_ingest(ranges)?;
        let (decoder, position) = (Decoder::default(), Position::default());
        Ok(Self { engine, header, ingest, decoder, position })
    }

    /// Returns the position after the last chunk.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Stages the pairs that a chunk completes; `after` is the position after it. May wait for the device.
    pub fn receive(&mut self, chunk: Bytes, after: Position) -> Result<()> {
        let pairs = self.decoder.push(chunk)?;
        self.engine.receive(&mut self.ingest, pairs)?;
        self.position = after;
        Ok(())
    }

    /// Ends the reception after the last chunk. Returns the input with which the loop installs the
    /// snapshot. Fails with `Invalid` when a pair is unfinished.
    pub fn finish(self) -> Result<Input<E>> {
        let Self { engine, header, ingest, decoder, .. } = self;
        decoder.finish()?;
        // Flushes here what installing would flush: the loop then stops for moments only.
        engine.checkpoint()?;
        Ok(Input::SnapshotReceived { header, ingest })
    }
}
