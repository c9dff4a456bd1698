//! Commands of strings, but for numbers.

use super::options::{Condition, NewExpiry, Options, Unit, expires_at_ms};
use super::{Call, check_computed};
use crate::header::Kind;
use crate::reply::Reply;
use crate::state::{Answer, Entry, Stop};
use bytes::Bytes;

/// What SET and its kin answer when they set the value, and when they do not.
struct SetReplies {
    set: Reply,
    unchanged: Reply,
}

const ORDINARY: SetReplies = SetReplies { set: Reply::OK, unchanged: Reply::Null };
const NUMBERS: SetReplies = SetReplies { set: Reply::Integer(1), unchanged: Reply::Integer(0) };

pub(crate) fn get(call: &mut Call<'_, '_>) -> Answer {
    let (_, entry) = call.typed(Kind::String)?;
    Ok(Reply::bulk_or_null(entry.map(|entry| entry.value)))
}

pub(crate) fn set(call: &mut Call<'_, '_>) -> Answer {
    let options = Options::of_set(call.arguments_from(3))?;
    let value = call.argument(2);
    store(call, options, value, ORDINARY)
}

pub(crate) fn setnx(call: &mut Call<'_, '_>) -> Answer {
    let options = Options { condition: Condition::IfAbsent, ..Options::default() };
    let value = call.argument(2);
    store(call, options, value, NUMBERS)
}

pub(crate) fn setex(call: &mut Call<'_, '_>) -> Answer {
    store_until(call, Unit::Ex)
}

pub(crate) fn psetex(call: &mut Call<'_, '_>) -> Answer {
    store_until(call, Unit::Px)
}

fn store_until(call: &mut Call<'_, '_>, unit: Unit) -> Answer {
    let expiry = NewExpiry::At(unit, call.argument(2).clone());
    let value = call.argument(3);
    store(call, Options { expiry, ..Options::default() }, value, ORDINARY)
}

pub(crate) fn getset(call: &mut Call<'_, '_>) -> Answer {
    let options = Options { gets: true, ..Options::default() };
    let value = call.argument(2);
    store(call, options, value, ORDINARY)
}

/// Sets a string. It reads what the name had only if an option needs that.
fn store(call: &mut Call<'_, '_>, options: Options, value: &Bytes, replies: SetReplies) -> Answer {
    let expires_at_ms = match &options.expiry {
        NewExpiry::At(unit, argument) => expires_at_ms(call, *unit, argument)?,
        _ => 0,
    };
    let key = call.key()?;
    let is_blind =
        options.condition == Condition::None && !options.gets && options.expiry != NewExpiry::Keep;
    let before = match is_blind {
        true => {
            call.state.check_no_intent(&key)?;
            None
        }
        false => call.state.entry(&key)?,
    };
    let needs_string = options.gets || matches!(options.condition, Condition::IfEqual(_));
    if needs_string && before.as_ref().is_some_and(|before| before.header.kind != Kind::String) {
        return Err(Stop::WRONG_TYPE);
    }
    let has_value = |value: &Bytes| before.as_ref().is_some_and(|before| before.value == *value);
    let holds = match &options.condition {
        Condition::None => true,
        Condition::IfAbsent => before.is_none(),
        Condition::IfPresent => before.is_some(),
        Condition::IfEqual(value) => has_value(value),
    };
    if holds {
        let mut entry = call.state.new_entry(Kind::String, value.clone());
        entry.header.expires_at_ms = match (&options.expiry, &before) {
            (NewExpiry::Keep, Some(before)) => before.header.expires_at_ms,
            _ => expires_at_ms,
        };
        call.state.put(&key, entry);
    }
    Ok(match (options.gets, holds) {
        (true, _) => Reply::bulk_or_null(before.map(|before| before.value)),
        (false, true) => replies.set,
        (false, false) => replies.unchanged,
    })
}

pub(crate) fn getdel(call: &mut Call<'_, '_>) -> Answer {
    let (key, entry) = call.typed(Kind::String)?;
    if entry.is_some() {
        call.state.delete(&key);
    }
    Ok(Reply::bulk_or_null(entry.map(|entry| entry.value)))
}

pub(crate) fn getex(call: &mut Call<'_, '_>) -> Answer {
    let options = Options::of_getex(call.arguments_from(2))?;
    let (key, entry) = call.typed(Kind::String)?;
    let Some(mut entry) = entry else { return Ok(Reply::Null) };
    let value = entry.value.clone();
    let before = entry.header.expires_at_ms;
    let is_changed = match &options.expiry {
        NewExpiry::At(unit, argument) => {
            entry.header.expires_at_ms = expires_at_ms(call, *unit, argument)?;
            true
        }
        NewExpiry::Remove => {
            entry.header.expires_at_ms = 0;
            before != 0
        }
        NewExpiry::Default | NewExpiry::Keep => false,
    };
    if is_changed {
        call.state.put(&key, entry);
    }
    Ok(Reply::Bulk(value))
}

/// Deletes a name, with a condition only if its value is that of IFEQ, or is not that of IFNE.
pub(crate) fn delex(call: &mut Call<'_, '_>) -> Answer {
    let condition = match call.arguments_from(2) {
        [] => None,
        [word, value] if word.eq_ignore_ascii_case(b"IFEQ") => Some((true, value)),
        [word, value] if word.eq_ignore_ascii_case(b"IFNE") => Some((false, value)),
        _ => return Err(Stop::SYNTAX),
    };
    let key = call.key()?;
    let Some(entry) = call.state.entry(&key)? else { return Ok(Reply::Integer(0)) };
    if let Some((must_be_equal, value)) = condition {
        if entry.header.kind != Kind::String {
            return Err(Stop::WRONG_TYPE);
        }
        if (entry.value == *value) != must_be_equal {
            return Ok(Reply::Integer(0));
        }
    }
    call.state.delete(&key);
    Ok(Reply::Integer(1))
}

pub(crate) fn mget(call: &mut Call<'_, '_>) -> Answer {
    let keys = call.read_keys()?;
    let mut values = Vec::with_capacity(keys.len());
    for key in &keys {
        let entry = call.state.entry(key)?;
        let entry = entry.filter(|entry| entry.header.kind == Kind::String);
        values.push(Reply::bulk_or_null(entry.map(|entry| entry.value)));
    }
    Ok(Reply::Array(values))
}

pub(crate) fn mset(call: &mut Call<'_, '_>) -> Answer {
    store_pairs(call)?;
    Ok(Reply::OK)
}

pub(crate) fn msetnx(call: &mut Call<'_, '_>) -> Answer {
    check_pairs(call)?;
    for key in &call.read_keys()? {
        if call.state.entry(key)?.is_some() {
            return Ok(Reply::Integer(0));
        }
    }
    store_pairs(call)?;
    Ok(Reply::Integer(1))
}

/// Fails unless each name has a value.
fn check_pairs(call: &Call<'_, '_>) -> Result<(), Stop> {
    match call.arguments_from(1).len().is_multiple_of(2) {
        true => Ok(()),
        false => Err(wrong_arity(call)),
    }
}

/// Returns the error of an odd number of arguments.
pub(super) fn wrong_arity(call: &Call<'_, '_>) -> Stop {
    Stop::error(format!("ERR wrong number of arguments for '{}' command", call.name()))
}

fn store_pairs(call: &mut Call<'_, '_>) -> Result<(), Stop> {
    check_pairs(call)?;
    let values = call.arguments_from(2).iter().step_by(2);
    for (key, value) in call.keys()?.iter().zip(values) {
        call.state.check_no_intent(key)?;
        let entry = call.state.new_entry(Kind::String, value.clone());
        call.state.put(key, entry);
    }
    Ok(())
}

pub(crate) fn append(call: &mut Call<'_, '_>) -> Answer {
    let (key, mut entry) = call.typed_or_new(Kind::String)?;
    let more = call.argument(2);
    check_computed(entry.value.len() + more.len())?;
    entry.value = [&entry.value[..], more].concat().into();
    put_and_count(call, &key, entry)
}

/// Sets a string and answers its length.
fn put_and_count(call: &mut Call<'_, '_>, key: &Bytes, entry: Entry) -> Answer {
    let reply = Reply::count(entry.value.len());
    call.state.put(key, entry);
    Ok(reply)
}

pub(crate) fn strlen(call: &mut Call<'_, '_>) -> Answer {
    let (_, entry) = call.typed(Kind::String)?;
    Ok(Reply::count(entry.map_or(0, |entry| entry.value.len())))
}

pub(crate) fn getrange(call: &mut Call<'_, '_>) -> Answer {
    let (start, end) = (call.integer(2)?, call.integer(3)?);
    let (_, entry) = call.typed(Kind::String)?;
    let value = entry.map_or_else(Bytes::new, |entry| entry.value);
    Ok(Reply::Bulk(part(&value, start, end)))
}

/// Returns the bytes from `start` to `end`, inclusive; negative places count from the end.
fn part(value: &Bytes, start: i64, end: i64) -> Bytes {
    if start < 0 && end < 0 && start > end {
        return Bytes::new();
    }
    let length = i64::try_from(value.len()).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(0) } else { at };
    let (start, end) = (place(start), place(end).saturating_add(1).min(length));
    match (usize::try_from(start), usize::try_from(end)) {
        (Ok(start), Ok(end)) if start < end => value.slice(start..end),
        _ => Bytes::new(),
    }
}

pub(crate) fn setrange(call: &mut Call<'_, '_>) -> Answer {
    let offset = call.integer(2)?;
    let part = call.argument(3);
    let offset = usize::try_from(offset).map_err(|_| Stop::error("ERR offset is out of range"))?;
    let (key, mut entry) = call.typed_or_new(Kind::String)?;
    if part.is_empty() {
        return Ok(Reply::count(entry.value.len()));
    }
    let end = offset.saturating_add(part.len());
    check_computed(end)?;
    let mut value = entry.value.to_vec();
    value.resize(value.len().max(end), 0);
    if let Some(place) = value.get_mut(offset..end) {
        place.copy_from_slice(part);
    }
    entry.value = value.into();
    put_and_count(call, &key, entry)
}
