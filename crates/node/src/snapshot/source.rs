//! Sending side: the pairs of a view in pieces of a bounded size.

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
    ranges: VecDeque<KeyRange>,
    /// Encoded bytes that are not sent yet.
    buffer: Vec<u8>,
    piece_bytes: usize,
    slice_pairs: usize,
}

impl<E: StorageEngine> Source<E> {
    /// Creates the source of a snapshot: pieces of `piece_bytes`, read `slice_pairs` pairs at a time.
    pub fn new(snapshot: &SendSnapshot<E>, piece_bytes: usize, slice_pairs: usize) -> Self {
        let (view, ranges) = (snapshot.view.clone(), snapshot.ranges.iter().cloned().collect());
        Self { view, ranges, buffer: Vec::new(), piece_bytes, slice_pairs }
    }

    /// Returns the next piece; `None` after the last. A value may be larger than a piece. May wait
    /// for the device.
    pub fn next_piece(&mut self) -> Result<Option<Bytes>> {
        while self.buffer.len() < self.piece_bytes {
            let Some(range) = self.ranges.pop_front() else { break };
            if let Some(rest) = self.read(range)? {
                self.ranges.push_front(rest);
            }
        }
        if self.buffer.is_empty() {
            return Ok(None);
        }
        let rest = self.buffer.split_off(self.buffer.len().min(self.piece_bytes));
        Ok(Some(Bytes::from(std::mem::replace(&mut self.buffer, rest))))
    }

    /// Encodes the next pairs of `range`. Returns the rest of the range; `None` at its end.
    fn read(&mut self, range: KeyRange) -> Result<Option<KeyRange>> {
        let options = ScanOptions::new(range, self.slice_pairs);
        let mut pages =
            Pages::new(&*self.view, ScanOptions { bytes_max: self.piece_bytes, ..options });
        let Some(found) = pages.next_page()? else { return Ok(None) };
        found.iter().for_each(|pair| pairs::encode(pair, &mut self.buffer));
        let rest = pages.rest();
        Ok((!rest.is_empty()).then_some(rest))
    }
}
