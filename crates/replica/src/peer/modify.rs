//! Read-modify-write of one key, decided when it is proposed and logged as its result: the entry
//! directly follows the log on which it was decided, so wherever it commits the decision holds (log
//! matching).

use super::Replica;
use super::parts::{Found, FoundPairs, Purpose, Removed, Waiting, found_bytes, value_bytes};
use super::write::{Proposing, Step};
use crate::context::Context;
use crate::input::{Modify, RequestId};
use crate::output::{Busy, Lookup, Refusal, Rejection};
use crate::reads::KeySearch;
use bytes::Bytes;
use stele_storage::{
    Cached, CachedGet, Decision, EngineView, Modification, Modified, NewPair, Pair, StorageEngine,
    decide, decode_record, encode_record,
};
use stele_types::session::Due;
use stele_types::{CommandBuilder, Error, LogIndex, Result, SessionRequest, is_expired};

/// Attempt of a session's request.
struct Attempt {
    request: SessionRequest,
    /// The record, if it was looked up.
    record: Option<Found>,
    /// The record was looked up before, and was not there. The key has been held since.
    is_absent: bool,
}

impl<E: StorageEngine> Replica<E> {
    /// Proposes a modification, answers it, or holds its key and looks up its pair, or the record of
    /// its request. `found` is the pair that was looked up for it.
    pub(super) fn propose_modify(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        modify: Modify,
        found: Option<FoundPairs>,
        proposing: &mut Proposing,
    ) -> Result<Step> {
        let (record, found) = match found.and_then(|mut found| found.pop()) {
            None => (None, None),
            Some((key, pair)) if key == modify.key => (None, Some(pair)),
            Some((_, record)) => (Some(record), None),
        };
        let modify = match modify.session {
            None => modify,
            Some(request) => {
                let is_absent = found.is_some();
                let attempt = Attempt { request, record, is_absent };
                match self.check_repetition(ctx, id, modify, attempt, proposing)? {
                    Ok(modify) => modify,
                    Err(step) => return Ok(step),
                }
            }
        };
        let found = match found {
            Some(found) => found,
            None if matches!(modify.change, Modification::Set { .. }) => Ok(None),
            None => match self.cached_pair(&ctx.engine, &modify.key, proposing)? {
                Cached::Ready(pair) => Ok(pair),
                Cached::NeedsIo => {
                    let keys = vec![modify.key.clone()];
                    return Ok(self.look_up(ctx, Waiting::Modify(id, modify), Vec::new(), keys));
                }
            },
        };
        let Some(pair) = usable(ctx, id, found)? else { return Ok(Step::Settled) };
        let now_s = ctx.now.unix_seconds();
        let live = pair.filter(|pair| !is_expired(pair.expires_at_s, now_s));
        self.carry_out_decision(ctx, id, modify, live, proposing)?;
        Ok(Step::Settled)
    }

    /// Returns the modification if it is the first attempt of its request; otherwise answers it, or reads
    /// the record beside the loop.
    ///
    /// Invariant: the record is read on the state after the whole log: entries about to be proposed, those
    /// of earlier leaders that are not applied, the window, and the engine. A repetition that finds it waits
    /// until the log is committed up to here, as the first attempt does. The expiry of a record hides
    /// nothing: only merges compare it, with the cluster's time.
    /// Tests: `a_repetition_gets_the_first_result_and_takes_no_effect`,
    /// `a_repetition_finds_the_record_in_an_entry_of_an_earlier_leader_and_waits_for_it`,
    /// `a_record_is_found_although_the_clock_of_the_node_is_far_ahead`.
    fn check_repetition(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        modify: Modify,
        attempt: Attempt,
        proposing: &mut Proposing,
    ) -> Result<Result<Modify, Step>> {
        let Attempt { request, record, is_absent } = attempt;
        let key = match due_key(ctx, &request, &modify.key) {
            Ok(key) => key,
            Err(rejection) => {
                ctx.reject(id, rejection);
                return Ok(Err(Step::Settled));
            }
        };
        // bug replica.record_not_looked_up: always
        if is_absent {
            return Ok(Ok(modify));
        }
        let found = match record {
            Some(found) => found,
            // bug replica.record_of_applied: `self.cached_pair(&ctx.engine, &key, proposing)?` is `match ctx.engine.view()?.get_cached(&key)? { CachedGet::Ready(it) => Cached::Ready(it), CachedGet::NeedsIo(_) => Cached::NeedsIo }`
            None => match self.cached_pair(&ctx.engine, &key, proposing)? {
                Cached::Ready(record) => Ok(record),
                Cached::NeedsIo => {
                    let request = Waiting::Modify(id, modify);
                    return Ok(Err(self.look_up(ctx, request, Vec::new(), vec![key])));
                }
            },
        };
        let Some(record) = usable(ctx, id, found)? else { return Ok(Err(Step::Settled)) };
        // bug replica.record_hidden_by_clock: let record = record.filter(|it| !is_expired(it.expires_at_s, ctx.now.unix_seconds()));
        let Some(record) = record else { return Ok(Ok(modify)) };
        match decode_record(&modify.key, &record.value) {
            Some(result) => {
                let last = LogIndex(self.group.last().0 + proposing.payloads.len() as u64);
                // bug replica.repetition_answered_early: let last = LogIndex(0);
                self.answer_unchanged(ctx, (id, modify.header), last, result);
            }
            None => {
                let reason = "the record of the request is of a later version: upgrade this node";
                ctx.reject(id, Refusal::Invalid(reason.to_owned()));
            }
        }
        Ok(Err(Step::Settled))
    }

    /// Adds the command of a decision to the proposal, or answers what changes nothing.
    ///
    /// Invariant: the record of a session's request is in the command of its effect. A refusal by a
    /// condition is a result too: its command has the record alone, and a repetition is refused although
    /// the condition holds by then.
    /// Tests: `the_record_is_in_the_entry_of_the_effect`, `a_refused_condition_stays_refused`.
    fn carry_out_decision(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        modify: Modify,
        live: Option<Pair>,
        proposing: &mut Proposing,
    ) -> Result<()> {
        let recorded = modify.session;
        let (new, result) = match decide(&modify.change, live) {
            Decision::Change(new, result) => (Some(new), result),
            Decision::Keep(result) => {
                // bug replica.refusal_unrecorded: always
                if recorded.is_none() {
                    let last = LogIndex(self.group.last().0 + proposing.payloads.len() as u64);
                    self.answer_unchanged(ctx, (id, modify.header), last, result);
                    return Ok(());
                }
                (None, result)
            }
        };
        let command = match command_of(&modify, new.as_ref(), &result) {
            Ok(command) => command.build().bytes().clone(),
            Err(error) => {
                ctx.reject(id, Refusal::Invalid(error.to_string()));
                return Ok(());
            }
        };
        let (bytes, bytes_max) = (command.len() as u64, ctx.options.entry_bytes_max);
        if recorded.is_some() && bytes > bytes_max {
            ctx.reject(id, Refusal::TooLarge { bytes, bytes_max });
            return Ok(());
        }
        let only_deletes = new == Some(NewPair::Delete) && recorded.is_none();
        if only_deletes || self.is_admitted(ctx, id, command.len(), proposing)? {
            // bug replica.record_apart: if let (Some(_), Some(new)) = (recorded, new.as_ref()) { proposing.push(new.command(&modify.key)?.build().bytes().clone(), None); }
            // bug replica.record_apart: let command = match recorded { Some(_) => command_of(&modify, None, &result)?.build().bytes().clone(), None => command };
            proposing.push(command, Some(Purpose::Modify(id, result)));
        }
        Ok(())
    }

    /// Returns the pair of a key after the whole log: entries about to be proposed, entries that are
    /// not visible, the window, then the engine, newest first; `NeedsIo` if only the device has it.
    fn cached_pair(
        &self,
        engine: &E,
        key: &Bytes,
        proposing: &mut Proposing,
    ) -> Result<Cached<Option<Pair>>> {
        let Proposing { payloads, search, .. } = proposing;
        let newest = payloads.iter().rev();
        // bug replica.lookup_before_overlay: skip
        for payload in newest.chain(self.log().newest_first(self.visible().0)) {
            if let Some(effect) = search.last_effect(payload, key) {
                return Ok(Cached::Ready(effect));
            }
        }
        // bug replica.lookup_before_overlay: skip
        if let Some(effect) = self.window_effect(key, search)? {
            return Ok(Cached::Ready(effect));
        }
        // The lookup repeats a read that fails here, and records damage.
        Ok(match engine.view()?.get_cached(key) {
            Ok(CachedGet::Ready(pair)) => Cached::Ready(pair),
            Ok(CachedGet::NeedsIo(_)) | Err(_) => Cached::NeedsIo,
        })
    }

    /// Returns what entries that are committed and not applied do to a key.
    fn window_effect(&self, key: &Bytes, search: &mut KeySearch) -> Result<Option<Option<Pair>>> {
        // bug replica.modification_ignores_window: `self.reader.window().effect(key, search)` is `Ok(None)`
        self.reader.window().effect(key, search)
    }

    /// Holds the keys of a request and looks pairs up: no unapplied entry changes them. `pairs` are
    /// those that were read already.
    pub(super) fn look_up(
        &mut self,
        ctx: &mut Context<E>,
        request: Waiting,
        pairs: FoundPairs,
        keys: Vec<Bytes>,
    ) -> Step {
        let bytes = found_bytes(&pairs);
        if ctx.found_bytes + bytes > ctx.options.found_bytes_max {
            ctx.reject(request.id(), Busy::Wait { reason: TOO_MANY_BYTES });
            return Step::Settled;
        }
        match ctx.look_up(self.region.id, keys) {
            Some(lookups) => {
                ctx.found_bytes += bytes;
                self.held.hold(&lookups, pairs, request);
                Step::Held
            }
            None => {
                let reason = "too many values are being read from the device";
                ctx.reject(request.id(), Busy::Wait { reason });
                Step::Settled
            }
        }
    }

    /// Takes the result of a lookup, unless its request was refused meanwhile.
    pub(crate) fn found(&mut self, ctx: &mut Context<E>, lookup: &Lookup, found: Found) {
        let bytes = value_bytes(&found);
        let has_room = ctx.found_bytes + bytes <= ctx.options.found_bytes_max;
        let found = match has_room {
            true => found,
            false => Err(Error::Busy("too many bytes of pairs wait".to_owned())),
        };
        if self.held.note_found(lookup, found) && has_room {
            ctx.found_bytes += bytes;
        }
    }

    /// Refuses the requests of which pairs are being read, and all requests behind them. None
    /// of them was proposed.
    pub(super) fn refuse_held(&mut self, ctx: &mut Context<E>, refusal: &Refusal) {
        let Removed { gone, found_bytes, .. } = self.held.take_all();
        ctx.found_bytes -= found_bytes;
        gone.into_iter().for_each(|id| ctx.reject(id, refusal.clone()));
    }
}

const TOO_MANY_BYTES: &str = "too many bytes of pairs wait for modifications in this store";

/// Returns the pair that was looked up. Otherwise answers the request, of which nothing was proposed.
pub(super) fn usable<E: StorageEngine>(
    ctx: &mut Context<E>,
    id: RequestId,
    found: Found,
) -> Result<Option<Option<Pair>>> {
    let reason = match found {
        Ok(pair) => return Ok(Some(pair)),
        Err(Error::Busy(_)) => TOO_MANY_BYTES,
        // The engine recorded the damage, and the store requests a copy from another replica.
        // bug replica.stop_on_damaged_value: never
        Err(error) if error.is_damage() || error.is_failed_read() => {
            "the value cannot be read here; a copy is requested from other replicas"
        }
        Err(error) => return Err(error),
    };
    ctx.reject(id, Busy::Wait { reason });
    Ok(None)
}

/// Returns the key of the record of an attempt that may be executed now, by the cluster's time.
fn due_key<E: StorageEngine>(
    ctx: &Context<E>,
    request: &SessionRequest,
    key: &Bytes,
) -> Result<Bytes, Rejection> {
    let Some(cluster_s) = ctx.cluster_time.fresh_s(ctx.now.monotonic_nanos) else {
        let reason = "the cluster's time is not known here yet";
        return Err(Busy::Wait { reason }.into());
    };
    // bug replica.deadline_by_node_clock: let cluster_s = ctx.now.unix_seconds();
    match request.due(cluster_s) {
        Due::InTime => {}
        Due::Late | Due::TooFar => return Err(Refusal::SessionDeadline { cluster_s }.into()),
    }
    request.record_key(key).map_err(|error| Refusal::Invalid(error.to_string()).into())
}

/// Returns the command of a decided modification, with the record of its request.
fn command_of(modify: &Modify, new: Option<&NewPair>, result: &Modified) -> Result<CommandBuilder> {
    let mut command = match new {
        Some(new) => new.command(&modify.key)?,
        None => CommandBuilder::new(),
    };
    if let Some(request) = modify.session {
        let record = request.record_key(&modify.key)?;
        command.put(&record, &encode_record(result), request.expires_at_s)?;
    }
    Ok(command)
}
