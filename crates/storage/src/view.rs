//! Consistent views of a store, and what scans of them take and return.

use bytes::Bytes;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Result};

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// One pair of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Bytes,
    /// The value; empty in a keys-only scan.
    pub value: Bytes,
    /// Expiry in Unix seconds; 0 for none.
    pub expires_at_s: u64,
}

/// Range, order and limits of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// Keys to scan.
    pub range: KeyRange,
    /// Direction of the scan.
    pub order: Order,
    /// Maximum number of pairs.
    pub limit: usize,
    /// Maximum bytes of keys and values; the first pair is returned even if it is larger.
    pub bytes_max: usize,
    /// Return no values, and read none.
    pub keys_only: bool,
}

impl ScanOptions {
    /// Returns options for all of `range`, forward, with values, up to `limit` pairs and 64 MiB.
    pub fn new(range: KeyRange, limit: usize) -> Self {
        Self { range, order: Order::Forward, limit, bytes_max: 64 << 20, keys_only: false }
    }
}

/// Result of a read that must not wait for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached<T> {
    /// The result, from memory.
    Ready(T),
    /// The device must be read: repeat the read where it may wait.
    NeedsIo,
}

/// Result of a read that asks before it uses memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted<T> {
    /// The result.
    Read(T),
    /// The memory was refused; no value was read with it.
    Refused,
}

impl<T> Admitted<T> {
    /// Returns the result of a read of which all memory was admitted; an error otherwise.
    pub fn read(self) -> Result<T> {
        match self {
            Self::Read(read) => Ok(read),
            Self::Refused => Err(Error::invalid("the memory of a read was refused")),
        }
    }
}

/// Decides whether the memory of values may be used. Called before they are read, with the number of
/// pairs that are read together and the bytes of their keys and values.
pub type Admit<'a> = &'a mut dyn FnMut(usize, u64) -> bool;

/// One point in time of a whole store, without later writes. Expired pairs are returned; the
/// request threads, which know the time, hide them.
pub trait EngineView: Send + Sync {
    /// Returns the pair of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Pair>>;
    /// Returns the pair of `key` if that needs no read of the device. Never waits for the device.
    fn get_cached(&self, key: &[u8]) -> Result<Cached<Option<Pair>>>;
    /// Returns pairs in order.
    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>>;
    /// Like [`EngineView::get`], if the memory of the value is admitted. An engine that does not know
    /// the length of a value before it reads it asks afterwards.
    fn get_admitted(&self, key: &[u8], admit: Admit<'_>) -> Result<Admitted<Option<Pair>>> {
        let pair = self.get(key)?;
        Ok(admitted(pair.as_slice(), admit).then_read(pair))
    }
    /// Like [`EngineView::scan`], if the memory of the pairs is admitted; asked for each part of the
    /// scan that is read together.
    fn scan_admitted(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
    ) -> Result<Admitted<Vec<Pair>>> {
        let pairs = self.scan(options)?;
        Ok(admitted(&pairs, admit).then_read(pairs))
    }
    /// Records that a user scanned these adjacent pairs: what is scanned often is worth sorting.
    /// Not called for reads of the system itself.
    fn note_scan(&self, pairs: &[Pair]) {
        let _ = pairs;
    }
}

impl<V: EngineView> EngineView for Arc<V> {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        (**self).get(key)
    }

    fn get_cached(&self, key: &[u8]) -> Result<Cached<Option<Pair>>> {
        (**self).get_cached(key)
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        (**self).scan(options)
    }

    fn get_admitted(&self, key: &[u8], admit: Admit<'_>) -> Result<Admitted<Option<Pair>>> {
        (**self).get_admitted(key, admit)
    }

    fn scan_admitted(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
    ) -> Result<Admitted<Vec<Pair>>> {
        (**self).scan_admitted(options, admit)
    }

    fn note_scan(&self, pairs: &[Pair]) {
        (**self).note_scan(pairs);
    }
}

/// Asks for the memory of pairs that were read.
fn admitted(pairs: &[Pair], admit: Admit<'_>) -> Admitted<()> {
    let bytes = pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
    match pairs.is_empty() || admit(pairs.len(), bytes) {
        true => Admitted::Read(()),
        false => Admitted::Refused,
    }
}

impl Admitted<()> {
    fn then_read<T>(self, read: T) -> Admitted<T> {
        match self {
            Self::Read(()) => Admitted::Read(read),
            Self::Refused => Admitted::Refused,
        }
    }
}
