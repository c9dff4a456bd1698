//! A set of operations that take effect atomically.

use stele_types::command::check_user_key;
use stele_types::{CommandBuilder, Op, Result};

/// Operations applied atomically: after a crash all of them are present or none.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    builder: CommandBuilder,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty batch with room for `bytes`; one of many MiB is then not copied as it
    /// grows.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { builder: CommandBuilder::with_capacity(bytes) }
    }

    /// Sets a key. Fails with `Invalid` above the limits and then adds nothing.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<&mut Self> {
        check_user_key(key)?;
        self.builder.put(key, value, 0)?;
        Ok(self)
    }

    /// Sets a key that ceases to exist at `expires_at_s` (Unix seconds).
    pub fn put_until(&mut self, key: &[u8], value: &[u8], expires_at_s: u64) -> Result<&mut Self> {
        check_user_key(key)?;
        self.builder.put(key, value, expires_at_s)?;
        Ok(self)
    }

    /// Removes a key.
    pub fn delete(&mut self, key: &[u8]) -> Result<&mut Self> {
        check_user_key(key)?;
        self.builder.delete(key)?;
        Ok(self)
    }

    /// Removes every key in [start, end); an empty `end` means no bound.
    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) -> Result<&mut Self> {
        check_user_key(start)?;
        check_user_key(end)?;
        self.builder.delete_range(start, end)?;
        Ok(self)
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.builder.len()
    }

    /// Whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.builder.is_empty()
    }

    /// Returns the encoded size in bytes.
    pub fn bytes(&self) -> usize {
        self.builder.encoded_bytes()
    }

    pub(crate) fn ops(&self) -> impl Iterator<Item = Op<'_>> {
        self.builder.ops()
    }

    /// Adds the operations to a group, without a copy when they are its first.
    pub(super) fn join(self, group: &mut CommandBuilder) -> Result<()> {
        if group.is_empty() {
            *group = self.builder;
            return Ok(());
        }
        group.extend(&self.builder).map(|_| ())
    }
}
