//! Reads of key-values.

use super::cursor::{Cursor, Snapshot};
use super::db::{Db, Tier};
use super::pairs::{Found, data_key, data_range, user_key};
use super::value_log::ValueLog;
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use stele_storage::{CachedGet, EngineView, Order, Pair, ScanOptions};
use stele_types::{KeyRange, Result};

/// Snapshot of the key-values. Pointers in it stay valid: the value log is append-only.
#[derive(Debug)]
pub struct RockView {
    snapshot: Snapshot,
    values: Option<Arc<ValueLog>>,
    path: Arc<PathBuf>,
}

impl RockView {
    pub(super) fn new(db: &Arc<Db>, values: Option<&Arc<ValueLog>>, path: &Arc<PathBuf>) -> Self {
        Self { snapshot: Snapshot::new(db), values: values.cloned(), path: path.clone() }
    }

    fn found(&self, key: &[u8], tier: Tier) -> Result<Option<Option<Found>>> {
        let read = |stored: &[u8]| Found::decode(stored, &self.path);
        let found = self.snapshot.get(&data_key(key), tier, read)?;
        found.map(Option::transpose).transpose()
    }

    /// Passes the pairs of a range to `f` in order, without reading the value log, until `f`
    /// returns false.
    pub(super) fn walk(
        &self,
        range: &KeyRange,
        order: Order,
        mut f: impl FnMut(Bytes, Found) -> Result<bool>,
    ) -> Result<()> {
        let (start, end) = data_range(range);
        if start >= end {
            return Ok(());
        }
        let forward = order == Order::Forward;
        let mut cursor = self.snapshot.cursor();
        match forward {
            true => cursor.seek(&start),
            false => seek_below(&mut cursor, &end)?,
        }
        while let Some((key, stored)) = cursor.pair()? {
            let inside = key >= &start[..] && key < &end[..];
            let Some(user_key) = user_key(key).filter(|_| inside) else { break };
            if !f(user_key, Found::decode(stored, &self.path)?)? {
                break;
            }
            cursor.step(forward);
        }
        Ok(())
    }
}

fn seek_below(cursor: &mut Cursor<'_>, end: &[u8]) -> Result<()> {
    cursor.seek_back(end);
    if cursor.pair()?.is_some_and(|(key, _)| key == end) {
        cursor.step(false);
    }
    Ok(())
}

impl EngineView for RockView {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        let Some(found) = self.found(key, Tier::All)?.flatten() else { return Ok(None) };
        found.pair(Bytes::copy_from_slice(key), self.values.as_deref()).map(Some)
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        match self.found(key, Tier::Memory)? {
            None | Some(Some(Found::At { .. })) => Ok(CachedGet::needs_io(key)),
            Some(None) => Ok(CachedGet::Ready(None)),
            Some(Some(found)) => {
                let pair = found.pair(Bytes::copy_from_slice(key), None)?;
                Ok(CachedGet::Ready(Some(pair)))
            }
        }
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        let mut out = Vec::new();
        let mut bytes = 0;
        if options.limit == 0 {
            return Ok(out);
        }
        self.walk(&options.range, options.order, |key, found| {
            let value_bytes = if options.keys_only { 0 } else { found.value_bytes() as usize };
            bytes += key.len() + value_bytes;
            if !out.is_empty() && bytes > options.bytes_max {
                return Ok(false);
            }
            out.push(match options.keys_only {
                true => found.without_value(key),
                false => found.pair(key, self.values.as_deref())?,
            });
            Ok(out.len() < options.limit)
        })?;
        Ok(out)
    }
}
