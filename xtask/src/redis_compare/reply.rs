//! Replies of the Redis protocol as trees.

use anyhow::{Context, Result, bail, ensure};
use std::fmt;
use std::io::BufRead;

/// Bytes of a string at most. The sequences have none that is longer.
const STRING_BYTES_MAX: usize = 64 << 20;
/// Elements of an array at most.
const ELEMENTS_MAX: usize = 1 << 20;
/// Arrays within arrays at most.
const DEPTH_MAX: usize = 16;

/// Reply as the server sent it: each form of RESP2 and RESP3 is another one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reply {
    Simple(Vec<u8>),
    Error(Vec<u8>),
    Integer(i64),
    Bulk(Vec<u8>),
    NullBulk,
    NullArray,
    /// Null of RESP3.
    Null,
    Array(Vec<Reply>),
    Set(Vec<Reply>),
    Push(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Verbatim(Vec<u8>),
    /// Double, boolean or large number with its sign.
    Other(Vec<u8>),
}

impl Reply {
    /// Reads one reply.
    pub(super) fn read(input: &mut impl BufRead) -> Result<Self> {
        Self::read_at(input, 0)
    }

    fn read_at(input: &mut impl BufRead, depth: usize) -> Result<Self> {
        ensure!(depth < DEPTH_MAX, "a reply has more than {DEPTH_MAX} arrays within each other");
        let mut line = Vec::new();
        input.read_until(b'\n', &mut line).context("reading a reply")?;
        ensure!(line.ends_with(b"\r\n"), "the server closed the connection");
        line.truncate(line.len() - 2);
        let Some((sign, text)) = line.split_first() else { bail!("a reply is an empty line") };
        Ok(match sign {
            b'+' => Self::Simple(text.to_vec()),
            b'-' => Self::Error(text.to_vec()),
            b':' => Self::Integer(number(text)?),
            b'$' | b'=' | b'!' => {
                let Some(bytes) = length(text, STRING_BYTES_MAX)? else {
                    return Ok(Self::NullBulk);
                };
                let string = string(input, bytes)?;
                match sign {
                    b'$' => Self::Bulk(string),
                    b'=' => Self::Verbatim(string),
                    _ => Self::Error(string),
                }
            }
            b'*' | b'~' | b'>' => {
                let Some(count) = length(text, ELEMENTS_MAX)? else { return Ok(Self::NullArray) };
                let elements = (0..count).map(|_| Self::read_at(input, depth + 1));
                let elements = elements.collect::<Result<Vec<_>>>()?;
                match sign {
                    b'*' => Self::Array(elements),
                    b'~' => Self::Set(elements),
                    _ => Self::Push(elements),
                }
            }
            b'%' => {
                let count = length(text, ELEMENTS_MAX)?.context("a map has no length")?;
                let pairs = (0..count).map(|_| {
                    Ok((Self::read_at(input, depth + 1)?, Self::read_at(input, depth + 1)?))
                });
                Self::Map(pairs.collect::<Result<Vec<_>>>()?)
            }
            b'_' => Self::Null,
            b',' | b'#' | b'(' => Self::Other(line),
            _ => bail!("a reply begins with {:?}", line.escape_ascii().to_string()),
        })
    }

    /// Whether the reply says that there is nothing.
    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::NullBulk | Self::NullArray | Self::Null)
    }

    /// Returns the elements of an array or a set, or the keys and values of a map in turn.
    pub(super) fn elements(&self) -> Option<Vec<&Reply>> {
        match self {
            Self::Array(elements) | Self::Set(elements) => Some(elements.iter().collect()),
            Self::Map(pairs) => Some(pairs.iter().flat_map(|(key, value)| [key, value]).collect()),
            _ => None,
        }
    }
}

fn number(text: &[u8]) -> Result<i64> {
    let text = std::str::from_utf8(text).context("a number has other bytes than digits")?;
    text.parse().with_context(|| format!("{text} is not a number"))
}

/// Returns a length; `None` for -1, which says null.
fn length(text: &[u8], most: usize) -> Result<Option<usize>> {
    let number = number(text)?;
    if number == -1 {
        return Ok(None);
    }
    let length = usize::try_from(number).with_context(|| format!("{number} is not a length"))?;
    ensure!(length <= most, "a reply has the length {length}; the limit is {most}");
    Ok(Some(length))
}

fn string(input: &mut impl BufRead, bytes: usize) -> Result<Vec<u8>> {
    let mut string = vec![0; bytes + 2];
    input.read_exact(&mut string).context("reading a string")?;
    ensure!(string.ends_with(b"\r\n"), "a string has no end of a line after it");
    string.truncate(bytes);
    Ok(string)
}

impl fmt::Display for Reply {
    /// Formats the reply on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, name: &str, elements: &[Self]| {
            write!(f, "{name}[")?;
            for (place, element) in elements.iter().enumerate() {
                write!(f, "{}{element}", if place == 0 { "" } else { ", " })?;
            }
            write!(f, "]")
        };
        match self {
            Self::Simple(text) => write!(f, "+{}", text.escape_ascii()),
            Self::Error(text) => write!(f, "-{}", text.escape_ascii()),
            Self::Integer(number) => write!(f, ":{number}"),
            Self::Bulk(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Self::NullBulk => write!(f, "null string"),
            Self::NullArray => write!(f, "null array"),
            Self::Null => write!(f, "null"),
            Self::Array(elements) => list(f, "", elements),
            Self::Set(elements) => list(f, "set", elements),
            Self::Push(elements) => list(f, "push", elements),
            Self::Map(pairs) => {
                write!(f, "map{{")?;
                for (place, (key, value)) in pairs.iter().enumerate() {
                    write!(f, "{}{key}: {value}", if place == 0 { "" } else { ", " })?;
                }
                write!(f, "}}")
            }
            Self::Verbatim(text) => write!(f, "={}", text.escape_ascii()),
            Self::Other(line) => write!(f, "{}", line.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &str) -> Result<Reply> {
        Reply::read(&mut bytes.as_bytes())
    }

    #[test]
    fn each_form_of_a_reply_is_another_one() {
        let rows = [
            ("+OK\r\n", "+OK"),
            ("-ERR a\r\n", "-ERR a"),
            (":-7\r\n", ":-7"),
            ("$3\r\na\r\n\r\n", "\"a\\r\\n\""),
            ("$-1\r\n", "null string"),
            ("*-1\r\n", "null array"),
            ("_\r\n", "null"),
            ("*2\r\n:1\r\n*0\r\n", "[:1, []]"),
            ("~1\r\n:1\r\n", "set[:1]"),
            (">1\r\n:1\r\n", "push[:1]"),
            ("%1\r\n+a\r\n:1\r\n", "map{+a: :1}"),
            ("=5\r\ntxt:a\r\n", "=txt:a"),
            ("#t\r\n", "#t"),
            (",1.5\r\n", ",1.5"),
        ];
        for (bytes, shown) in rows {
            assert_eq!(read(bytes).unwrap().to_string(), shown, "{bytes:?}");
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        let deep = "*1\r\n".repeat(40);
        for bytes in
            ["", "+OK", "\r\n", "?\r\n", ":a\r\n", "$-2\r\n", "$3\r\nab\r\n", "%-1\r\n", &deep]
        {
            assert!(read(bytes).is_err(), "{bytes:?}");
        }
    }
}
