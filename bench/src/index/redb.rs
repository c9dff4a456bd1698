//! redb: large transactions without durability, and one durable one at the end.

use super::{CACHE_BYTES, Ordered};
use anyhow::{Context, Result};
use redb::{
    Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition, WriteTransaction,
};
use std::path::Path;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keys");
const TRANSACTION_KEYS: usize = 100_000;

pub struct Redb {
    db: Database,
    pending: Vec<([u8; 16], Vec<u8>)>,
    reader: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
}

impl Redb {
    pub fn open(dir: &Path) -> Result<Self> {
        let db = Database::builder().set_cache_size(CACHE_BYTES).create(dir.join("keys.redb"))?;
        Ok(Self { db, pending: Vec::with_capacity(TRANSACTION_KEYS), reader: None })
    }

    fn commit(&mut self, durability: Durability) -> Result<()> {
        let mut transaction: WriteTransaction = self.db.begin_write()?;
        transaction.set_durability(durability)?;
        {
            let mut table = transaction.open_table(TABLE)?;
            for (key, value) in self.pending.drain(..) {
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
        self.pending.push((key.try_into().context("a key of 16 bytes")?, value.to_vec()));
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
