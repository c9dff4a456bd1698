//! Commands on single keys and ranges. `stele del` deletes all keys, a range or a prefix after a
//! question, or when the command line says that none is wanted.

use crate::Outcome;
use crate::args::{Append, Count, Del, Exist, Get, Incr, Put, Scan};
use crate::place::{Amount, Place, Source, Wanted};
use crate::store::Pair;
use crate::terminal::{self, Output};
use crate::text::{key_range, parse, printable, to_hex};
use bytes::Bytes;
use serde_json::{Map, Value};
use std::fmt;
use std::io::{IsTerminal, Read};
use std::path::Path;
use stele_types::size::{VALUE_BYTES_MAX, check_value_bytes};
use stele_types::{Error, KeyRange, Result};

pub(crate) fn put(args: &Put) -> Result<Outcome> {
    let key = parse(&args.key, args.hex)?;
    let value = match (&args.value, &args.file) {
        (Some(value), _) => parse(value, args.hex)?,
        (None, Some(path)) => read_value(path)?,
        (None, None) => return Err(Error::invalid("give a value or --file")),
    };
    let place = Place::open_or_create(&args.place)?;
    let (is_put, reason, otherwise) = match (args.if_absent, args.if_present) {
        (true, _) => (place.put_if_absent(&key, value, args.ttl)?, "has a value", Outcome::Failed),
        (_, true) => {
            (place.put_if_present(&key, value, args.ttl)?, "has no value", Outcome::NoSuchKey)
        }
        _ => (place.put(&key, value, args.ttl).map(|()| true)?, "", Outcome::Failed),
    };
    place.close()?;
    if is_put {
        return Ok(Outcome::Done);
    }
    eprintln!("stele: key `{}` {reason}; it is unchanged", printable(&key));
    Ok(otherwise)
}

/// Returns the error of a read-modify-write: the stored value, not the command line, is what does not
/// fit.
fn unfit(error: Error) -> Error {
    match error {
        Error::Invalid(reason) => Error::Refused(reason),
        other => other,
    }
}

pub(crate) fn incr(args: &Incr) -> Result<Outcome> {
    let key = parse(&args.key, args.hex)?;
    let place = Place::open_or_create(&args.place)?;
    let sum = place.increment(&key, args.by).map_err(unfit)?;
    place.close()?;
    print_line(&sum.to_string())
}

pub(crate) fn append(args: &Append) -> Result<Outcome> {
    let (key, value) = (parse(&args.key, args.hex)?, parse(&args.value, args.hex)?);
    let place = Place::open_or_create(&args.place)?;
    let bytes = place.append(&key, value).map_err(unfit)?;
    place.close()?;
    print_line(&bytes.to_string())
}

fn print_line(text: &str) -> Result<Outcome> {
    let mut out = Output::new();
    out.line(text)?;
    out.finish()?;
    Ok(Outcome::Done)
}

/// Reads a value; reads at most one byte above the limit from any source.
fn read_value(path: &Path) -> Result<Vec<u8>> {
    let failed = |source| Error::io("read", path, source);
    let mut source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let file = std::fs::File::open(path).map_err(failed)?;
        check_value_bytes(file.metadata().map_err(failed)?.len())?;
        Box::new(file)
    };
    let mut value = Vec::new();
    let limit = VALUE_BYTES_MAX as u64 + 1;
    source.by_ref().take(limit).read_to_end(&mut value).map_err(failed)?;
    check_value_bytes(value.len() as u64)?;
    Ok(value)
}

pub(crate) fn get(args: &Get) -> Result<Outcome> {
    let key = parse(&args.key, args.hex)?;
    let source = Source::open(&args.place)?;
    print_value(&key, source.get(&key)?, args.hex)
}

/// Prints the value of a key; without one, a line on standard error.
pub(super) fn print_value(key: &[u8], value: Option<Bytes>, hex: bool) -> Result<Outcome> {
    let Some(value) = value else {
        eprintln!("stele: key `{}` not found", printable(key));
        return Ok(Outcome::NoSuchKey);
    };
    let mut out = Output::new();
    if hex {
        out.line(&to_hex(&value))?;
    } else {
        out.bytes(&value)?;
        // In a file or a pipe, the value is exactly the stored bytes.
        if std::io::stdout().is_terminal() {
            out.line("")?;
        }
    }
    out.finish()?;
    Ok(Outcome::Done)
}

/// Prints a line for each key. One that does not exist is the outcome.
pub(crate) fn exist(args: &Exist) -> Result<Outcome> {
    let keys = args.keys.iter().map(|key| parse(key, args.hex)).collect::<Result<Vec<_>>>()?;
    let source = Source::open(&args.place)?;
    let found = source.exist(&keys)?;
    let mut out = Output::new();
    for (key, exists) in keys.iter().zip(&found) {
        let key = if args.hex { to_hex(key) } else { printable(key) };
        out.line(&format!("{key}\t{}", if *exists { "yes" } else { "no" }))?;
    }
    out.finish()?;
    match found.iter().all(|exists| *exists) {
        true => Ok(Outcome::Done),
        false => Ok(Outcome::NoSuchKey),
    }
}

pub(crate) fn scan(args: &Scan) -> Result<Outcome> {
    let wanted = Wanted {
        range: key_range(&args.range, args.hex)?,
        reverse: args.reverse,
        keys_only: args.keys_only,
        limit: args.limit,
        expiry: args.json,
    };
    let source = Source::open(&args.place)?;
    let mut out = Output::new();
    source.each_pair(wanted, |pair| match args.json {
        true => out.json(object(pair, args)),
        false => out.line(&line(pair, args)),
    })?;
    out.finish()?;
    Ok(Outcome::Done)
}

fn line(pair: &Pair, args: &Scan) -> String {
    let write = |bytes: &[u8]| if args.hex { to_hex(bytes) } else { printable(bytes) };
    if args.keys_only {
        return write(&pair.key);
    }
    format!("{}\t{}", write(&pair.key), write(&pair.value))
}

fn object(pair: &Pair, args: &Scan) -> Map<String, Value> {
    let encoding = if args.hex { crate::args::Encoding::Hex } else { crate::args::Encoding::Text };
    let mut object = Map::new();
    crate::export::put_field(&mut object, "key", &pair.key, encoding);
    if !args.keys_only {
        crate::export::put_field(&mut object, "value", &pair.value, encoding);
    }
    if pair.expires_at_s != 0 {
        object.insert("expires_at_s".into(), pair.expires_at_s.into());
    }
    object
}

pub(crate) fn count(args: &Count) -> Result<Outcome> {
    let range = key_range(&args.range, args.hex)?;
    let source = Source::open(&args.place)?;
    let mut keys = 0u64;
    let wanted = Wanted { range, reverse: false, keys_only: true, limit: None, expiry: false };
    source.each_pair(wanted, |_| {
        keys += 1;
        Ok(())
    })?;
    print_line(&keys.to_string())
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(1) => f.write_str("1 key"),
            Self::Exactly(keys) => write!(f, "{keys} keys"),
            Self::MoreThan(keys) => write!(f, "more than {keys} keys"),
        }
    }
}

pub(crate) fn del(args: &Del) -> Result<Outcome> {
    let keys = args.keys.iter().map(|key| parse(key, args.hex)).collect::<Result<Vec<_>>>()?;
    if args.get && keys.len() != 1 {
        return Err(Error::invalid("--get takes one key"));
    }
    let place = Place::open(&args.place)?;
    if let (true, [key]) = (args.get, &keys[..]) {
        let value = place.get_and_delete(key)?;
        place.close()?;
        return print_value(key, value, args.hex);
    }
    let outcome = match keys.is_empty() {
        true => del_range(args, &place)?,
        false => place.delete(&keys).map(|()| Outcome::Done)?,
    };
    place.close()?;
    Ok(outcome)
}

fn del_range(args: &Del, place: &Place) -> Result<Outcome> {
    let range = if args.all { KeyRange::all() } else { key_range(&args.range, args.hex)? };
    let amount = place.keys_in(&range)?;
    let is_all = range.start.is_empty() && range.end.is_empty();
    let target = args.place.describe();
    if amount == Amount::Exactly(0) {
        let range = if is_all { target } else { "this range".to_owned() };
        eprintln!("stele: no key is in {range}");
        return Ok(Outcome::Done);
    }
    let all = if is_all { "all keys, " } else { "" };
    if !terminal::given(&format!("delete {all}{amount}, from {target}"), args.yes)? {
        eprintln!("stele: nothing was deleted");
        return Ok(Outcome::Failed);
    }
    place.delete_range(&range)?;
    eprintln!("stele: deleted {amount}");
    Ok(Outcome::Done)
}
