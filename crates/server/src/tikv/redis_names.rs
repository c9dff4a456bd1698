//! Names and members of Redis keys, page by page: reads of SCAN, KEYS, HSCAN and their like. And the removal of
//! whole databases.

use super::Memory;
use super::checks::Target;
use super::errors::{Failure, charge};
use super::reads::{Read, View, on_device, view};
use super::redis::{check_name, database};
use super::writes::propose;
use crate::memory::RequestMemory;
use bytes::Bytes;
use std::sync::Arc;
use stele_proto::stele::redis::v1::{
    ClearRequest, ListRequest, ListResponse, MembersPlace, MembersRequest, MembersResponse,
};
use stele_redis::transaction::MetIntent;
use stele_redis::{
    AdmitBytes, COUNT_MAX, Glob, Kind, KindFilter, MembersPage, MembersWanted, NamesPage,
    NamesWanted, choose_name, walk_members, walk_names,
};
use stele_replica::StageNanos;
use stele_storage::{Admitted, Order};
use stele_types::{ColumnFamily, CommandBuilder, KeyRange, keyspace, redis_key};

/// `List`: returns names of the region.
///
/// Invariant: the answer states where the part of the region ends. A caller that took it for the end of the
/// range would miss the names of the regions after it.
/// Test: `a_scan_returns_each_name_although_regions_are_split`.
pub(super) async fn list(
    target: &Target,
    request: &ListRequest,
    memory: &Memory,
) -> Result<ListResponse, Failure> {
    let range = KeyRange { start: request.start_key.clone(), end: request.end_key.clone() };
    let within = target.part_from(&range, Order::Forward)?;
    let engine_range = redis_part(&within);
    let view = view(target).await?;
    let wanted = NamesWanted {
        examined_max: examined_max(request.examined_max),
        pattern: pattern(&request.pattern)?,
        kind: KindFilter::named(request.r#type.as_bytes()),
        is_counted_only: request.counted_only,
        now_ms: target.store.clock().unix_millis(),
    };
    let choice = request.choice;
    let read = move |view: &View, admit: AdmitBytes<'_>| match choice {
        None => walk_names(view, engine_range, &wanted, admit),
        Some(random) => choose_name(view, &engine_range, &wanted, random, admit),
    };
    let page = on_view(target, view, memory, read).await?;
    let NamesPage { names, found, examined, live, next_key } = page;
    target.reader.note_returned(examined, names.iter().map(|name| name.len() as u64).sum());
    let has_more = within.end != range.end;
    let next_key = match next_key.as_ref().and_then(keyspace::user_key) {
        Some(next_key) => next_key,
        // bug server.list_ends_with_its_region: never
        None if has_more => within.end,
        None => Bytes::new(),
    };
    Ok(ListResponse { names, found, examined, live, next_key, ..ListResponse::default() })
}

/// `Members`: returns members of a hash or set.
pub(super) async fn members(
    target: &Target,
    request: &MembersRequest,
    memory: &Memory,
) -> Result<MembersResponse, Failure> {
    let header_key = redis_key::header_key(database(request.database)?, &request.name);
    check_name(target, &header_key)?;
    let kind = Kind::named(request.r#type.as_bytes()).filter(|kind| *kind != Kind::String);
    let no_kind = || Failure::Invalid("members are those of a hash or set".to_owned());
    let view = view(target).await?;
    let wanted = MembersWanted {
        header_key,
        kind: kind.ok_or_else(no_kind)?,
        after: request.after.as_ref().map(|after| (after.stamp, after.field.clone())),
        examined_max: examined_max(request.examined_max),
        pattern: pattern(&request.pattern)?,
        has_values: !request.fields_only,
        now_ms: target.store.clock().unix_millis(),
    };
    let has_values = wanted.has_values;
    let read = move |view: &View, admit: AdmitBytes<'_>| walk_members(view, &wanted, admit);
    let (members, next) = match on_view(target, view, memory, read).await? {
        MembersPage::Found { members, next } => (members, next),
        MembersPage::WrongType => {
            return Ok(MembersResponse { wrong_type: true, ..MembersResponse::default() });
        }
        MembersPage::Meets(met) => {
            let met = MetIntent::encode_all(&[met]);
            return Ok(MembersResponse { met, ..MembersResponse::default() });
        }
    };
    let bytes = members.iter().map(|(field, value)| (field.len() + value.len()) as u64).sum();
    target.reader.note_returned(members.len() as u64, bytes);
    let next = next.map(|(stamp, field)| MembersPlace { stamp, field });
    let (fields, mut values): (Vec<Bytes>, Vec<Bytes>) = members.into_iter().unzip();
    if !has_values {
        values.clear();
    }
    Ok(MembersResponse { fields, values, next, ..MembersResponse::default() })
}

/// `Clear`: deletes all pairs of Redis keys in a range of the region, in one operation.
///
/// Invariant: only pairs of Redis keys are deleted: those of RawKV have other spaces.
/// Test: `flushdb_deletes_one_database_and_no_other_key`.
pub(super) async fn clear(
    target: &Target,
    request: &ClearRequest,
    memory: &Memory,
) -> Result<StageNanos, Failure> {
    let range = KeyRange { start: request.start_key.clone(), end: request.end_key.clone() };
    target.check_range(&range)?;
    charge(memory, (range.start.len() + range.end.len()) as u64, target.header.region)?;
    let range = redis_part(&range);
    if range.is_empty() {
        return Ok(StageNanos::default());
    }
    let mut command = CommandBuilder::new();
    let added = command.delete_range(&range.start, &range.end);
    added.map_err(|error| Failure::Final(error.to_string()))?;
    propose(target, command, true, memory).await
}

/// Returns the engine keys of a range that are those of Redis keys.
fn redis_part(range: &KeyRange) -> KeyRange {
    ColumnFamily::Redis.engine_range(&range.within(&redis_key::databases_range()))
}

fn examined_max(requested: u32) -> usize {
    usize::try_from(requested).unwrap_or(COUNT_MAX).clamp(1, COUNT_MAX)
}

fn pattern(text: &Bytes) -> Result<Option<Glob>, Failure> {
    let pattern = Glob::new(text.clone()).map_err(|error| Failure::Invalid(error.to_string()))?;
    Ok(Some(pattern).filter(|pattern| !pattern.is_any()))
}

/// Reads a view where the device may be waited for, with the memory of what is found.
async fn on_view<T: Send + 'static>(
    target: &Target,
    view: Arc<View>,
    memory: &Memory,
    read: impl FnOnce(&View, AdmitBytes<'_>) -> stele_types::Result<Admitted<T>> + Send + 'static,
) -> Result<T, Failure> {
    let charged = memory.clone();
    on_device(target, memory, move || admitted(&view, &charged, read)).await
}

fn admitted<T>(
    view: &View,
    memory: &RequestMemory,
    read: impl FnOnce(&View, AdmitBytes<'_>) -> stele_types::Result<Admitted<T>>,
) -> Read<T> {
    let mut exceeded = None;
    let mut admit = |bytes| {
        exceeded = memory.charge(bytes).err();
        exceeded.is_none()
    };
    let read = read(view, &mut admit)?;
    Ok(match read {
        Admitted::Read(found) => Ok(found),
        Admitted::Refused => Err(exceeded.unwrap_or(crate::memory::Exceeded::Shared)),
    })
}
