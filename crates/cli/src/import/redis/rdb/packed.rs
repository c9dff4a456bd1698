//! Small collections, which a file has as one string: ziplists, listpacks, zipmaps and sets of integers.
//!
//! Byte layouts, numbers little-endian unless said otherwise:
//! - ziplist: bytes u32, tail u32, entries u16, entries, 0xff. Entry: bytes of the one before (u8, or 0xfe and
//!   u32), encoding, content.
//! - listpack: bytes u32, entries u16, entries, 0xff. Entry: encoding, content, and the bytes of both in one to
//!   five bytes.
//! - zipmap: pairs u8, pairs, 0xff. Pair: bytes of the key (u8, or 0xfe and u32), key, bytes of the value, unused
//!   bytes u8, value, the unused bytes.
//! - set of integers: bytes of each u32, number u32, integers.

use bytes::Bytes;

const END: u8 = 0xff;
const LONG: u8 = 0xfe;

/// Form of a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packed {
    Ziplist,
    Listpack,
    Zipmap,
    Integers,
}

/// Elements of a packed collection, in order; after damage `None`, once.
pub(super) struct Elements<'a> {
    form: Packed,
    rest: &'a [u8],
    /// Bytes of each integer of a set of them.
    integer_bytes: usize,
    /// Whether the next text of a zipmap is a value.
    is_value: bool,
    is_ended: bool,
}

impl<'a> Elements<'a> {
    /// Reads the beginning; `None` if it is damaged.
    pub(super) fn new(form: Packed, bytes: &'a [u8]) -> Option<Self> {
        let mut elements =
            Self { form, rest: bytes, integer_bytes: 0, is_value: false, is_ended: false };
        match form {
            Packed::Ziplist => drop(elements.bytes(4 + 4 + 2)?),
            Packed::Listpack => drop(elements.bytes(4 + 2)?),
            Packed::Zipmap => drop(elements.bytes(1)?),
            Packed::Integers => {
                elements.integer_bytes = elements.long_length()?;
                let number = elements.long_length()?;
                let is_known = matches!(elements.integer_bytes, 2 | 4 | 8);
                let bytes = number.checked_mul(elements.integer_bytes)?;
                if !is_known || bytes != elements.rest.len() {
                    return None;
                }
            }
        }
        Some(elements)
    }

    fn bytes(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        let [byte] = self.bytes(1)? else { return None };
        Some(*byte)
    }

    /// Reads a signed number of at most 8 bytes.
    fn number(&mut self, bytes: usize) -> Option<i64> {
        let mut wide = [0; 8];
        let taken = self.bytes(bytes)?;
        wide.get_mut(8 - bytes..)?.copy_from_slice(taken);
        // The sign is in the highest byte.
        Some(i64::from_le_bytes(wide) >> (64 - 8 * bytes))
    }

    fn long_length(&mut self) -> Option<usize> {
        let bytes = self.bytes(4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    }

    fn text(&mut self, bytes: usize) -> Option<Bytes> {
        self.bytes(bytes).map(Bytes::copy_from_slice)
    }

    /// Returns the next element, or nothing at the end; `None` for damage.
    fn element(&mut self) -> Option<Option<Bytes>> {
        if self.form == Packed::Integers {
            return match self.rest.is_empty() {
                true => Some(None),
                false => self.number(self.integer_bytes).map(|number| Some(decimal(number))),
            };
        }
        if self.rest.first() == Some(&END) {
            // Nothing may follow.
            return (self.rest.len() == 1).then_some(None);
        }
        match self.form {
            Packed::Ziplist => self.ziplist_entry(),
            Packed::Listpack => self.listpack_entry(),
            Packed::Zipmap | Packed::Integers => self.zipmap_text(),
        }
        .map(Some)
    }

    fn ziplist_entry(&mut self) -> Option<Bytes> {
        if self.byte()? == LONG {
            self.bytes(4)?;
        }
        let encoding = self.byte()?;
        match (encoding >> 6, encoding) {
            (0, _) => self.text(usize::from(encoding)),
            (1, _) => {
                let bytes = usize::from(encoding & 0x3f) << 8 | usize::from(self.byte()?);
                self.text(bytes)
            }
            (2, 0x80) => {
                // Big-endian.
                let bytes = u32::from_be_bytes(self.bytes(4)?.try_into().ok()?);
                self.text(usize::try_from(bytes).ok()?)
            }
            (_, 0xc0) => self.number(2).map(decimal),
            (_, 0xd0) => self.number(4).map(decimal),
            (_, 0xe0) => self.number(8).map(decimal),
            (_, 0xf0) => self.number(3).map(decimal),
            (_, 0xfe) => self.number(1).map(decimal),
            (_, 0xf1..=0xfd) => Some(decimal(i64::from(encoding & 0x0f) - 1)),
            _ => None,
        }
    }

    fn listpack_entry(&mut self) -> Option<Bytes> {
        let before = self.rest.len();
        let encoding = self.byte()?;
        let element = match encoding {
            0..=0x7f => Some(decimal(i64::from(encoding))),
            0x80..=0xbf => self.text(usize::from(encoding & 0x3f)),
            0xc0..=0xdf => {
                let number = i64::from(encoding & 0x1f) << 8 | i64::from(self.byte()?);
                // 13 bits with a sign.
                Some(decimal(number << 51 >> 51))
            }
            0xe0..=0xef => {
                let bytes = usize::from(encoding & 0x0f) << 8 | usize::from(self.byte()?);
                self.text(bytes)
            }
            0xf0 => {
                let bytes = self.long_length()?;
                self.text(bytes)
            }
            0xf1 => self.number(2).map(decimal),
            0xf2 => self.number(3).map(decimal),
            0xf3 => self.number(4).map(decimal),
            0xf4 => self.number(8).map(decimal),
            _ => None,
        }?;
        let bytes = before - self.rest.len();
        self.bytes(match bytes {
            0..0x80 => 1,
            0x80..0x4000 => 2,
            0x4000..0x20_0000 => 3,
            0x20_0000..0x1000_0000 => 4,
            _ => 5,
        })?;
        Some(element)
    }

    /// Reads a key of a zipmap, or a value; these take turns.
    fn zipmap_text(&mut self) -> Option<Bytes> {
        let bytes = match self.byte()? {
            LONG => self.long_length()?,
            bytes => usize::from(bytes),
        };
        let is_value = self.is_value;
        self.is_value = !is_value;
        let unused = if is_value { usize::from(self.byte()?) } else { 0 };
        let text = self.text(bytes)?;
        self.bytes(unused)?;
        Some(text)
    }
}

impl Iterator for Elements<'_> {
    type Item = Option<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_ended {
            return None;
        }
        let element = self.element();
        self.is_ended = !matches!(element, Some(Some(_)));
        match element {
            Some(None) => None,
            Some(element) => Some(element),
            None => Some(None),
        }
    }
}

fn decimal(number: i64) -> Bytes {
    Bytes::from(number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(form: Packed, bytes: &[u8]) -> Option<Vec<String>> {
        let text = |element: Option<Bytes>| element.map(|it| String::from_utf8_lossy(&it).into());
        Elements::new(form, bytes)?.map(text).collect()
    }

    #[test]
    fn every_entry_of_a_ziplist_is_read() {
        let mut bytes = b"\0\0\0\0\0\0\0\0\0\0".to_vec();
        let entries: [&[u8]; 10] = [
            b"\0\x02ab",
            b"\x04\x40\x01c",
            b"\xfe\x04\0\0\0\x80\0\0\0\x01d",
            b"\0\xc0\xff\x7f",
            b"\0\xd0\0\0\0\x80",
            b"\0\xe0\xff\xff\xff\xff\xff\xff\xff\xff",
            b"\0\xf0\xff\xff\x7f",
            b"\0\xfe\x80",
            b"\0\xf1",
            b"\0\xfd",
        ];
        entries.iter().for_each(|entry| bytes.extend_from_slice(entry));
        bytes.push(END);
        let expected = ["ab", "c", "d", "32767", "-2147483648", "-1", "8388607", "-128", "0", "12"];
        assert_eq!(all(Packed::Ziplist, &bytes).unwrap(), expected);
    }

    #[test]
    fn every_entry_of_a_listpack_is_read() {
        let mut bytes = b"\0\0\0\0\0\0".to_vec();
        let long = [&b"\xe0\x80"[..], &[b'x'; 128], b"\0\0"].concat();
        let entries: [&[u8]; 10] = [
            b"\x7f\x01",
            b"\x82ab\x03",
            b"\xdf\xff\x02",
            b"\xcf\xff\x02",
            &long,
            b"\xf0\x01\0\0\0c\x06",
            b"\xf1\0\x80\x03",
            b"\xf2\xff\xff\xff\x04",
            b"\xf3\xff\xff\xff\x7f\x05",
            b"\xf4\0\0\0\0\0\0\0\x80\x09",
        ];
        entries.iter().for_each(|entry| bytes.extend_from_slice(entry));
        bytes.push(END);
        let text = "x".repeat(128);
        let expected = [
            "127",
            "ab",
            "-1",
            "4095",
            &text,
            "c",
            "-32768",
            "-1",
            "2147483647",
            "-9223372036854775808",
        ];
        assert_eq!(all(Packed::Listpack, &bytes).unwrap(), expected);
    }

    #[test]
    fn zipmaps_and_sets_of_integers_are_read() {
        let zipmap = b"\x02\x01k\x02\x01vw_\xfe\x01\0\0\0m\0\0\xff";
        assert_eq!(all(Packed::Zipmap, zipmap).unwrap(), ["k", "vw", "m", ""]);
        assert_eq!(
            all(Packed::Integers, b"\x02\0\0\0\x02\0\0\0\xff\xff\x05\0").unwrap(),
            ["-1", "5"]
        );
        assert_eq!(all(Packed::Integers, b"\x08\0\0\0\0\0\0\0").unwrap(), [""; 0]);
    }

    #[test]
    fn damage_is_reported_once_and_ends_the_elements() {
        let rows: [(Packed, &[u8]); 9] = [
            (Packed::Ziplist, b"\0\0\0\0\0\0\0\0\0\0"),
            (Packed::Ziplist, b"\0\0\0\0\0\0\0\0\0\0\0\x09a\xff"),
            (Packed::Ziplist, b"\0\0\0\0\0\0\0\0\0\0\0\x81a\xff"),
            (Packed::Ziplist, b"\0\0\0\0\0\0\0\0\0\0\xff\xff"),
            (Packed::Listpack, b"\0\0\0\0\0\0\xf5\xff"),
            (Packed::Listpack, b"\0\0\0\0\0\0\x7f"),
            (Packed::Zipmap, b"\x01\x01k\x01\x09v\xff"),
            (Packed::Integers, b"\x03\0\0\0\0\0\0\0"),
            (Packed::Integers, b"\x02\0\0\0\x02\0\0\0\xff\xff"),
        ];
        for (form, bytes) in rows {
            assert_eq!(all(form, bytes), None, "{form:?} {bytes:?}");
            if let Some(elements) = Elements::new(form, bytes) {
                assert!(elements.count() <= bytes.len());
            }
        }
    }
}
