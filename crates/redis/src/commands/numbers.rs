//! Numbers in strings and in fields of hashes.

use super::{Call, check_fields};
use crate::header::Kind;
use crate::long_double::LongDouble;
use crate::number::parse_i64;
use crate::reply::Reply;
use crate::state::{Answer, Stop};
use bytes::Bytes;

pub(crate) fn incr(call: &mut Call<'_, '_>) -> Answer {
    add_to_string(call, 1)
}

pub(crate) fn decr(call: &mut Call<'_, '_>) -> Answer {
    add_to_string(call, -1)
}

pub(crate) fn incrby(call: &mut Call<'_, '_>) -> Answer {
    let by = call.integer(2)?;
    add_to_string(call, by)
}

pub(crate) fn decrby(call: &mut Call<'_, '_>) -> Answer {
    let by = call.integer(2)?.checked_neg();
    add_to_string(call, by.ok_or_else(|| Stop::error("ERR decrement would overflow"))?)
}

fn add_to_string(call: &mut Call<'_, '_>, by: i64) -> Answer {
    let (key, entry) = call.typed(Kind::String)?;
    let before = match &entry {
        Some(entry) => parse_i64(&entry.value).ok_or(Stop::NOT_AN_INTEGER)?,
        None => 0,
    };
    let sum = integer_sum(before, by)?;
    let mut entry = entry.unwrap_or_else(|| call.state.new_entry(Kind::String, Bytes::new()));
    entry.value = sum.to_string().into();
    call.state.put(&key, entry);
    Ok(Reply::Integer(sum))
}

fn integer_sum(before: i64, by: i64) -> Result<i64, Stop> {
    before.checked_add(by).ok_or_else(|| Stop::error("ERR increment or decrement would overflow"))
}

pub(crate) fn incrbyfloat(call: &mut Call<'_, '_>) -> Answer {
    let (key, entry) = call.typed(Kind::String)?;
    let before = match &entry {
        Some(entry) => float(&entry.value)?,
        None => LongDouble::ZERO,
    };
    let sum = float_sum(before, float(call.argument(2))?)?;
    let mut entry = entry.unwrap_or_else(|| call.state.new_entry(Kind::String, Bytes::new()));
    entry.value = sum.clone();
    call.state.put(&key, entry);
    Ok(Reply::Bulk(sum))
}

fn float(text: &[u8]) -> Result<LongDouble, Stop> {
    LongDouble::parse(text).ok_or_else(|| Stop::error("ERR value is not a valid float"))
}

fn float_sum(before: LongDouble, by: LongDouble) -> Result<Bytes, Stop> {
    let sum = before.add(by).map(LongDouble::to_text);
    sum.map(Bytes::from).ok_or_else(|| Stop::error("ERR increment would produce NaN or Infinity"))
}

pub(crate) fn hincrby(call: &mut Call<'_, '_>) -> Answer {
    let by = call.integer(3)?;
    let mut sum = 0;
    change_field(call, |before| {
        let before = before.map_or(Some(0), parse_i64);
        sum = integer_sum(
            before.ok_or_else(|| Stop::error("ERR hash value is not an integer"))?,
            by,
        )?;
        Ok(sum.to_string().into())
    })?;
    Ok(Reply::Integer(sum))
}

pub(crate) fn hincrbyfloat(call: &mut Call<'_, '_>) -> Answer {
    let by = float(call.argument(3))?;
    if !by.is_finite() {
        return Err(Stop::error("ERR value is NaN or Infinity"));
    }
    let sum = change_field(call, |before| {
        let before = before.map_or(Some(LongDouble::ZERO), LongDouble::parse);
        float_sum(before.ok_or_else(|| Stop::error("ERR hash value is not a float"))?, by)
    })?;
    Ok(Reply::Bulk(sum))
}

/// Computes the value of a field from the one before it, and returns it.
fn change_field(
    call: &mut Call<'_, '_>,
    change: impl FnOnce(Option<&[u8]>) -> Result<Bytes, Stop>,
) -> Result<Bytes, Stop> {
    let (key, mut entry) = call.typed_or_new(Kind::Hash)?;
    let (field, stamp) = (call.argument(2), entry.header.stamp);
    check_fields(&key, std::iter::once(field))?;
    let before = call.state.member(&key, stamp, field)?;
    let value = change(before.as_deref())?;
    entry.header.count += u64::from(before.is_none());
    call.state.set_member(&key, stamp, field, Some(&value));
    call.state.put(&key, entry);
    Ok(value)
}
