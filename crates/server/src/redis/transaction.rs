//! MULTI, EXEC and WATCH of a connection: what is queued, and how the replies of programs and those of the
//! connection become one array.

use super::encoded::{elements, is_null};
use super::pipeline::{Charged, Runner};
use super::state::ConnectionState;
use super::{RedisBatch, RedisFailure, Watched};
use crate::memory::RequestMemory;
use bytes::{Bytes, BytesMut};
use std::sync::Arc;
use stele_redis::{Reply, Request, parse_i64, put_array_header};
use stele_types::redis_key::{self, DATABASES};

/// Names that a connection watches at most.
const WATCHED_MAX: usize = 1024;
/// Bytes of a queued command beside its announced ones.
const QUEUED_BYTES: u64 = 128;
/// Bytes up to which a queued argument is copied: a slice keeps the buffer in which it was received.
const COPIED_BYTES_MAX: usize = 4 << 10;

/// Transaction of a connection, and the names that it watches.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    open: Option<QueuedCommands>,
    /// A queued command was refused.
    is_failed: bool,
    watched: Vec<Watched>,
    /// Memory of the requests with these names.
    memories: Vec<Arc<RequestMemory>>,
}

/// Commands between MULTI and EXEC.
#[derive(Debug, Default)]
pub(super) struct QueuedCommands {
    commands: Vec<Vec<Bytes>>,
    watched: Vec<Watched>,
    memories: Vec<Arc<RequestMemory>>,
}

impl Transaction {
    /// Returns whether MULTI was sent, and not yet EXEC or DISCARD.
    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns the number of queued commands; `None` outside MULTI.
    pub(super) fn queued(&self) -> Option<usize> {
        self.open.as_ref().map(|queue| queue.commands.len())
    }

    /// Returns the number of watched names.
    pub(super) fn watched(&self) -> usize {
        self.watched.len()
    }

    /// Makes EXEC fail, if a transaction is open.
    pub(super) fn note_error(&mut self) {
        self.is_failed |= self.is_open();
    }

    /// Keeps the memory of a request until the names that it watches are forgotten.
    pub(super) fn keep(&mut self, memory: &Arc<RequestMemory>) {
        keep(&mut self.memories, memory);
    }

    pub(super) fn begin(&mut self) -> Reply {
        if self.is_open() {
            return Reply::error("ERR MULTI calls can not be nested");
        }
        (self.open, self.is_failed) = (Some(QueuedCommands::default()), false);
        Reply::OK
    }

    pub(super) fn queue(&mut self, request: &Request, memory: &Arc<RequestMemory>) {
        let Some(queue) = &mut self.open else { return };
        let copied = |word: &Bytes| match word.len() > COPIED_BYTES_MAX {
            true => word.clone(),
            false => Bytes::copy_from_slice(word),
        };
        memory.charge_anyway(QUEUED_BYTES);
        queue.commands.push(request.arguments().iter().map(copied).collect());
        keep(&mut queue.memories, memory);
    }

    /// Ends the transaction for EXEC. Fails with the reply if there is none, or if a command was refused.
    pub(super) fn end(&mut self) -> Result<QueuedCommands, Reply> {
        let Some(mut queue) = self.open.take() else {
            return Err(Reply::error("ERR EXEC without MULTI"));
        };
        let ended = std::mem::take(self);
        if ended.is_failed {
            return Err(Reply::error(
                "EXECABORT Transaction discarded because of previous errors.",
            ));
        }
        queue.watched = ended.watched;
        queue.memories.extend(ended.memories);
        Ok(queue)
    }

    pub(super) fn discard(&mut self) -> Reply {
        if !self.is_open() {
            return Reply::error("ERR DISCARD without MULTI");
        }
        *self = Self::default();
        Reply::OK
    }

    /// Ends a transaction of which the EXEC is refused with this error. Returns the reply to it.
    pub(super) fn abort(&mut self, error: &str) -> Reply {
        *self = Self::default();
        let reason = error.strip_prefix("ERR ").unwrap_or(error);
        Reply::error(format!("EXECABORT Transaction discarded because of: {reason}"))
    }

    /// Fails with the reply if further names cannot be watched now.
    pub(super) fn may_watch(&self, names: usize) -> Result<(), Reply> {
        if self.is_open() {
            return Err(Reply::error("ERR WATCH inside MULTI is not allowed"));
        }
        match self.watched.len() + names > WATCHED_MAX {
            true => {
                Err(Reply::error(format!("ERR a connection watches at most {WATCHED_MAX} keys")))
            }
            false => Ok(()),
        }
    }

    /// Watches names. A name that is watched keeps its number.
    ///
    /// Invariant: the first number counts: a change between two WATCH of one name makes EXEC fail.
    /// Test: `a_name_that_is_watched_twice_keeps_its_first_number`.
    pub(super) fn watch(&mut self, database: u8, names: Vec<Bytes>, changes: Vec<Option<u64>>) {
        for (name, change) in names.into_iter().zip(changes) {
            let is_same = |it: &Watched| it.database == database && it.name == name;
            if !self.watched.iter().any(is_same) {
                self.watched.push(Watched { database, name, change });
            }
        }
    }

    pub(super) fn unwatch(&mut self) {
        if self.open.is_none() {
            self.watched.clear();
            self.memories.clear();
        }
    }
}

fn keep(memories: &mut Vec<Arc<RequestMemory>>, memory: &Arc<RequestMemory>) {
    if !memories.last().is_some_and(|last| Arc::ptr_eq(last, memory)) {
        memories.push(memory.clone());
    }
}

/// Requests of a transaction: those of pairs travel, and the connection answers the others afterwards.
struct Plan {
    requests: Vec<Request>,
    /// Whether each request is one of the connection, in order.
    is_local: Vec<bool>,
    local: Vec<Request>,
}

impl Plan {
    /// Parses the commands. SELECT holds for those after it.
    fn new(mut database: u8, commands: Vec<Vec<Bytes>>) -> Result<Self, RedisFailure> {
        let mut plan = Self { requests: Vec::new(), is_local: Vec::new(), local: Vec::new() };
        for words in commands {
            let request = Request::parse(database, words);
            let request = request.map_err(|error| RedisFailure::Invalid(error.to_string()))?;
            if request.spec().name == "select"
                && let Some(number) = request.arguments().get(1).and_then(|it| parse_i64(it))
                && let Some(number) = u8::try_from(number).ok().filter(|it| *it < DATABASES)
            {
                database = number;
            }
            plan.is_local.push(!request.spec().is_program());
            match request.spec().is_program() {
                true => plan.requests.push(request),
                false => plan.local.push(request),
            }
        }
        Ok(plan)
    }

    /// Answers the commands of the connection, and puts these replies between the others.
    fn joined(self, state: &mut ConnectionState, replies: Bytes) -> Result<Bytes, RedisFailure> {
        if self.local.is_empty() || is_null(&replies) {
            return Ok(replies);
        }
        let unexpected = || RedisFailure::Undetermined("unexpected replies".to_owned());
        let mut of_programs = elements(&replies).ok_or_else(unexpected)?.into_iter();
        let mut of_connection = self.local.iter();
        let mut out = BytesMut::new();
        put_array_header(&mut out, self.is_local.len());
        for is_local in &self.is_local {
            match is_local {
                true => {
                    let request = of_connection.next().ok_or_else(unexpected)?;
                    state.answer(request).encode(state.protocol, &mut out);
                }
                false => out.extend_from_slice(&of_programs.next().ok_or_else(unexpected)?),
            }
        }
        Ok(out.freeze())
    }
}

/// Executes a transaction; returns its encoded reply.
///
/// Invariant: rights that were withdrawn after MULTI are not used by EXEC.
/// Test: `a_right_that_is_withdrawn_after_multi_is_not_used_by_exec`.
pub(super) async fn exec(
    state: &mut ConnectionState,
    queue: QueuedCommands,
    memory: &Arc<RequestMemory>,
) -> Result<Charged, Reply> {
    let plan = Plan::new(state.database, queue.commands)?;
    // bug server.redis_rights_of_multi: skip
    plan.requests.iter().try_for_each(|request| state.check_rights(request))?;
    let replies = if plan.requests.is_empty() && queue.watched.is_empty() {
        Reply::Array(Vec::new()).encoded(state.protocol).into()
    } else {
        let watched = queue.watched.iter();
        let watched = watched.map(|it| redis_key::header_key(it.database, &it.name));
        let keys: Vec<Bytes> =
            plan.requests.iter().flat_map(Request::header_keys).chain(watched).collect();
        let runner = Runner::of(state, memory);
        let region = runner.only_region(&keys).await?;
        let batch = runner.batch(region, plan.requests.clone());
        let batch = RedisBatch { transaction: Some(queue.watched), ..batch };
        match runner.run(&batch).await {
            // The region was split meanwhile.
            Err(RedisFailure::SeveralRegions) if region.is_some() => {
                runner.run(&RedisBatch { region: None, ..batch }).await?
            }
            ran => ran?,
        }
    };
    let joined = plan.joined(state, replies.replies.clone())?;
    let replies = replies.with(joined);
    drop(queue.memories);
    Ok(replies)
}
