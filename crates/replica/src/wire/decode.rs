//! Decoder of untrusted bytes from other stores.

use super::joined::{JOINED_MAX, ReceivedRoutes, Route};
use super::{CONTEXT_BYTES_MAX, ENTRIES_MAX, FORMAT, MEMBERS_MAX, REJECT, VALUES_MAX, unzigzag};
use crate::CommittedMerges;
use crate::messages::{
    Body, MergeAnswer, MergeQuery, PeerMessage, Preparation, RaftEntry, RaftKind, RaftMessage,
    RangeRepairReply, SnapshotHeader, Verdict,
};
use bytes::Bytes;
use stele_storage::{LostEntry, LostValue, Pair};
use stele_types::size::{COMMAND_BYTES_MAX, KEY_BYTES_MAX, USER_KEY_BYTES_MAX, VALUE_BYTES_MAX};
use stele_types::{
    Command, Error, KeyRange, LogIndex, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId,
    RegionKind, Result, StoreId, Term, varint,
};

/// Longest encoded descriptor in bytes: two keys and the peers.
const DESCRIPTOR_BYTES_MAX: usize = 2 * USER_KEY_BYTES_MAX + (4 << 10);

/// Decodes a frame. Every payload that is not empty is a well-formed command. Fails with `Invalid`,
/// also if bytes are left over.
pub fn decode(frame: Bytes) -> Result<PeerMessage> {
    let mut reader = Reader { rest: &frame };
    let message = read_message(&mut reader, &frame);
    message.map_err(|what| Error::invalid(format!("peer message: {what}")))
}

/// Decodes the header of a snapshot. Fails with `Invalid`, also if bytes are left over.
pub fn decode_snapshot(bytes: &[u8]) -> Result<SnapshotHeader> {
    let mut reader = Reader { rest: bytes };
    let header = read_snapshot(&mut reader);
    header.map_err(|what| Error::invalid(format!("snapshot header: {what}")))
}

type Read<T> = std::result::Result<T, &'static str>;

/// Decodes a frame of at most [`JOINED_MAX`] messages, in order, as [`decode`] does. Fails with `Invalid`,
/// also at a route that was not sent before; `take` has then got the messages before that one.
pub fn decode_joined(
    frame: &Bytes,
    routes: &mut ReceivedRoutes,
    mut take: impl FnMut(PeerMessage),
) -> Result<()> {
    let mut reader = Reader { rest: frame };
    let mut count = 0;
    while !reader.rest.is_empty() {
        count += 1;
        if count > JOINED_MAX {
            return Err(Error::invalid("peer message: too many in one frame"));
        }
        let message = read_joined(&mut reader, frame, routes);
        take(message.map_err(|what| Error::invalid(format!("peer message: {what}")))?);
    }
    Ok(())
}

fn read_joined(
    reader: &mut Reader<'_>,
    frame: &Bytes,
    routes: &mut ReceivedRoutes,
) -> Read<PeerMessage> {
    let route = match reader.number()? {
        0 => {
            let route = read_route(reader)?;
            routes.note(route.clone());
            route
        }
        number => routes.get(number).cloned().ok_or("a route that was not sent")?,
    };
    let body_number = reader.byte()?;
    Ok(route.with(read_body(body_number, reader, frame)?))
}

fn read_message(reader: &mut Reader<'_>, frame: &Bytes) -> Read<PeerMessage> {
    reader.version()?;
    let body_number = reader.byte()?;
    let route = read_route(reader)?;
    let body = read_body(body_number, reader, frame)?;
    reader.end()?;
    Ok(route.with(body))
}

fn read_route(reader: &mut Reader<'_>) -> Read<Route> {
    let [from_store, to_store, region] = reader.numbers()?;
    let kind = match reader.byte()? {
        0 => RegionKind::Data,
        1 => RegionKind::System,
        _ => return Err("unknown kind of region"),
    };
    let range = KeyRange { start: reader.key()?, end: reader.key()? };
    let [conf_version, version] = reader.numbers()?;
    let (from, to) = (reader.peer()?, reader.peer()?);
    Ok(Route {
        stores: (StoreId(from_store), StoreId(to_store)),
        region: RegionId(region),
        kind,
        range,
        epoch: RegionEpoch { conf_version, version },
        peers: (from, to),
    })
}

fn read_body(body_number: u8, reader: &mut Reader<'_>, frame: &Bytes) -> Read<Body> {
    Ok(match body_number {
        0 => Body::Raft(read_raft(reader, frame)?),
        1 => Body::Gone,
        2 | 12 => {
            let [index, term, target] = reader.numbers()?;
            let (prepared, target) = ((LogIndex(index), Term(term)), RegionId(target));
            let left = if body_number == 12 { Some(reader.number()?) } else { None };
            Body::Merged { prepared, target, left }
        }
        3 => {
            let [term, last] = reader.numbers()?;
            Body::Hibernate { term: Term(term), last: LogIndex(last) }
        }
        4 => Body::WakeUp,
        5 => {
            let [index, term] = reader.numbers()?;
            Body::Prepared { prepared: (LogIndex(index), Term(term)) }
        }
        6 => Body::ValueRepairRequest(read_lost(reader)?),
        7 => Body::ValueRepairReply(read_found(reader, frame)?),
        8 => Body::RangeRepairRequest(reader.engine_range()?),
        9 => Body::RangeRepairReply(read_found_range(reader, frame)?),
        10 => Body::EntryRecoveryRequest(read_lost_entries(reader)?),
        11 => Body::EntryRecoveryReply(read_found_entries(reader, frame)?),
        13 => Body::MergeQuery(read_merge_query(reader)?),
        14 => Body::MergeAnswer(read_merge_answer(reader)?),
        15 => {
            let count = reader.member_count()?;
            Body::Members((0..count).map(|_| reader.peer()).collect::<Read<_>>()?)
        }
        _ => return Err("unknown body"),
    })
}

fn read_raft(reader: &mut Reader<'_>, frame: &Bytes) -> Read<RaftMessage> {
    let kind = RaftKind::from_number(reader.byte()?).ok_or("unknown kind of Raft message")?;
    let reject = match reader.byte()? {
        0 => false,
        REJECT => true,
        _ => return Err("unknown flags"),
    };
    let [term, log_term, index, commit] = reader.numbers()?;
    let [commit_term, reject_hint, request_snapshot] = reader.numbers()?;
    let priority = unzigzag(reader.number()?);
    let context = reader.bytes(CONTEXT_BYTES_MAX, "context too long")?;
    Ok(RaftMessage {
        kind,
        term: Term(term),
        log_term: Term(log_term),
        index: LogIndex(index),
        commit: LogIndex(commit),
        commit_term: Term(commit_term),
        reject,
        reject_hint: LogIndex(reject_hint),
        request_snapshot: LogIndex(request_snapshot),
        priority,
        context: Bytes::copy_from_slice(context),
        entries: read_entries(reader, frame)?,
    })
}

const ENTRY_BYTES_MIN: usize = 3;

fn read_entries(reader: &mut Reader<'_>, frame: &Bytes) -> Read<Vec<RaftEntry>> {
    let count = usize::try_from(reader.number()?).map_err(|_| "too many entries")?;
    if count > ENTRIES_MAX.min(reader.rest.len() / ENTRY_BYTES_MIN) {
        return Err("too many entries");
    }
    let mut table = *reader;
    for _ in 0..count {
        reader.numbers::<3>()?;
    }
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let [term, index, length] = table.numbers()?;
        let length = usize::try_from(length).ok().filter(|bytes| *bytes <= COMMAND_BYTES_MAX);
        let payload = read_payload(reader, frame, length.ok_or("entry too long")?)?;
        entries.push(RaftEntry { term: Term(term), index: LogIndex(index), payload });
    }
    Ok(entries)
}

fn read_payload(reader: &mut Reader<'_>, frame: &Bytes, length: usize) -> Read<Bytes> {
    let payload = reader.take(length)?;
    if payload.is_empty() {
        return Ok(Bytes::new());
    }
    let payload = frame.slice_ref(payload);
    // A command that the engine cannot apply would stop every replica.
    match Command::parse(payload.clone()) {
        Ok(_) => Ok(payload),
        Err(_) => Err("an entry is not a command"),
    }
}

const VALUE_BYTES_MIN: usize = 2;

fn read_count(reader: &mut Reader<'_>) -> Read<usize> {
    let count = usize::try_from(reader.number()?).map_err(|_| "too many values")?;
    match count <= VALUES_MAX.min(reader.rest.len() / VALUE_BYTES_MIN) {
        true => Ok(count),
        false => Err("too many values"),
    }
}

fn read_lost(reader: &mut Reader<'_>) -> Read<Vec<LostValue>> {
    let count = read_count(reader)?;
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        let key = reader.engine_key()?;
        let [length, crc] = reader.numbers()?;
        let number = |number: u64| u32::try_from(number).map_err(|_| "a number too large");
        values.push(LostValue { key, length: number(length)?, crc: number(crc)? });
    }
    Ok(values)
}

fn read_found(reader: &mut Reader<'_>, frame: &Bytes) -> Read<Vec<(Bytes, Bytes)>> {
    let count = read_count(reader)?;
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let (key, length) = (reader.engine_key()?, reader.number()?);
        let length = usize::try_from(length).ok().filter(|bytes| *bytes <= VALUE_BYTES_MAX);
        found.push((key, length.ok_or("value too long")?));
    }
    let value = |(key, length): (Bytes, usize)| {
        let value = reader.take(length)?;
        Ok((key, if value.is_empty() { Bytes::new() } else { frame.slice_ref(value) }))
    };
    found.into_iter().map(value).collect()
}

fn read_lost_entries(reader: &mut Reader<'_>) -> Read<Vec<LostEntry>> {
    let count = read_count(reader)?;
    let number = |number: u64| u32::try_from(number).map_err(|_| "a number too large");
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        let [region, index, term, bytes, crc] = reader.numbers()?;
        let (region, index, term) = (RegionId(region), LogIndex(index), Term(term));
        let (bytes, crc) = (number(bytes)?, number(crc)?);
        if bytes as usize > COMMAND_BYTES_MAX {
            return Err("entry too long");
        }
        entries.push(LostEntry { region, index, term, bytes, crc });
    }
    Ok(entries)
}

fn read_found_entries(reader: &mut Reader<'_>, frame: &Bytes) -> Read<Vec<(LostEntry, Bytes)>> {
    let lost = read_lost_entries(reader)?;
    let found = |lost: LostEntry| Ok((lost, read_payload(reader, frame, lost.bytes as usize)?));
    lost.into_iter().map(found).collect()
}

fn read_found_range(reader: &mut Reader<'_>, frame: &Bytes) -> Read<RangeRepairReply> {
    let (range, at) = (reader.engine_range()?, LogIndex(reader.number()?));
    let count = read_count(reader)?;
    let mut found = Vec::with_capacity(count);
    for _ in 0..count {
        let key = reader.engine_key()?;
        let [length, expires_at_s] = reader.numbers()?;
        let length = usize::try_from(length).ok().filter(|bytes| *bytes <= VALUE_BYTES_MAX);
        found.push((key, length.ok_or("value too long")?, expires_at_s));
    }
    let ascends = found.is_sorted_by(|(one, ..), (next, ..)| one < next);
    if !ascends || found.iter().any(|(key, ..)| !range.contains(key)) {
        return Err("pairs out of order or range");
    }
    let pair = |(key, length, expires_at_s): (Bytes, usize, u64)| {
        let value = reader.take(length)?;
        let value = if value.is_empty() { Bytes::new() } else { frame.slice_ref(value) };
        Ok(Pair { key, value, expires_at_s })
    };
    let pairs = found.into_iter().map(pair).collect::<Read<Vec<Pair>>>()?;
    Ok(RangeRepairReply { range, at, pairs })
}

fn read_merge_query(reader: &mut Reader<'_>) -> Read<MergeQuery> {
    let [source, index, term, target] = reader.numbers()?;
    let [conf_version, version] = reader.numbers()?;
    let refuse = match reader.byte()? {
        0 => false,
        1 => true,
        _ => return Err("unknown flags"),
    };
    let preparation = Preparation {
        source: RegionId(source),
        prepared: (LogIndex(index), Term(term)),
        target: RegionId(target),
        target_epoch: RegionEpoch { conf_version, version },
    };
    Ok(MergeQuery { preparation, refuse })
}

fn read_merge_answer(reader: &mut Reader<'_>) -> Read<MergeAnswer> {
    let [source, index, term] = reader.numbers()?;
    let verdict = Verdict::from_number(reader.byte()?).ok_or("unknown verdict")?;
    let count = reader.member_count()?;
    let stores = (0..count).map(|_| reader.number().map(StoreId)).collect::<Read<_>>()?;
    let (source, prepared) = (RegionId(source), (LogIndex(index), Term(term)));
    Ok(MergeAnswer { source, prepared, verdict, stores })
}

fn read_snapshot(reader: &mut Reader<'_>) -> Read<SnapshotHeader> {
    reader.version()?;
    let region = reader.bytes(DESCRIPTOR_BYTES_MAX, "descriptor too long")?;
    let region = Region::decode(region).map_err(|_| "malformed descriptor")?;
    let [index, term, leader_term] = reader.numbers()?;
    let (from, to) = (reader.peer()?, reader.peer()?);
    let bytes = reader.number()?;
    let merges = match reader.rest.is_empty() {
        true => None,
        false => Some(CommittedMerges::take(&mut reader.rest).ok_or("malformed merges")?),
    };
    reader.end()?;
    let at = (LogIndex(index), Term(term));
    Ok(SnapshotHeader { region, at, leader_term: Term(leader_term), from, to, bytes, merges })
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn version(&mut self) -> Read<()> {
        match self.byte()? {
            FORMAT => Ok(()),
            _ => Err("unknown version"),
        }
    }

    fn byte(&mut self) -> Read<u8> {
        let (&byte, rest) = self.rest.split_first().ok_or("cut short")?;
        self.rest = rest;
        Ok(byte)
    }

    fn number(&mut self) -> Read<u64> {
        varint::take(&mut self.rest).ok_or("cut short, or an overlong number")
    }

    fn numbers<const N: usize>(&mut self) -> Read<[u64; N]> {
        let mut out = [0; N];
        for number in &mut out {
            *number = self.number()?;
        }
        Ok(out)
    }

    fn take(&mut self, length: usize) -> Read<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or("cut short")?;
        self.rest = rest;
        Ok(taken)
    }

    fn bytes(&mut self, bytes_max: usize, too_long: &'static str) -> Read<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok().filter(|bytes| *bytes <= bytes_max);
        self.take(length.ok_or(too_long)?)
    }

    fn key(&mut self) -> Read<Bytes> {
        Ok(Bytes::copy_from_slice(self.bytes(USER_KEY_BYTES_MAX, "key too long")?))
    }

    fn engine_key(&mut self) -> Read<Bytes> {
        Ok(Bytes::copy_from_slice(self.bytes(KEY_BYTES_MAX, "key too long")?))
    }

    fn engine_range(&mut self) -> Read<KeyRange> {
        let range = KeyRange { start: self.engine_key()?, end: self.engine_key()? };
        if range.is_empty() { Err("an empty range") } else { Ok(range) }
    }

    fn member_count(&mut self) -> Read<u64> {
        let count = self.number()?;
        if count > MEMBERS_MAX { Err("too many members") } else { Ok(count) }
    }

    fn peer(&mut self) -> Read<Peer> {
        let [id, store] = self.numbers()?;
        let role = PeerRole::from_number(u64::from(self.byte()?)).ok_or("unknown role")?;
        Ok(Peer { id: PeerId(id), store: StoreId(store), role })
    }

    fn end(&self) -> Read<()> {
        // bug replica.wire_takes_trailing_bytes: `self.rest.is_empty()` is `true`
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err("bytes after the end"),
        }
    }
}
