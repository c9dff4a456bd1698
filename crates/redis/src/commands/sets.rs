//! Commands of sets. Each member is a pair of its own, without a value, under the header's stamp.

use super::hashes::{all_members_of, count_members, members_of, remove_members};
use super::{Call, check_fields};
use crate::header::Kind;
use crate::reply::Reply;
use crate::state::{Answer, Stop};
use bytes::Bytes;

pub(crate) fn sadd(call: &mut Call<'_, '_>) -> Answer {
    let members = call.arguments_from(2);
    let (key, mut entry) = call.typed_or_new(Kind::Set)?;
    check_fields(&key, members.iter())?;
    let stamp = entry.header.stamp;
    call.state.want_members(&key, stamp, members)?;
    let mut added = 0u64;
    for member in members {
        if call.state.member(&key, stamp, member)?.is_none() {
            call.state.set_member(&key, stamp, member, Some(&Bytes::new()));
            added += 1;
        }
    }
    if added > 0 {
        entry.header.count += added;
        call.state.put(&key, entry);
    }
    Ok(Reply::count(added))
}

pub(crate) fn srem(call: &mut Call<'_, '_>) -> Answer {
    remove_members(call, Kind::Set)
}

/// Returns for each of the given members whether the set has it.
fn has_members(call: &mut Call<'_, '_>) -> Result<Vec<Reply>, Stop> {
    let (key, entry) = call.typed(Kind::Set)?;
    let members = call.arguments_from(2);
    let found = members_of(call, &key, entry.as_ref(), members)?;
    Ok(found.iter().map(|member| Reply::Integer(i64::from(member.is_some()))).collect())
}

pub(crate) fn sismember(call: &mut Call<'_, '_>) -> Answer {
    Ok(has_members(call)?.pop().unwrap_or(Reply::Integer(0)))
}

pub(crate) fn smismember(call: &mut Call<'_, '_>) -> Answer {
    Ok(Reply::Array(has_members(call)?))
}

pub(crate) fn scard(call: &mut Call<'_, '_>) -> Answer {
    count_members(call, Kind::Set)
}

pub(crate) fn smembers(call: &mut Call<'_, '_>) -> Answer {
    let members = all_members_of(call, Kind::Set)?.into_iter();
    Ok(Reply::Set(members.map(|(member, _)| Reply::Bulk(member)).collect()))
}
