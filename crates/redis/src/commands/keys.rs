//! Commands of names, whatever type they have.

use super::{COPIED_MEMBERS_MAX, Call, check_fields};
use crate::header::Kind;
use crate::key::DATABASES;
use crate::number::parse_i64;
use crate::reply::Reply;
use crate::request::Request;
use crate::state::{Answer, Entry, Stop};
use bytes::Bytes;

pub(crate) fn del(call: &mut Call<'_, '_>) -> Answer {
    let mut deleted = 0u64;
    for key in &call.read_keys()? {
        if call.state.entry(key)?.is_some() {
            call.state.delete(key);
            deleted += 1;
        }
    }
    Ok(Reply::count(deleted))
}

/// EXISTS and TOUCH: a name that is given twice counts twice.
pub(crate) fn exists(call: &mut Call<'_, '_>) -> Answer {
    let mut found = 0u64;
    for key in &call.read_keys()? {
        found += u64::from(call.state.entry(key)?.is_some());
    }
    Ok(Reply::count(found))
}

pub(crate) fn type_of(call: &mut Call<'_, '_>) -> Answer {
    let key = call.key()?;
    let entry = call.state.entry(&key)?;
    Ok(Reply::Simple(entry.map_or("none", |entry| entry.header.kind.name())))
}

/// Returns the header keys of the source and the target of a request.
fn source_and_target(call: &mut Call<'_, '_>) -> Result<(Bytes, Bytes), Stop> {
    match &call.read_keys()?[..] {
        [source, target] => Ok((source.clone(), target.clone())),
        _ => Err(Stop::SYNTAX),
    }
}

pub(crate) fn rename(call: &mut Call<'_, '_>) -> Answer {
    move_name(call, true, Reply::OK, Reply::OK)
}

pub(crate) fn renamenx(call: &mut Call<'_, '_>) -> Answer {
    move_name(call, false, Reply::Integer(1), Reply::Integer(0))
}

fn move_name(call: &mut Call<'_, '_>, replaces: bool, moved: Reply, unchanged: Reply) -> Answer {
    let (source, target) = source_and_target(call)?;
    let Some(entry) = call.state.entry(&source)? else {
        return Err(Stop::error("ERR no such key"));
    };
    if source == target || (!replaces && call.state.entry(&target)?.is_some()) {
        return Ok(unchanged);
    }
    copy_entry(call, &source, &target, entry)?;
    call.state.delete(&source);
    Ok(moved)
}

pub(crate) fn copy(call: &mut Call<'_, '_>) -> Answer {
    let replaces = check_copy_options(call)?;
    let (source, target) = source_and_target(call)?;
    if source == target {
        return Err(Stop::error("ERR source and destination objects are the same"));
    }
    let Some(entry) = call.state.entry(&source)? else { return Ok(Reply::Integer(0)) };
    if !replaces && call.state.entry(&target)?.is_some() {
        return Ok(Reply::Integer(0));
    }
    copy_entry(call, &source, &target, entry)?;
    Ok(Reply::Integer(1))
}

/// Returns whether COPY replaces its target.
fn check_copy_options(call: &Call<'_, '_>) -> Result<bool, Stop> {
    let mut replaces = false;
    let mut rest = call.arguments_from(3).iter();
    while let Some(word) = rest.next() {
        if word.eq_ignore_ascii_case(b"REPLACE") {
            replaces = true;
            continue;
        }
        let number = rest.next().filter(|_| word.eq_ignore_ascii_case(b"DB"));
        let number = parse_i64(number.ok_or(Stop::SYNTAX)?).ok_or(Stop::NOT_AN_INTEGER)?;
        if i32::try_from(number).is_err() {
            return Err(Stop::error(format!(
                "ERR value is out of range, value must between {} and {}",
                i32::MIN,
                i32::MAX
            )));
        }
        database(number).ok_or_else(|| Stop::error("ERR DB index is out of range"))?;
    }
    Ok(replaces)
}

fn database(number: i64) -> Option<u8> {
    u8::try_from(number).ok().filter(|&number| number < DATABASES)
}

/// Returns the database of the target of COPY, if the request is one and names it.
pub(crate) fn copy_database(request: &Request) -> Option<u8> {
    if request.spec().name != "copy" {
        return None;
    }
    let mut found = None;
    let mut rest = request.arguments().get(3..)?.iter();
    while let Some(word) = rest.next() {
        if word.eq_ignore_ascii_case(b"DB") {
            found = database(parse_i64(rest.next()?)?);
        }
    }
    found
}

/// Gives a name the value and expiry of another one. Members get a stamp of their own.
fn copy_entry(
    call: &mut Call<'_, '_>,
    source: &Bytes,
    target: &Bytes,
    entry: Entry,
) -> Result<(), Stop> {
    let (kind, count) = (entry.header.kind, entry.header.count);
    if count > COPIED_MEMBERS_MAX {
        return Err(Stop::error(format!(
            "ERR {} of {count} members cannot be renamed or copied; the limit is \
             {COPIED_MEMBERS_MAX}",
            kind.name()
        )));
    }
    let mut copied = call.state.new_entry(kind, entry.value);
    // bug redis.copy_keeps_the_stamp: copied.header.stamp = entry.header.stamp;
    copied.header.count = count;
    copied.header.expires_at_ms = entry.header.expires_at_ms;
    if kind != Kind::String {
        let members = call.state.all_members(source, entry.header.stamp)?;
        check_fields(target, members.iter().map(|(field, _)| field))?;
        for (field, value) in &members {
            call.state.set_member(target, copied.header.stamp, field, Some(value));
        }
    }
    call.state.put(target, copied);
    Ok(())
}
