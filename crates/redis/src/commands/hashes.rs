//! Commands of hashes. Each field is a pair of its own under the header's stamp.

use super::strings::wrong_arity;
use super::{Call, check_fields};
use crate::header::Kind;
use crate::reply::Reply;
use crate::state::{Answer, Entry, Stop};
use bytes::Bytes;

pub(crate) use super::numbers::{hincrby, hincrbyfloat};

/// HSET answers the number of new fields, HMSET that it is done.
pub(crate) fn hset(call: &mut Call<'_, '_>) -> Answer {
    let pairs = call.arguments_from(2);
    if !pairs.len().is_multiple_of(2) {
        return Err(wrong_arity(call));
    }
    let (key, mut entry) = call.typed_or_new(Kind::Hash)?;
    let fields: Vec<Bytes> = pairs.iter().step_by(2).cloned().collect();
    let values = pairs.iter().skip(1).step_by(2);
    check_fields(&key, fields.iter())?;
    let stamp = entry.header.stamp;
    call.state.want_members(&key, stamp, &fields)?;
    let mut created = 0u64;
    for (field, value) in fields.iter().zip(values) {
        created += u64::from(call.state.member(&key, stamp, field)?.is_none());
        call.state.set_member(&key, stamp, field, Some(value));
    }
    entry.header.count += created;
    call.state.put(&key, entry);
    Ok(if call.name() == "hmset" { Reply::OK } else { Reply::count(created) })
}

pub(crate) fn hsetnx(call: &mut Call<'_, '_>) -> Answer {
    let (key, mut entry) = call.typed_or_new(Kind::Hash)?;
    let (field, value, stamp) = (call.argument(2), call.argument(3), entry.header.stamp);
    check_fields(&key, std::iter::once(field))?;
    if call.state.member(&key, stamp, field)?.is_some() {
        return Ok(Reply::Integer(0));
    }
    entry.header.count += 1;
    call.state.set_member(&key, stamp, field, Some(value));
    call.state.put(&key, entry);
    Ok(Reply::Integer(1))
}

/// Returns the values of fields, in the order of the request.
fn values_of(call: &mut Call<'_, '_>, fields: &[Bytes]) -> Result<Vec<Option<Bytes>>, Stop> {
    let (key, entry) = call.typed(Kind::Hash)?;
    members_of(call, &key, entry.as_ref(), fields)
}

/// Returns the values of fields or members, in the order of the request.
pub(super) fn members_of(
    call: &mut Call<'_, '_>,
    key: &Bytes,
    entry: Option<&Entry>,
    fields: &[Bytes],
) -> Result<Vec<Option<Bytes>>, Stop> {
    let Some(stamp) = entry.map(|entry| entry.header.stamp) else {
        return Ok(vec![None; fields.len()]);
    };
    check_fields(key, fields.iter())?;
    call.state.want_members(key, stamp, fields)?;
    fields.iter().map(|field| call.state.member(key, stamp, field)).collect()
}

/// Returns the value of the field that a request has as its argument 2.
fn value_of_field(call: &mut Call<'_, '_>) -> Result<Option<Bytes>, Stop> {
    let field = std::slice::from_ref(call.argument(2));
    Ok(values_of(call, field)?.into_iter().next().flatten())
}

pub(crate) fn hget(call: &mut Call<'_, '_>) -> Answer {
    Ok(Reply::bulk_or_null(value_of_field(call)?))
}

pub(crate) fn hexists(call: &mut Call<'_, '_>) -> Answer {
    Ok(Reply::count(value_of_field(call)?.map_or(0u64, |_| 1)))
}

pub(crate) fn hstrlen(call: &mut Call<'_, '_>) -> Answer {
    Ok(Reply::count(value_of_field(call)?.map_or(0, |value| value.len())))
}

pub(crate) fn hmget(call: &mut Call<'_, '_>) -> Answer {
    let fields = call.arguments_from(2);
    let values = values_of(call, fields)?;
    Ok(Reply::Array(values.into_iter().map(Reply::bulk_or_null).collect()))
}

pub(crate) fn hdel(call: &mut Call<'_, '_>) -> Answer {
    remove_members(call, Kind::Hash)
}

pub(crate) fn hlen(call: &mut Call<'_, '_>) -> Answer {
    count_members(call, Kind::Hash)
}

/// Answers the number of members.
pub(super) fn count_members(call: &mut Call<'_, '_>, kind: Kind) -> Answer {
    let (_, entry) = call.typed(kind)?;
    Ok(Reply::count(entry.map_or(0, |entry| entry.header.count)))
}

/// Removes members, and the header with the last of them. Answers how many it removed.
pub(super) fn remove_members(call: &mut Call<'_, '_>, kind: Kind) -> Answer {
    let fields = call.arguments_from(2);
    let (key, entry) = call.typed(kind)?;
    let Some(mut entry) = entry else { return Ok(Reply::Integer(0)) };
    check_fields(&key, fields.iter())?;
    let stamp = entry.header.stamp;
    call.state.want_members(&key, stamp, fields)?;
    let mut removed = 0u64;
    for field in fields {
        if call.state.member(&key, stamp, field)?.is_some() {
            call.state.set_member(&key, stamp, field, None);
            removed += 1;
        }
    }
    entry.header.count = entry.header.count.saturating_sub(removed);
    match entry.header.count {
        _ if removed == 0 => {}
        0 => call.state.delete(&key),
        _ => call.state.put(&key, entry),
    }
    Ok(Reply::count(removed))
}

/// Returns all members, ascending.
pub(super) fn all_members_of(
    call: &mut Call<'_, '_>,
    kind: Kind,
) -> Result<Vec<(Bytes, Bytes)>, Stop> {
    let (key, entry) = call.typed(kind)?;
    match entry {
        Some(entry) => call.state.all_members(&key, entry.header.stamp),
        None => Ok(Vec::new()),
    }
}

pub(crate) fn hgetall(call: &mut Call<'_, '_>) -> Answer {
    let members = all_members_of(call, Kind::Hash)?.into_iter();
    Ok(Reply::Map(members.map(|(field, value)| (Reply::Bulk(field), Reply::Bulk(value))).collect()))
}

pub(crate) fn hkeys(call: &mut Call<'_, '_>) -> Answer {
    let members = all_members_of(call, Kind::Hash)?.into_iter();
    Ok(Reply::Array(members.map(|(field, _)| Reply::Bulk(field)).collect()))
}

pub(crate) fn hvals(call: &mut Call<'_, '_>) -> Answer {
    let members = all_members_of(call, Kind::Hash)?.into_iter();
    Ok(Reply::Array(members.map(|(_, value)| Reply::Bulk(value)).collect()))
}
