//! redb: transactions without durability, and a durable one at the end; the other stores do not
//! sync a log here either. They buffer and sort `MEMTABLE_BYTES` before they write, and redb does
//! the same here: a small transaction of scattered keys copies nearly a page per key.

use super::{CACHE_BYTES, MEMTABLE_BYTES, Ordered, VALUE_BYTES};
use crate::workload::KEY_BYTES;
use anyhow::{Context, Result};
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition, WriteTransaction,
};
use std::collections::BTreeMap;
use std::path::Path;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keys");
const TRANSACTION_KEYS: usize = MEMTABLE_BYTES / (KEY_BYTES + VALUE_BYTES);

pub(super) struct Redb {
    db: Database,
    pending: BTreeMap<[u8; KEY_BYTES], [u8; VALUE_BYTES]>,
    reader: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
}

impl Redb {
    pub(super) fn open(dir: &Path) -> Result<Self> {
        let db = Database::builder().set_cache_size(CACHE_BYTES).create(dir.join("keys.redb"))?;
        Ok(Self { db, pending: BTreeMap::new(), reader: None })
    }

    fn commit(&mut self, durability: Durability) -> Result<()> {
        let mut transaction: WriteTransaction = self.db.begin_write()?;
        transaction.set_durability(durability)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in std::mem::take(&mut self.pending) {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn reader(&self) -> Result<&ReadOnlyTable<&'static [u8], &'static [u8]>> {
        self.reader.as_ref().context("read before the load ended")
    }
}

impl Ordered for Redb {
    fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let value = value.try_into().context("a value of the stated length")?;
        self.pending.insert(key.try_into().context("a key of the stated length")?, value);
        if self.pending.len() < TRANSACTION_KEYS {
            return Ok(());
        }
        self.commit(Durability::None)
    }

    fn settle(&mut self) -> Result<()> {
        self.commit(Durability::Immediate)?;
        self.reader = Some(self.db.begin_read()?.open_table(TABLE)?);
        Ok(())
    }

    fn get(&self, key: &[u8]) -> Result<Option<usize>> {
        Ok(self.reader()?.get(key)?.map(|value| value.value().len()))
    }

    fn scan(&self, from: &[u8], limit: usize) -> Result<(usize, usize)> {
        let (mut count, mut bytes) = (0, 0);
        for pair in self.reader()?.range(from..)?.take(limit) {
            let (_, value) = pair?;
            (count, bytes) = (count + 1, bytes + value.value().len());
        }
        Ok((count, bytes))
    }
}
