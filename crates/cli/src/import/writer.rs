//! Writes the items of a source, with many puts in flight.

use super::Item;
use crate::store::{Pending, Store};
use crate::terminal::Progress;
use crate::text::printable;
use std::collections::{HashMap, VecDeque};
use stele_types::{Error, Result};

/// Maximum number of puts in flight: enough for full group commits.
const WAITING_MAX: usize = 1024;
const WAITING_BYTES_MAX: u64 = 32 << 20;

#[derive(Debug, Default)]
pub(super) struct ImportCounts {
    pub written: u64,
    pub written_bytes: u64,
    pub unchanged: u64,
    pub expired: u64,
    pub skipped: u64,
    pub refused: u64,
}

struct Waiting {
    key: Vec<u8>,
    pending: Pending,
    bytes: u64,
    source_bytes: u64,
}

pub(super) struct Writer<'a> {
    store: &'a Store,
    progress: &'a Progress,
    report: ImportCounts,
    waiting: VecDeque<Waiting>,
    waiting_bytes: u64,
    /// Number of puts in flight per key. While there is one, the store's value is not the latest.
    waiting_keys: HashMap<Vec<u8>, usize>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(store: &'a Store, progress: &'a Progress) -> Self {
        Self {
            store,
            progress,
            report: ImportCounts::default(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            waiting_keys: HashMap::new(),
        }
    }

    pub(super) fn accept(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Pair { key, value, expires_at_s, source_bytes } => {
                self.put(key, &value, expires_at_s, source_bytes)
            }
            Item::Expired { source_bytes } => {
                self.report.expired += 1;
                self.progress.add(source_bytes);
                Ok(())
            }
            Item::Refused { what, error, source_bytes } => {
                self.refuse(&what, &error, source_bytes);
                Ok(())
            }
            Item::Skipped { path, kind } => {
                self.report.skipped += 1;
                self.progress.warn(&format!("{}: {kind} is not stored", path.display()));
                Ok(())
            }
        }
    }

    pub(super) fn finish(mut self) -> Result<ImportCounts> {
        while !self.waiting.is_empty() {
            self.wait_for_oldest()?;
        }
        Ok(self.report)
    }

    fn put(
        &mut self,
        key: Vec<u8>,
        value: &[u8],
        expires_at_s: u64,
        source_bytes: u64,
    ) -> Result<()> {
        if expires_at_s == 0 && self.is_unchanged(&key, value)? {
            self.report.unchanged += 1;
            self.progress.add(source_bytes);
            return Ok(());
        }
        let bytes = (key.len() + value.len()) as u64;
        while self.waiting.len() >= WAITING_MAX
            || (!self.waiting.is_empty() && self.waiting_bytes + bytes > WAITING_BYTES_MAX)
        {
            self.wait_for_oldest()?;
        }
        match self.store.put_later(&key, value, expires_at_s) {
            Ok(pending) => {
                *self.waiting_keys.entry(key.clone()).or_default() += 1;
                self.waiting_bytes += bytes;
                self.waiting.push_back(Waiting { key, pending, bytes, source_bytes });
            }
            Err(error @ Error::Invalid(_)) => self.refuse(&printable(&key), &error, source_bytes),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn is_unchanged(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        if self.waiting_keys.contains_key(key) {
            return Ok(false);
        }
        match self.store.get(key) {
            // bug cli.import_compares_keys_only: `!expires && old == value` is `true`
            Ok(Some((old, expires))) => Ok(!expires && old == value),
            Ok(None) => Ok(false),
            // The import replaces a damaged value.
            Err(error) if error.is_damage() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn wait_for_oldest(&mut self) -> Result<()> {
        let Some(Waiting { key, pending, bytes, source_bytes }) = self.waiting.pop_front() else {
            return Ok(());
        };
        pending.wait()?;
        self.waiting_bytes -= bytes;
        if let Some(times) = self.waiting_keys.get_mut(&key) {
            *times -= 1;
            if *times == 0 {
                self.waiting_keys.remove(&key);
            }
        }
        self.report.written += 1;
        self.report.written_bytes += bytes;
        self.progress.add(source_bytes);
        Ok(())
    }

    fn refuse(&mut self, what: &str, error: &Error, source_bytes: u64) {
        self.report.refused += 1;
        let line = if what.is_empty() { error.to_string() } else { format!("{what}: {error}") };
        self.progress.warn(&line);
        self.progress.add(source_bytes);
    }
}
