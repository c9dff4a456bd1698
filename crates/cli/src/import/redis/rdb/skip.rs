//! Values of an RDB file that cannot be imported: they are read past, without being held.

use super::{RdbError, Reader};
use std::io::Read;

impl<R: Read> Reader<'_, R> {
    /// Skips a value; returns the name of its type. `offset` is that of the byte of its kind.
    pub(super) fn skip_value(&mut self, kind: u8, offset: u64) -> Result<String, RdbError> {
        let of = match kind {
            1 | 14 => {
                self.repeated(|reader| reader.strings(1))?;
                "list"
            }
            10 => {
                self.strings(1)?;
                "list"
            }
            18 => {
                self.repeated(|reader| {
                    reader.lengths(1)?;
                    reader.strings(1)
                })?;
                "list"
            }
            3 => {
                self.repeated(|reader| {
                    reader.strings(1)?;
                    reader.skip_score()
                })?;
                "zset"
            }
            5 => {
                self.repeated(|reader| {
                    reader.strings(1)?;
                    reader.input.skip(8)
                })?;
                "zset"
            }
            12 | 17 => {
                self.strings(1)?;
                "zset"
            }
            15 | 19 | 21 => {
                self.skip_stream(kind)?;
                "stream"
            }
            7 => {
                let id = self.input.length()?;
                self.skip_module_parts()?;
                return Ok(format!("module {}", module_name(id)));
            }
            other => {
                return Err(RdbError::Unknown { offset, what: format!("a value of type {other}") });
            }
        };
        Ok(of.to_owned())
    }

    /// Reads a number, and so many parts.
    fn repeated(
        &mut self,
        part: impl Fn(&mut Self) -> Result<(), RdbError>,
    ) -> Result<(), RdbError> {
        let parts = self.input.length()?;
        (0..parts).try_for_each(|_| part(self))
    }

    /// Skips a score as text. Lengths from 253 stand for no number and the infinities.
    fn skip_score(&mut self) -> Result<(), RdbError> {
        match self.input.byte()? {
            253.. => Ok(()),
            bytes => self.input.skip(u64::from(bytes)),
        }
    }

    fn skip_stream(&mut self, kind: u8) -> Result<(), RdbError> {
        let (is_2, is_3) = (kind >= 19, kind >= 21);
        const ID_BYTES: u64 = 16;
        const TIME_BYTES: u64 = 8;
        // Each node: its first identifier, and its entries.
        self.repeated(|reader| reader.strings(2))?;
        // Entries, and the last identifier; then the first, the last that was deleted, and all that were added.
        self.lengths(if is_2 { 3 + 5 } else { 3 })?;
        // Groups: name, last identifier, entries read, pending entries, consumers with theirs.
        self.repeated(|reader| {
            reader.strings(1)?;
            reader.lengths(if is_2 { 3 } else { 2 })?;
            reader.repeated(|reader| {
                reader.input.skip(ID_BYTES + TIME_BYTES)?;
                reader.lengths(1)
            })?;
            reader.repeated(|reader| {
                reader.strings(1)?;
                reader.input.skip(if is_3 { 2 * TIME_BYTES } else { TIME_BYTES })?;
                reader.repeated(|reader| reader.input.skip(ID_BYTES))
            })
        })
    }

    /// Skips a record of a module.
    pub(super) fn module_record(&mut self) -> Result<(), RdbError> {
        let id = self.input.length()?;
        // When it is loaded.
        self.lengths(2)?;
        self.skip_module_parts()?;
        Ok(self.sink.other_record(&format!("record of module {}", module_name(id)))?)
    }

    /// Skips parts of a module, each with its kind, up to the end.
    fn skip_module_parts(&mut self) -> Result<(), RdbError> {
        loop {
            match self.input.length()? {
                0 => return Ok(()),
                1 | 2 => self.lengths(1)?,
                3 => self.input.skip(4)?,
                4 => self.input.skip(8)?,
                5 => self.strings(1)?,
                other => {
                    return Err(self.input.damaged(format!("a module's part of kind {other}")));
                }
            }
        }
    }
}

/// Returns the name in the identifier of a module's type: nine characters of 6 bits, then 10 bits of a version.
fn module_name(id: u64) -> String {
    const CHARACTERS: &[u8; 64] =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let character = |at: u64| {
        let place = id >> (10 + 6 * at) & 0x3f;
        char::from(CHARACTERS.get(place as usize).copied().unwrap_or(b'?'))
    };
    (0..9).rev().map(character).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_module_is_in_its_identifier() {
        let place = |byte: u8| match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            _ => 63,
        };
        let id = b"ReJSON-RL".iter().fold(0u64, |id, &byte| id << 6 | u64::from(place(byte)));
        assert_eq!(module_name(id << 10 | 3), "ReJSON-RL");
    }
}
