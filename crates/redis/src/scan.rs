//! Requests of SCAN, HSCAN and SSCAN, and their replies.

use crate::cursor::Cursor;
use crate::glob::Glob;
use crate::header::Kind;
use crate::number::parse_i64;
use crate::reply::Reply;
use crate::request::Request;
use bytes::Bytes;

/// Names or members that a call examines, unless COUNT says so.
const COUNT_DEFAULT: usize = 10;
/// Names or members that a call examines, at most.
pub const COUNT_MAX: usize = 1000;

const SYNTAX: &str = "ERR syntax error";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_VALUES: &str = "ERR NOVALUES option can only be used in HSCAN";

/// Names of which type a scan returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KindFilter {
    /// Of each type.
    #[default]
    Any,
    /// Of this type.
    Only(Kind),
    /// Of a type that no name has.
    Nothing,
}

impl KindFilter {
    /// Returns the filter of a type's name, in any case; empty: each type.
    pub fn named(name: &[u8]) -> Self {
        match (name.is_empty(), Kind::named(name)) {
            (true, _) => Self::Any,
            (false, Some(kind)) => Self::Only(kind),
            (false, None) => Self::Nothing,
        }
    }

    /// Returns the name of the type; empty for each type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Only(kind) => kind.name(),
            Self::Nothing => "none",
        }
    }

    /// Whether names of a type are returned.
    pub fn has(self, kind: Kind) -> bool {
        self == Self::Any || self == Self::Only(kind)
    }
}

/// Begin of a page of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFrom {
    /// The first page: cursor 0.
    Begin,
    /// The page after a cursor.
    After(Cursor),
    /// A number that is no cursor of any node.
    Unknown,
}

/// Request of one page of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest {
    /// Begin of the page.
    pub from: ScanFrom,
    /// Names or members that the call examines.
    pub count: usize,
    /// Pattern of what is returned; `None`: all.
    pub pattern: Option<Glob>,
    /// Types of the names that SCAN returns.
    pub kind: KindFilter,
    /// Whether HSCAN returns values.
    pub has_values: bool,
}

impl ScanRequest {
    /// Whether the cursor of a request is a number. Redis reads the name before it reads the options.
    pub fn has_cursor(request: &Request) -> bool {
        from(cursor_of(request)).is_ok()
    }

    /// Parses a request of SCAN, HSCAN or SSCAN. Fails with the reply.
    pub fn parse(request: &Request) -> Result<Self, Reply> {
        let name = request.spec().name;
        let mut rest = request.arguments().iter().skip(cursor_place(request) + 1);
        let mut scan = Self {
            from: from(cursor_of(request))?,
            count: COUNT_DEFAULT,
            pattern: None,
            kind: KindFilter::Any,
            has_values: true,
        };
        while let Some(option) = rest.next() {
            match (&option.to_ascii_lowercase()[..], name) {
                (b"novalues", "hscan") => scan.has_values = false,
                (b"novalues", _) => return Err(Reply::error(NO_VALUES)),
                (b"count", _) => {
                    let count = rest.next().ok_or_else(|| Reply::error(SYNTAX))?;
                    let count = parse_i64(count).ok_or_else(|| Reply::error(NOT_AN_INTEGER))?;
                    scan.count = match usize::try_from(count) {
                        Ok(count @ 1..) => count.min(COUNT_MAX),
                        _ => return Err(Reply::error(SYNTAX)),
                    };
                }
                (b"match", _) => {
                    let pattern = rest.next().ok_or_else(|| Reply::error(SYNTAX))?;
                    scan.pattern = pattern_of(pattern)?;
                }
                (b"type", "scan") => {
                    let kind = rest.next().ok_or_else(|| Reply::error(SYNTAX))?;
                    scan.kind = match kind.is_empty() {
                        true => KindFilter::Nothing,
                        false => KindFilter::named(kind),
                    };
                }
                _ => return Err(Reply::error(SYNTAX)),
            }
        }
        Ok(scan)
    }
}

/// Returns a pattern; `None` for the one that all names match. Fails with the reply.
pub fn pattern_of(text: &Bytes) -> Result<Option<Glob>, Reply> {
    let pattern = Glob::new(text.clone()).map_err(|error| Reply::error(format!("ERR {error}")))?;
    Ok(Some(pattern).filter(|pattern| !pattern.is_any()))
}

fn cursor_place(request: &Request) -> usize {
    if request.spec().name == "scan" { 1 } else { 2 }
}

fn cursor_of(request: &Request) -> Option<&Bytes> {
    request.arguments().get(cursor_place(request))
}

fn from(cursor: Option<&Bytes>) -> Result<ScanFrom, Reply> {
    let text = cursor.and_then(|cursor| std::str::from_utf8(cursor).ok());
    let digits = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = digits.and_then(|digits| digits.parse::<u64>().ok());
    match number.map(|number| (number, Cursor::from_number(number))) {
        None => Err(Reply::error("ERR invalid cursor")),
        Some((0, _)) => Ok(ScanFrom::Begin),
        Some((_, Some(cursor))) => Ok(ScanFrom::After(cursor)),
        Some((_, None)) => Ok(ScanFrom::Unknown),
    }
}

/// Returns the reply to a scan: the next cursor, `None` at the end, and what was found.
pub fn scan_reply(next: Option<Cursor>, found: Vec<Bytes>) -> Reply {
    let number = next.map_or(0, Cursor::number);
    let found = found.into_iter().map(Reply::Bulk).collect();
    Reply::Array(vec![Reply::Bulk(number.to_string().into()), Reply::Array(found)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ScanRequest, String> {
        let words = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect();
        let request = Request::parse(0, words).unwrap();
        ScanRequest::parse(&request).map_err(|reply| match reply {
            Reply::Error(text) => text.into_owned(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn options_are_read_as_in_redis() {
        let scan = parse("SCAN 0 MATCH a* count 25 TYPE HASH").unwrap();
        assert_eq!((scan.from, scan.count), (ScanFrom::Begin, 25));
        assert_eq!(scan.kind, KindFilter::Only(Kind::Hash));
        assert_eq!(scan.pattern.unwrap().text(), "a*");
        let scan = parse("HSCAN h 00 NOVALUES MATCH *").unwrap();
        assert_eq!((scan.from, scan.pattern, scan.has_values), (ScanFrom::Begin, None, false));
        assert_eq!(parse("SCAN 0 COUNT 1000000").unwrap().count, COUNT_MAX);
        assert_eq!(parse("SCAN 0 TYPE zset").unwrap().kind, KindFilter::Nothing);
        assert_eq!(parse("SCAN 18446744073709551615").unwrap().from, ScanFrom::Unknown);
        assert_eq!(KindFilter::named(KindFilter::Nothing.name().as_bytes()), KindFilter::Nothing);
    }

    #[test]
    fn wrong_options_are_refused_with_the_texts_of_redis() {
        let rows = [
            ("SCAN x", "ERR invalid cursor"),
            ("SCAN -1", "ERR invalid cursor"),
            ("SCAN +1", "ERR invalid cursor"),
            ("SCAN 18446744073709551616", "ERR invalid cursor"),
            ("SCAN 0 COUNT", SYNTAX),
            ("SCAN 0 COUNT 0", SYNTAX),
            ("SCAN 0 COUNT -1", SYNTAX),
            ("SCAN 0 COUNT x", NOT_AN_INTEGER),
            ("SCAN 0 NOVALUES", NO_VALUES),
            ("SCAN 0 1", SYNTAX),
            ("SSCAN s 0 NOVALUES", NO_VALUES),
            ("HSCAN h 0 TYPE hash", SYNTAX),
            ("SCAN 0 MATCH", SYNTAX),
        ];
        for (line, expected) in rows {
            assert_eq!(parse(line).unwrap_err(), expected, "{line}");
        }
        let has_cursor = |line: &str| {
            let words = line.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes()));
            ScanRequest::has_cursor(&Request::parse(0, words.collect()).unwrap())
        };
        assert!(has_cursor("HSCAN h 0 COUNT 0") && has_cursor("SSCAN s 5 X"));
        assert!(!has_cursor("HSCAN 0 x") && !has_cursor("SCAN x"));
        let long = format!("SCAN 0 MATCH {}", "a".repeat(1025));
        assert!(parse(&long).unwrap_err().contains("the limit is 1024"));
    }
}
