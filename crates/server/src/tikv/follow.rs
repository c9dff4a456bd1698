//! `Follow`: the committed writes of one region on a stream, from any store that has the entries.
//!
//! A task reads the next entries once the response before them is on its way, so that a slow client holds one
//! response and its window. Once it has read all that is applied it waits for [`POLL`]: writes wake nothing, and
//! those of that time are read and sent together.

use super::Memory;
use super::checks::{self, family_name};
use super::errors::{Failure, not_leader, region_not_found};
use super::streams::{self, CHECK, Stream, StreamCall};
use crate::followers::Following;
use crate::memory::{Charging, Exceeded, Held, RequestMemory, pairs_memory};
use crate::store::{Core, StoreHandle};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_engine::{History, HistoryReader, OldValue, OldValuesReader};
use stele_node::follow::{
    Followed, FollowedWrite, LogFollower, STEP_BYTES_MAX, Step, WriteKind, first_from_now,
};
use stele_proto::kvrpcpb::Context;
use stele_proto::metapb;
use stele_proto::stele::kv::v1::{self as wire_v1, FollowRequest, FollowResponse, region_change};
use stele_replica::{FIRST_OF_CHILD, RegionChange, RegionChangeKind};
use stele_types::{ColumnFamily, KeyRange, LogIndex, Region, is_expired};

/// Time between two looks at the applied index after all was read.
const POLL: Duration = Duration::from_millis(10);
/// Time after which a client learns the next index although no entry concerns its keys.
const PROGRESS: Duration = Duration::from_millis(100);

impl StreamCall for FollowRequest {
    type Answer = FollowResponse;
    const PATH: &'static str = "/stele.kv.v1.Kv/Follow";

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn failed(failure: Failure) -> FollowResponse {
        FollowResponse { region_error: Some(failure.into_error()), ..FollowResponse::default() }
    }

    async fn send(stream: &Stream<Self>) -> Result<(), End> {
        stream.follow().await
    }
}

type End = streams::End<FollowRequest>;

/// What a stream reads, from a store.
struct Source {
    store: Arc<StoreHandle>,
    reader: HistoryReader,
    follower: LogFollower,
    old_values: Option<OldValuesReader>,
}

/// Bytes of the old values of one response.
const OLD_BYTES_MAX: usize = 4 << 20;

/// What one step read, with the memory of it.
struct Taken {
    step: Step,
    /// What the keys of the puts and deletes had before, in order; empty if it was not asked for.
    old_values: OldValues,
    /// There may be more to read.
    has_more: bool,
    memory: Memory,
}

type OldValues = VecDeque<Option<wire_v1::OldValue>>;

impl Stream<FollowRequest> {
    /// Sends what is committed until the client is gone.
    async fn follow(&self) -> Result<(), End> {
        let (mut source, region) = self.source().await?;
        let followers = self.service.stores.followers();
        let next = source.follower.next_index();
        let following = followers.begin(source.follower.region(), next);
        let mut first = region.map(|region| metapb::Region::from(&region));
        let (mut sent, mut sent_at) = (next, Instant::now());
        loop {
            self.check(&source.store)?;
            let room = tokio::select! {
                room = self.sender.reserve() => room,
                () = tokio::time::sleep(CHECK) => continue,
            };
            let Ok(room) = room else { return Ok(()) };
            let (next_source, taken) = self.step(source).await?;
            source = next_source;
            let next = source.follower.next_index();
            let Taken { step, mut old_values, has_more, memory } = taken;
            let entries = match step {
                Step::Read(entries) => entries,
                Step::UpToDate => Vec::new(),
                Step::TooOld => return Err(self.too_old(&source)),
            };
            let is_due = next > sent && sent_at.elapsed() >= PROGRESS;
            if !entries.is_empty() || is_due || first.is_some() {
                // The rights may have changed while the entries were read.
                self.check(&source.store)?;
                expect_children(&following, source.follower.keys(), &entries);
                let message = FollowResponse {
                    entries: entries.into_iter().map(|it| entry_of(it, &mut old_values)).collect(),
                    next_index: next.0,
                    region: first.take(),
                    ..FollowResponse::default()
                };
                room.send(Ok(Held { message, memory: vec![memory] }));
                following.advance(next);
                (sent, sent_at) = (next, Instant::now());
            }
            if !has_more {
                tokio::time::sleep(POLL).await;
            }
        }
    }

    /// Returns what the stream reads. For a stream from now on, also the region as it is there.
    async fn source(&self) -> Result<(Source, Option<Region>), Failure> {
        let context = checks::context(self.request.context.as_ref())?;
        let (id, keys) = (self.region(), self.keys());
        if keys.is_empty() {
            let text = "the end of the keys is not after their start".to_owned();
            return Err(Failure::Invalid(text));
        }
        let store = self.store(context).ok_or_else(|| region_not_found(id))?;
        let (next, region) = match self.request.next_index {
            0 => {
                // Between two iterations of the loop, the region is that of the applied index.
                let found = store.with_core(move |core: &mut Core| core.region(id)).await;
                let report = found.flatten().ok_or_else(|| region_not_found(id))?;
                (first_from_now(&report.region, report.applied), Some(report.region))
            }
            next => (LogIndex(next), None),
        };
        let reader = store.engine().history(id, next);
        let old_values = self.request.old_values.then(|| {
            let ranges = ColumnFamily::ALL.map(|family| family.engine_range(&keys)).to_vec();
            store.engine().old_values(id, ranges)
        });
        let follower = LogFollower::new(id, keys, next);
        Ok((Source { store, reader, follower, old_values }, region))
    }

    fn keys(&self) -> KeyRange {
        let FollowRequest { start_key, end_key, .. } = &self.request;
        KeyRange { start: start_key.clone(), end: end_key.clone() }
    }

    /// Returns the store that the request names, one with a replica, or one that may have entries.
    fn store(&self, context: &Context) -> Option<Arc<StoreHandle>> {
        let (stores, region) = (&self.service.stores, self.region());
        let named = context.peer.as_ref().map(|peer| peer.store_id);
        let all = stores.all();
        let has_history =
            |store: &&Arc<StoreHandle>| store.is_running() && store.engine().has_history(region);
        let named = all.iter().find(|store| named == Some(store.id().0)).filter(has_history);
        let holding = stores.holding(region);
        named.cloned().or(holding).or_else(|| all.iter().find(has_history).cloned())
    }

    fn too_old(&self, source: &Source) -> End {
        if !source.store.engine().has_history(self.region()) {
            return region_not_found(self.region()).into();
        }
        self.service.stores.followers().note_too_old();
        End::Response(Box::new(FollowResponse { too_old: true, ..FollowResponse::default() }))
    }

    /// Reads the next entries, if there may be some.
    ///
    /// Invariant: only what is applied here is read from Raft's log. What is committed may not be written yet,
    /// while entries that it replaces still are.
    async fn step(&self, source: Source) -> Result<(Source, Taken), End> {
        let reader = source.store.readers().get(self.region());
        let applied = reader.map(|reader| reader.applied());
        let memory = RequestMemory::part_of(&self.memory);
        if applied.is_some_and(|applied| applied < source.follower.next_index()) {
            return Ok((source, Taken::nothing(memory)));
        }
        let mut charging = Charging::new(&memory);
        if !charging.admit(pairs_memory(0, STEP_BYTES_MAX as u64)) {
            return match charging.exceeded() {
                // Other requests use the memory: they end.
                Exceeded::Shared => Ok((source, Taken::nothing(memory.clone()))),
                other => Err(Failure::exceeded(other, self.region()).into()),
            };
        }
        let store = source.store.id();
        let read = tokio::task::spawn_blocking(move || read(source, applied.unwrap_or_default()));
        let (source, read) = read.await.map_err(|panic| match panic.is_panic() {
            true => Failure::Final("the read panicked".to_owned()),
            // The node is stopping.
            false => not_leader(self.region(), None),
        })?;
        let Read { step, bytes, old_values } =
            match read.map_err(|error| Failure::engine(&error, store)) {
                Ok(read) => read,
                // Another replica has the entry.
                Err(Failure::Damaged(_)) => return Err(self.too_old(&source)),
                Err(failure) => return Err(failure.into()),
            };
        let writes = match &step {
            Step::Read(entries) => entries.iter().map(|entry| 1 + entry.writes.len()).sum(),
            Step::UpToDate | Step::TooOld => 0,
        };
        // Also of a region that has left this store.
        let is_behind = applied.is_none_or(|applied| source.follower.next_index() <= applied);
        let has_more = is_behind && matches!(step, Step::Read(_));
        let bytes = if writes == 0 { 0 } else { bytes };
        let settled = charging.settle(pairs_memory(writes, bytes));
        settled.map_err(|exceeded| Failure::exceeded(exceeded, self.region()))?;
        Ok((source, Taken { step, old_values, has_more, memory: memory.clone() }))
    }
}

impl Taken {
    fn nothing(memory: Memory) -> Self {
        Self { step: Step::UpToDate, old_values: VecDeque::new(), has_more: false, memory }
    }
}

/// What one read found.
struct Read {
    step: Step,
    /// Bytes of payloads and of old values.
    bytes: u64,
    old_values: OldValues,
}

/// Reads the next entries.
fn read(mut source: Source, applied: LogIndex) -> (Source, stele_types::Result<Read>) {
    let Source { store, reader, follower, old_values } = &mut source;
    let mut bytes = 0;
    let step = follower.step(|bytes_max| {
        Ok(match reader.read(applied, bytes_max)? {
            History::Entries(entries) => {
                bytes = entries.iter().map(|entry| entry.payload.len() as u64).sum();
                Some(entries)
            }
            History::UpToDate => Some(Vec::new()),
            History::TooOld => None,
        })
    });
    let read = step.map(|step| {
        let old_values = match (&step, old_values) {
            (Step::Read(entries), Some(reader)) => {
                old_of(entries, reader, store.clock().unix_seconds())
            }
            _ => VecDeque::new(),
        };
        let of_old = old_values.iter().flatten().filter_map(|old| old.value.as_ref());
        let bytes = bytes + of_old.map(|value| value.len() as u64).sum::<u64>();
        Read { step, bytes, old_values }
    });
    (source, read)
}

/// Returns what the keys of puts and deletes had before. Values of more than [`OLD_BYTES_MAX`] in all are
/// unknown.
fn old_of(entries: &[Followed], reader: &OldValuesReader, unix_s: u64) -> OldValues {
    let mut left = OLD_BYTES_MAX;
    let mut all = VecDeque::new();
    for entry in entries {
        let mut found: VecDeque<_> = reader.take(entry.index, left).into();
        for write in &entry.writes {
            if matches!(write.kind, WriteKind::DeleteRange(_)) {
                continue;
            }
            let (_, old) = found.pop_front().unzip();
            let old = match old.unwrap_or(OldValue::Unknown) {
                OldValue::Unknown => None,
                OldValue::Present { value, expires_at_s } if !is_expired(expires_at_s, unix_s) => {
                    left = left.saturating_sub(value.len());
                    Some(wire_v1::OldValue { value: Some(value) })
                }
                OldValue::Absent | OldValue::Present { .. } => {
                    Some(wire_v1::OldValue { value: None })
                }
            };
            all.push_back(old);
        }
    }
    all
}

/// Keeps the logs of regions that splits create, until the client follows them.
///
/// Invariant: a log that a client will follow is kept from before the client learns of it.
fn expect_children(following: &Following, keys: &KeyRange, entries: &[Followed]) {
    for change in entries.iter().filter_map(|entry| entry.change.as_ref()) {
        if let RegionChangeKind::Split { children } = &change.kind {
            let wanted = children.iter().filter(|child| child.range.overlaps(keys));
            wanted.for_each(|child| following.expect(child.id, FIRST_OF_CHILD));
        }
    }
}

fn entry_of(followed: Followed, old_values: &mut OldValues) -> wire_v1::FollowedEntry {
    wire_v1::FollowedEntry {
        index: followed.index.0,
        term: followed.term.0,
        writes: followed.writes.into_iter().map(|it| write_of(it, old_values)).collect(),
        change: followed.change.map(|change| change_of(&change)),
    }
}

fn write_of(write: FollowedWrite, old_values: &mut OldValues) -> wire_v1::FollowedWrite {
    use wire_v1::followed_write::Kind;
    let (kind, old) = match write.kind {
        WriteKind::Put { value, expires_at_s } => {
            let put = wire_v1::FollowedPut { value, expires_at_s };
            (Kind::Put(put), old_values.pop_front().flatten())
        }
        WriteKind::Delete => (Kind::Delete(true), old_values.pop_front().flatten()),
        WriteKind::DeleteRange(end) => (Kind::DeleteRangeTo(end), None),
    };
    let cf = family_name(write.family).to_owned();
    wire_v1::FollowedWrite { cf, key: write.key, kind: Some(kind), old }
}

fn change_of(change: &RegionChange) -> wire_v1::RegionChange {
    use region_change::Kind;
    let kind = match &change.kind {
        RegionChangeKind::Split { children } => {
            Kind::Split(wire_v1::Split { children: children.iter().map(Into::into).collect() })
        }
        RegionChangeKind::Prepared { target } => {
            Kind::Prepared(wire_v1::PreparedMerge { target: target.0 })
        }
        RegionChangeKind::Merged { source, prepared } => {
            Kind::Merged(wire_v1::Merged { source: source.0, prepared_index: prepared.0 })
        }
        RegionChangeKind::RolledBack => Kind::RolledBack(wire_v1::RolledBack {}),
    };
    wire_v1::RegionChange { region: Some((&change.region).into()), kind: Some(kind) }
}
