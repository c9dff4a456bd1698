//! Fields of a body. Numbers are varints; bytes have their length before them.

use bytes::Bytes;
use stele_types::{ColumnFamily, Error, KeyRange, Result, varint};

/// A body from which fields are taken, front first.
pub(super) struct Fields<'a> {
    name: &'a str,
    body: Bytes,
    at: usize,
}

impl<'a> Fields<'a> {
    pub(super) fn new(name: &'a str, body: Vec<u8>) -> Self {
        Self { name, body: Bytes::from(body), at: 0 }
    }

    pub(super) fn damaged(&self, detail: &str) -> Error {
        Error::damaged_backup(self.name, format!("byte {} of its body: {detail}", self.at))
    }

    fn rest(&self) -> &[u8] {
        self.body.get(self.at..).unwrap_or_default()
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }

    /// Ends the body: fails if bytes follow.
    pub(super) fn end(&self) -> Result<()> {
        if self.is_at_end() { Ok(()) } else { Err(self.damaged("bytes follow the last field")) }
    }

    pub(super) fn number(&mut self) -> Result<u64> {
        let mut rest = self.rest();
        let before = rest.len();
        let Some(number) = varint::take(&mut rest) else {
            return Err(self.damaged("a number is cut short"));
        };
        self.at += before - rest.len();
        Ok(number)
    }

    /// Takes the number of items that follow. Each has at least one byte, so that memory for them is bounded by
    /// the body.
    pub(super) fn count(&mut self) -> Result<usize> {
        let count = self.number()?;
        let count = usize::try_from(count).ok().filter(|count| *count <= self.rest().len());
        count.ok_or_else(|| self.damaged("more items are stated than bytes follow"))
    }

    pub(super) fn byte(&mut self) -> Result<u8> {
        let byte = self.rest().first().copied();
        let byte = byte.ok_or_else(|| self.damaged("a byte is missing"))?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn exactly<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.rest().first_chunk::<N>().copied();
        let bytes = bytes.ok_or_else(|| self.damaged("bytes are cut short"))?;
        self.at += N;
        Ok(bytes)
    }

    /// Takes bytes. They share the memory of the body.
    pub(super) fn bytes(&mut self) -> Result<Bytes> {
        let length = self.count()?;
        let taken = self.body.slice(self.at..self.at + length);
        self.at += length;
        Ok(taken)
    }

    pub(super) fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.damaged("a text is not UTF-8"))
    }

    pub(super) fn range(&mut self) -> Result<KeyRange> {
        let (start, end) = (self.bytes()?, self.bytes()?);
        Ok(KeyRange { start, end })
    }

    pub(super) fn family(&mut self) -> Result<ColumnFamily> {
        let space = self.byte()?;
        let family = ColumnFamily::ALL.into_iter().find(|family| family.space() == space);
        family.ok_or_else(|| self.damaged("a column family is unknown"))
    }
}

pub(super) fn put_range(out: &mut Vec<u8>, range: &KeyRange) {
    varint::put_bytes(out, &range.start);
    varint::put_bytes(out, &range.end);
}
