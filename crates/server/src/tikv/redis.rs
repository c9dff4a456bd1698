//! Redis commands on keys of one region: changes as one program, reads on one view.

use super::Memory;
use super::checks::Target;
use super::errors::{Failure, charge};
use super::gets::{charge_pair, read_pairs};
use super::modifications::on_unknown;
use super::reads::{Read, View, bytes_of, is_live, on_device, view};
use super::writes::not_done;
use crate::memory::{RequestMemory, pair_memory};
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use stele_proto::stele::redis::v1::{RunRequest, RunResponse, WatchedName};
use stele_redis::table::READ_ONLY;
use stele_redis::transaction::MetIntent;
use stele_redis::{
    Members, MembersNeed, Needs, ProgramAnswer, Protocol, RedisProgram, Request, Watched,
};
use stele_replica::{Done, Modified, Reply, Run, StageNanos};
use stele_storage::{CachedGet, EngineView, Pages, Pairs, PendingGet, Program};
use stele_types::{KeyRange, redis_key};

/// Tries of a change that needs whole collections, which may change while they are read.
const TRIES: usize = 3;
/// Steps of a read: headers, then members.
const STEPS_MAX: usize = 8;

/// `Run`: executes commands that change nothing on a view, and all others as one change.
pub(super) async fn run(
    target: &Target,
    request: &RunRequest,
    memory: &Memory,
) -> Result<(RunResponse, StageNanos), Failure> {
    let commands = match Commands::of(target, request)? {
        Ok(commands) => commands,
        Err(refused) => return Ok((refused, StageNanos::default())),
    };
    match commands.change_nothing() {
        true => Ok((read(target, commands, memory).await?, StageNanos::default())),
        false => change(target, commands, memory).await,
    }
}

/// Executes commands as one change, on the state after the whole log.
async fn change(
    target: &Target,
    commands: Commands,
    memory: &Memory,
) -> Result<(RunResponse, StageNanos), Failure> {
    // The requests, and the command that is made of them.
    charge(memory, 2 * commands.bytes(), target.header.region)?;
    let mut members = Members::new();
    // A command may need a collection only after the one before it was executed: each try gets one further.
    for _ in 0..TRIES + commands.requests.len() {
        let program = commands.program(members.clone())?;
        let (answer, stages) = decided(target, program, memory).await?;
        memory.charge_anyway(answer.len() as u64);
        match ProgramAnswer::decode(answer) {
            Some(ProgramAnswer::Replies(replies)) => {
                return Ok((RunResponse { replies, ..RunResponse::default() }, stages));
            }
            Some(ProgramAnswer::Meets(met)) => return Ok((meets(&met), stages)),
            Some(ProgramAnswer::NeedsMembers(needs)) => {
                let view = view(target).await?;
                // Invariant: a try has the collections of all tries before it: one command may need a collection
                // only because another one had its own.
                // Test: `a_collection_is_needed_only_after_another_one_was_renamed`.
                // bug server.redis_collections_forgotten: members.clear();
                members.append(&mut read_members(target, &view, needs, memory).await?);
            }
            None => return Err(Failure::Final("the answer of a program is damaged".to_owned())),
        }
    }
    let reason = "the collections of the commands changed while they were read";
    Err(super::errors::server_is_busy(reason))
}

/// Executes commands that change nothing on one view.
async fn read(
    target: &Target,
    commands: Commands,
    memory: &Memory,
) -> Result<RunResponse, Failure> {
    charge(memory, commands.bytes(), target.header.region)?;
    let view = view(target).await?;
    let now_ms = target.store.clock().unix_millis();
    let (mut pairs, mut members) = (Pairs::new(), Members::new());
    for _ in 0..STEPS_MAX {
        match commands.read(&pairs, &members, now_ms)? {
            Ok(response) => {
                charge(memory, response.replies.len() as u64, target.header.region)?;
                let bytes = pairs.values().flatten().map(bytes_of).sum();
                target.reader.note_returned(pairs.len() as u64, bytes);
                return Ok(response);
            }
            Err(needs) if needs.keys.is_empty() && !needs.intents.is_empty() => {
                return Ok(meets(&needs.intents.into_iter().collect::<Vec<_>>()));
            }
            Err(needs) => {
                read_keys(target, &view, needs.keys.into_iter().collect(), &mut pairs, memory)
                    .await?;
                let wanted = needs.members.into_iter().collect();
                members.append(&mut read_members(target, &view, wanted, memory).await?);
            }
        }
    }
    Err(Failure::Final("the commands read further pairs again and again".to_owned()))
}

/// Returns the response to commands that have met intents.
fn meets(met: &[MetIntent]) -> RunResponse {
    RunResponse { met: MetIntent::encode_all(met), ..RunResponse::default() }
}

/// Proposes a program. Returns its answer.
pub(super) async fn decided(
    target: &Target,
    program: impl Program + 'static,
    memory: &Memory,
) -> Result<(Bytes, StageNanos), Failure> {
    let clock = target.store.clock();
    let arrived_nanos = clock.monotonic_nanos();
    let run = Run { header: target.header, program: Arc::new(program) };
    match target.store.submit(run, Some(memory.clone())).await {
        Reply::Done(Done::Modified { result: Modified::Answered { answer }, timings }) => {
            Ok((answer, timings.stages(arrived_nanos, clock.monotonic_nanos())))
        }
        other => Err(not_done(target, other, on_unknown(target))),
    }
}

/// Commands of a request, which were checked.
struct Commands {
    requests: Vec<Request>,
    protocol: Protocol,
    seed: u64,
    is_transaction: bool,
    watched: Vec<Watched>,
}

impl Commands {
    /// Checks a request. An inner error is the final answer to its caller.
    ///
    /// Invariant: a change is made on the leader of the region that has all of its names with all their pairs.
    /// Test: `commands_whose_names_lie_in_several_regions_are_refused_and_change_nothing`.
    fn of(target: &Target, request: &RunRequest) -> Result<Result<Self, RunResponse>, Failure> {
        let protocol = match request.protocol {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(Failure::Invalid("the protocol of the replies is 2 or 3".to_owned())),
        };
        let requests = request.commands.iter().map(|command| {
            let parsed = Request::parse(database(command.database)?, command.arguments.clone());
            parsed.map_err(|error| Failure::Invalid(error.to_string()))
        });
        let requests = requests.collect::<Result<Vec<_>, Failure>>()?;
        let watched = request.watched.iter().map(|it| {
            let header_key = redis_key::header_key(database(it.database)?, &it.name);
            Ok(Watched { header_key, change: it.change })
        });
        let watched = watched.collect::<Result<Vec<_>, Failure>>()?;
        let of_watched = watched.iter().map(|watched| watched.header_key.clone());
        let keys = requests.iter().flat_map(Request::header_keys).chain(of_watched);
        if let Err(error) = check_names(target, keys)? {
            return Ok(Err(RunResponse { error, ..RunResponse::default() }));
        }
        let (seed, is_transaction) = (request.seed, request.is_transaction);
        Ok(Ok(Self { requests, protocol, seed, is_transaction, watched }))
    }

    fn bytes(&self) -> u64 {
        self.requests.iter().map(|request| request.bytes() as u64).sum()
    }

    fn change_nothing(&self) -> bool {
        !self.is_transaction && self.requests.iter().all(|it| it.spec().has(READ_ONLY))
    }

    fn program(&self, members: Members) -> Result<RedisProgram, Failure> {
        let program = RedisProgram::new(self.requests.clone(), self.protocol, self.seed);
        let program = match self.is_transaction {
            true => program.and_then(|program| program.of_exec().watching(self.watched.clone())),
            false => program,
        };
        let program = program.map_err(|error| Failure::Invalid(error.to_string()))?;
        Ok(program.with_members(members))
    }

    /// Executes the commands on pairs, or returns what else they need.
    fn read(
        &self,
        pairs: &Pairs,
        members: &Members,
        now_ms: u64,
    ) -> Result<Result<RunResponse, Needs>, Failure> {
        let unread = self.watched.iter().map(|watched| &watched.header_key);
        let unread = unread.filter(|key| !pairs.contains_key(*key)).cloned();
        let needs = Needs { keys: unread.collect(), ..Needs::default() };
        if !needs.is_empty() {
            return Ok(Err(needs));
        }
        let run = stele_redis::run(&self.requests, pairs, members, self.seed, now_ms);
        let (command, replies) = match run {
            stele_redis::Run::Needs(needs) => return Ok(Err(needs)),
            stele_redis::Run::Done { command, replies } => (command, replies),
        };
        if !command.is_empty() {
            return Err(Failure::Invalid("a read has commands that change something".to_owned()));
        }
        let mut out = BytesMut::new();
        replies.iter().for_each(|reply| reply.encode(self.protocol, &mut out));
        let of_watched = self.watched.iter().map(|it| &it.header_key);
        let intent = |key: &Bytes| MetIntent::of_pair(key, pairs.get(key).and_then(Option::as_ref));
        let intents = of_watched.filter_map(intent).collect();
        let needs = Needs { intents, ..Needs::default() };
        if !needs.is_empty() {
            return Ok(Err(needs));
        }
        let found = self.watched.iter().map(|watched| {
            let key = watched.header_key.clone();
            let pair = pairs.get(&key).and_then(Option::as_ref);
            let now = Watched::now(key, pair, now_ms);
            let now = now.map_err(|damage| Failure::Final(damage.to_string()))?;
            Ok(WatchedName { change: now.change, ..WatchedName::default() })
        });
        let found = found.collect::<Result<_, Failure>>()?;
        Ok(Ok(RunResponse { replies: out.freeze(), found, ..RunResponse::default() }))
    }
}

pub(super) fn database(number: u32) -> Result<u8, Failure> {
    let known = u8::try_from(number).ok().filter(|number| *number < redis_key::DATABASES);
    known.ok_or_else(|| Failure::Invalid(format!("there is no database {number}")))
}

/// Error of commands on names of several regions. The node that called knows it by this text.
pub(crate) const SEVERAL_REGIONS: &str = "the names of the commands lie in several regions";

/// Checks that all pairs of names lie in the region. An inner error is the final answer to the caller, which
/// routes by the first name.
pub(super) fn check_names(
    target: &Target,
    engine_keys: impl Iterator<Item = Bytes>,
) -> Result<Result<(), String>, Failure> {
    for (place, key) in engine_keys.enumerate() {
        match check_name(target, &key) {
            Ok(()) => {}
            Err(outside) if place == 0 => return Err(outside),
            Err(_) => return Ok(Err(SEVERAL_REGIONS.to_owned())),
        }
    }
    Ok(Ok(()))
}

/// Checks that all pairs of the name of an engine key lie in the region.
pub(super) fn check_name(target: &Target, header_key: &Bytes) -> Result<(), Failure> {
    let user_key = header_key.slice(1..);
    target.check_key(&user_key)?;
    let group = KeyRange::prefix(&redis_key::border(&user_key));
    match group.within(&target.region.range) == group {
        true => Ok(()),
        false => Err(Failure::Final(
            "the pairs of the key lie in several regions since before Redis keys were used: merge the regions with \
             `stele ctl merge`"
                .to_owned(),
        )),
    }
}

/// Adds the live pairs of keys, from memory and then from the device.
async fn read_keys(
    target: &Target,
    view: &Arc<View>,
    keys: Vec<Bytes>,
    pairs: &mut Pairs,
    memory: &Memory,
) -> Result<(), Failure> {
    let store = target.store.id();
    let (mut cold_keys, mut cold): (Vec<Bytes>, Vec<PendingGet>) = Default::default();
    let now_s = target.store.clock().unix_seconds();
    for key in keys {
        match view.get_cached(&key).map_err(|error| Failure::engine(&error, store))? {
            CachedGet::Ready(pair) => {
                charge_pair(target, &key, pair.as_ref(), memory)?;
                pairs.insert(key, pair.filter(|pair| is_live(pair, now_s)));
            }
            CachedGet::NeedsIo(get) => {
                cold_keys.push(key);
                cold.push(get);
            }
        }
    }
    if cold.is_empty() {
        return Ok(());
    }
    let (view, charged) = (Arc::clone(view), memory.clone());
    let read = move || read_pairs(&*view, cold, &charged);
    let found = on_device(target, memory, read).await?;
    let live = found.into_iter().map(|pair| pair.filter(|pair| is_live(pair, now_s)));
    pairs.extend(cold_keys.into_iter().zip(live));
    Ok(())
}

/// Returns all members of collections, as the view has them.
pub(super) async fn read_members(
    target: &Target,
    view: &Arc<View>,
    needs: Vec<MembersNeed>,
    memory: &Memory,
) -> Result<Members, Failure> {
    if needs.is_empty() {
        return Ok(Members::new());
    }
    let (view, charged) = (Arc::clone(view), memory.clone());
    on_device(target, memory, move || members_of(&view, needs, &charged)).await
}

fn members_of(view: &View, needs: Vec<MembersNeed>, memory: &RequestMemory) -> Read<Members> {
    let mut members = Members::new();
    for need in needs {
        let prefix = redis_key::members_prefix(&need.header_key, need.version.stamp);
        let mut pages = Pages::of_range(view, KeyRange::prefix(&prefix));
        pages.bound(usize::MAX, PAGE_BYTES);
        let mut found = Vec::new();
        while let Some(page) = pages.next_page()? {
            let of_pair = |pair: &stele_storage::Pair| {
                pair_memory(pair.key.len() as u64, pair.value.len() as u64)
            };
            if let Err(exceeded) = memory.charge(page.iter().map(of_pair).sum()) {
                return Ok(Err(exceeded));
            }
            found.extend(page.into_iter().map(|pair| (pair.key.slice(prefix.len()..), pair.value)));
        }
        members.insert(need, found);
    }
    Ok(Ok(members))
}

/// Bytes of members that are read before their memory is charged.
const PAGE_BYTES: usize = 256 << 10;
