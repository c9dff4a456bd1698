//! Sending side: the pairs of a view in chunks of a bounded size.

use super::pairs;
use crate::pages::Pages;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use stele_raftstore::SendSnapshot;
use stele_storage::{ScanOptions, StorageEngine};
use stele_types::{KeyRange, Result};

/// Pairs of a snapshot that are still to be sent.
pub struct Source<E: StorageEngine> {
    view: Arc<E::View>,
    rest: Rest,
    chunk_bytes: usize,
    chunk_pairs: usize,
}

/// Ranges that no chunk has covered.
#[derive(Clone, Debug)]
pub struct Rest(VecDeque<KeyRange>);

impl<E: StorageEngine> Source<E> {
    /// Creates the source of a snapshot: chunks of about `chunk_bytes`, of at most `chunk_pairs` pairs.
    pub fn new(snapshot: &SendSnapshot<E>, chunk_bytes: usize, chunk_pairs: usize) -> Self {
        let rest = Rest(snapshot.ranges.iter().cloned().collect());
        Self { view: snapshot.view.clone(), rest, chunk_bytes, chunk_pairs }
    }

    /// Returns the next chunk, of whole pairs, in parts; `None` after the last. One pair may be larger
    /// than a chunk. May wait for the device.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<Bytes>>> {
        while let Some(range) = self.rest.0.pop_front() {
            let options = ScanOptions::new(range, self.chunk_pairs);
            let options = ScanOptions { bytes_max: self.chunk_bytes, ..options };
            let mut pages = Pages::new(&*self.view, options);
            let Some(found) = pages.next_page()? else { continue };
            let rest = pages.rest();
            if !rest.is_empty() {
                self.rest.0.push_front(rest);
            }
            return Ok(Some(pairs::encode(&found)));
        }
        Ok(None)
    }

    /// Returns what follows the last chunk.
    pub fn rest(&self) -> Rest {
        self.rest.clone()
    }

    /// Goes back to what followed an earlier chunk: the view is the same.
    pub fn go_back(&mut self, rest: Rest) {
        self.rest = rest;
    }
}
