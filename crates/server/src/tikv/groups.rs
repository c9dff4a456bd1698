//! Groups of the commands of one message.
//!
//! Puts of one message and one region are proposed as one entry: consensus, log and apply cost once
//! for all of them. Each put gets its own answer. They arrived at the same time, so none is
//! guaranteed to be visible without the others.
//!
//! Gets of one message and one region share a lease and a view, which is taken after all of them
//! arrived. Those that memory holds are answered at once. The values of the others are read together. A
//! get that needs a read index round, memory of its own or a refusal continues alone.

use super::checks::{Target, target};
use super::errors::{Failure, charge};
use super::reads::is_live;
use super::{Memory, TikvService, gets, reads, writes};
use crate::memory::{RequestMemory, value_memory};
use crate::observe::{Kind, Outcome};
use crate::store::{Caller, StoreHandle};
use crate::stores::Stores;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use stele_proto::kvrpcpb::{Context, RawGetRequest, RawGetResponse, RawPutRequest, RawPutResponse};
use stele_replica::{Reply, Submission, Write};
use stele_storage::{CachedGet, EngineView, PendingGet};
use stele_types::CommandBuilder;

/// Bytes of an entry after which the next one begins. Above this, an entry's own cost is small
/// beside its values.
const GROUP_BYTES_MAX: usize = 64 << 10;

pub(super) struct PutGroup {
    context: Context,
    target: Target,
    ids: Vec<u64>,
    command: CommandBuilder,
    memory: Memory,
}

#[derive(Default)]
pub(super) struct PutGroups {
    groups: Vec<PutGroup>,
}

impl PutGroups {
    /// Adds a put of a message to the group of its region. A failure concerns only this put.
    pub(super) fn add(
        &mut self,
        stores: &Stores,
        message: &Memory,
        (id, request): (u64, &RawPutRequest),
    ) -> Result<(), Failure> {
        let context = request.context.as_ref();
        let fits = |group: &&mut PutGroup| {
            context.is_some_and(|context| has_same_target(&group.context, context))
                && group.command.encoded_bytes() + writes::put_bytes(request) <= GROUP_BYTES_MAX
        };
        let bytes = writes::put_bytes(request) as u64;
        if let Some(group) = self.groups.iter_mut().find(fits) {
            charge(&group.memory, bytes, group.target.header.region)?;
            writes::add_put(&group.target, &mut group.command, request)?;
            group.ids.push(id);
            return Ok(());
        }
        let target = target(stores, context)?;
        let memory = RequestMemory::part_of(message);
        charge(&memory, bytes, target.header.region)?;
        let mut command = CommandBuilder::with_capacity(writes::put_bytes(request));
        writes::add_put(&target, &mut command, request)?;
        let context = context.cloned().unwrap_or_default();
        self.groups.push(PutGroup { context, target, ids: vec![id], command, memory });
        Ok(())
    }

    /// Proposes the entries. Each store takes those of its regions in one turn. `answer` gets each reply
    /// on the store's loop, or here: it must not block.
    pub(super) fn propose(
        self,
        answer: impl FnOnce(Box<Proposed>, Reply) + Clone + Send + 'static,
    ) {
        let mut of_stores: Vec<(Arc<StoreHandle>, Vec<Submission<Caller>>)> = Vec::new();
        for group in self.groups {
            let store = group.target.store.clone();
            let submission = group.submission(answer.clone());
            match of_stores.iter_mut().find(|(it, _)| Arc::ptr_eq(it, &store)) {
                Some((_, submissions)) => submissions.push(submission),
                None => of_stores.push((store, vec![submission])),
            }
        }
        of_stores.into_iter().for_each(|(store, submissions)| store.begin(submissions));
    }
}

/// Returns whether two requests are checked against the same peer in the same state.
pub(super) fn has_same_target(a: &Context, b: &Context) -> bool {
    a.region_id == b.region_id
        && a.peer == b.peer
        && a.region_epoch == b.region_epoch
        && a.term == b.term
        && a.api_version == b.api_version
        && a.request_source == b.request_source
}

impl PutGroup {
    fn submission(
        self,
        answer: impl FnOnce(Box<Proposed>, Reply) + Send + 'static,
    ) -> Submission<Caller> {
        let Self { target, ids, command, memory, .. } = self;
        let command = command.build().bytes().clone();
        let request = Write { header: target.header, command, only_deletes: false }.into();
        let arrived_nanos = target.store.clock().monotonic_nanos();
        let guard = memory.clone();
        let proposed =
            Box::new(Proposed { target, ids, memory, started: Instant::now(), arrived_nanos });
        let caller = Caller::new(move |reply| answer(proposed, reply));
        Submission { request, caller, memory: Some(guard as _) }
    }
}

pub(super) struct Proposed {
    target: Target,
    ids: Vec<u64>,
    pub memory: Memory,
    started: Instant,
    arrived_nanos: u64,
}

impl Proposed {
    pub(super) fn answers(
        self,
        service: &TikvService,
        reply: Reply,
    ) -> impl Iterator<Item = (u64, RawPutResponse)> {
        let Self { target, ids, started, arrived_nanos, .. } = self;
        let written = writes::written(&target, reply, arrived_nanos);
        let stages = written.as_ref().ok().copied();
        service.note(Kind::Put, ids.len(), started, written.as_ref().err(), stages);
        let region_error = written.err().map(Failure::into_error);
        ids.into_iter().map(move |id| {
            let region_error = region_error.clone();
            (id, RawPutResponse { region_error, ..RawPutResponse::default() })
        })
    }
}

/// Gets of one group; more are distributed over processors.
const GROUP_GETS_MAX: usize = 64;

/// Longest memory of a value that is charged with those of others, after they are read.
const CHARGED_LATER_BYTES_MAX: u64 = 16 << 10;

/// Get of a message, with its id there.
pub(super) type Get = (u64, RawGetRequest);

pub(super) struct GetGroup {
    context: Context,
    target: Target,
    gets: Vec<Get>,
}

#[derive(Default)]
pub(super) struct GetGroups {
    groups: Vec<GetGroup>,
}

impl GetGroups {
    /// Adds a get to the group of its region; returns it if it must continue alone.
    pub(super) fn add(&mut self, stores: &Stores, get: Get) -> Option<Get> {
        let Some(context) = &get.1.context else { return Some(get) };
        let fits = |group: &&mut GetGroup| {
            group.gets.len() < GROUP_GETS_MAX && has_same_target(&group.context, context)
        };
        if let Some(group) = self.groups.iter_mut().find(fits) {
            group.gets.push(get);
            return None;
        }
        let Ok(target) = target(stores, Some(context)) else { return Some(get) };
        self.groups.push(GetGroup { context: context.clone(), target, gets: vec![get] });
        None
    }

    pub(super) fn finish(self) -> Vec<GetGroup> {
        self.groups
    }
}

/// What a group's gets found in memory.
pub(super) struct GroupFound {
    pub done: Vec<(u64, RawGetResponse)>,
    /// Those that must continue alone.
    pub alone: Vec<Get>,
    pub cold: Option<ColdGets>,
}

/// Gets of a group that need the device.
pub(super) struct ColdGets {
    target: Target,
    view: reads::View,
    gets: Vec<(Get, PendingGet)>,
    started: Instant,
}

impl GetGroup {
    /// Answers what memory holds.
    ///
    /// Invariant: answers from memory do not wait for the device.
    /// Test: `warm_gets_of_a_group_are_answered_before_its_cold_ones_are_read`.
    pub(super) fn run(self, service: &TikvService, memory: &Memory) -> GroupFound {
        let started = Instant::now();
        let (target, gets) = (self.target, self.gets);
        let Ok(Some(view)) = reads::leased_view(&target) else {
            return GroupFound { done: Vec::new(), alone: gets, cold: None };
        };
        let (keyed, mut alone) = keyed(&target, gets);
        let (gets, keys): (Vec<Get>, Vec<Bytes>) = keyed.into_iter().unzip();
        view.prefetch(&keys);
        let (mut warm, mut cold) = (Vec::with_capacity(gets.len()), Vec::new());
        let now_s = target.store.clock().unix_seconds();
        // Counters that all threads share are changed once a group.
        let (mut charged_bytes, mut returned_bytes) = (0, 0);
        for (get, key) in gets.into_iter().zip(keys) {
            let pair = match view.get_cached(&key) {
                Ok(CachedGet::Ready(pair)) => pair.filter(|pair| is_live(pair, now_s)),
                Ok(CachedGet::NeedsIo(pending)) => {
                    cold.push((get, pending));
                    continue;
                }
                Err(_) => {
                    alone.push(get);
                    continue;
                }
            };
            let pair_bytes = pair.as_ref().map_or(0, reads::bytes_of);
            let value = pair.map(|pair| pair.value);
            let bytes = value_memory(value.as_ref().map_or(0, Bytes::len) as u64);
            if bytes <= CHARGED_LATER_BYTES_MAX {
                charged_bytes += bytes;
            } else if memory.charge(bytes).is_err() {
                // One without memory is refused alone.
                alone.push(get);
                continue;
            }
            returned_bytes += pair_bytes;
            warm.push((get, value));
        }
        if memory.charge(charged_bytes).is_err() {
            alone.extend(warm.drain(..).map(|(get, _)| get));
        }
        if !warm.is_empty() {
            target.reader.note_returned(warm.len() as u64, returned_bytes);
        }
        let response = |((id, _), value): (Get, _)| (id, gets::get_response(value));
        let done: Vec<_> = warm.into_iter().map(response).collect();
        note_served(service, &target, done.len(), started, view.has_effects());
        let gets = cold;
        let cold = (!gets.is_empty()).then(|| ColdGets { target, view, gets, started });
        GroupFound { done, alone, cold }
    }
}

/// Returns the gets with the keys of the engine, and those of which the key is refused.
fn keyed(target: &Target, gets: Vec<Get>) -> (Vec<(Get, Bytes)>, Vec<Get>) {
    let (mut keyed, mut refused) = (Vec::with_capacity(gets.len()), Vec::new());
    for get in gets {
        match target.engine_key(&get.1.cf, &get.1.key) {
            Ok(key) => keyed.push((get, key)),
            Err(_) => refused.push(get),
        }
    }
    (keyed, refused)
}

impl ColdGets {
    /// Reads the values together, through the view that found their locations. Returns the answers, and
    /// the gets that must continue alone.
    ///
    /// Invariant: a get of an unreadable value, or without memory, takes no other with it.
    /// Test: `a_damaged_value_fails_only_its_own_get_of_a_group`.
    pub(super) async fn read(
        self,
        service: &TikvService,
        memory: &Memory,
    ) -> (Vec<(u64, RawGetResponse)>, Vec<Get>) {
        let Self { target, view, gets, started } = self;
        let with_effects = view.has_effects();
        let (gets, pending): (Vec<Get>, Vec<PendingGet>) = gets.into_iter().unzip();
        let values = gets::group_values(&target, view, pending, memory).await;
        let (mut done, mut alone) = (Vec::with_capacity(gets.len()), Vec::new());
        let values = values.into_iter().chain(std::iter::repeat(None));
        for ((id, request), value) in gets.into_iter().zip(values) {
            // bug server.failed_get_of_a_group_finds_nothing: let value = Some(value.flatten());
            match value {
                Some(value) => done.push((id, gets::get_response(value))),
                None => alone.push((id, request)),
            }
        }
        note_served(service, &target, done.len(), started, with_effects);
        (done, alone)
    }
}

fn note_served(
    service: &TikvService,
    target: &Target,
    count: usize,
    started: Instant,
    with_effects: bool,
) {
    target.reader.note_reads(count as u64, with_effects);
    service.metrics.requests(Kind::Get, count, started.elapsed(), Outcome::Served, None);
}
