//! Read-modify-write of one key, decided when it is proposed and logged as its result: the entry
//! directly follows the log on which it was decided, so wherever it commits the decision holds (log
//! matching).

use super::Replica;
use super::parts::{Found, Purpose, Removed, Waiting, found_bytes};
use super::write::{Proposing, Step};
use crate::context::Context;
use crate::input::{Modify, RequestId};
use crate::output::{Busy, Lookup, Refusal};
use crate::reads::KeySearch;
use bytes::Bytes;
use stele_storage::{
    Cached, CachedGet, Decision, EngineView, NewPair, Pair, StorageEngine, decide,
};
use stele_types::{Error, LogIndex, Result, is_expired};

impl<E: StorageEngine> Replica<E> {
    /// Proposes a modification, answers it, or holds its key and looks its pair up. `found` is the
    /// pair if it was looked up.
    pub(super) fn propose_modify(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        modify: Modify,
        found: Option<Found>,
        proposing: &mut Proposing,
    ) -> Result<Step> {
        let found = match found {
            Some(found) => found,
            None => match self.cached_pair(&ctx.engine, &modify.key, proposing)? {
                Cached::Ready(pair) => Ok(pair),
                Cached::NeedsIo => return Ok(self.look_up(ctx, id, modify)),
            },
        };
        let pair = match found {
            Ok(pair) => pair,
            Err(Error::Busy(_)) => {
                let reason = "too many bytes of pairs wait for modifications in this store";
                ctx.reject(id, Busy::Wait { reason });
                return Ok(Step::Settled);
            }
            // Nothing was proposed. The engine recorded the damage, and the store requests a copy
            // from another replica.
            // bug replica.stop_on_damaged_value: never
            Err(error) if error.is_damage() || error.is_failed_read() => {
                let reason =
                    "the value cannot be read here; a copy is requested from other replicas";
                ctx.reject(id, Busy::Wait { reason });
                return Ok(Step::Settled);
            }
            Err(error) => return Err(error),
        };
        let now_s = ctx.now.unix_seconds;
        let live = pair.filter(|pair| !is_expired(pair.expires_at_s, now_s));
        self.carry_out_decision(ctx, id, modify, live, proposing)?;
        Ok(Step::Settled)
    }

    fn carry_out_decision(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        modify: Modify,
        live: Option<Pair>,
        proposing: &mut Proposing,
    ) -> Result<()> {
        let (new, result) = match decide(&modify.change, live) {
            Decision::Change(new, result) => (new, result),
            Decision::Keep(result) => {
                let last = LogIndex(self.group.last().0 + proposing.payloads.len() as u64);
                self.answer_unchanged(ctx, (id, modify.header), last, result);
                return Ok(());
            }
        };
        let command = match new.command(&modify.key) {
            Ok(command) => command.build().bytes().clone(),
            Err(error) => {
                ctx.reject(id, Refusal::Invalid(error.to_string()));
                return Ok(());
            }
        };
        if new == NewPair::Delete || self.is_admitted(ctx, id, command.len(), proposing)? {
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

    /// Holds the key of a modification and looks its pair up: no unapplied entry changes it.
    fn look_up(&mut self, ctx: &mut Context<E>, id: RequestId, modify: Modify) -> Step {
        let key = modify.key.clone();
        match ctx.look_up(self.region.id, key.clone()) {
            Some(lookup) => {
                self.held.hold(lookup, key, Waiting::Modify(id, modify));
                Step::Held
            }
            None => {
                let reason = "too many values are being read from the device";
                ctx.reject(id, Busy::Wait { reason });
                Step::Settled
            }
        }
    }

    /// Takes the result of a lookup, unless its modification was refused meanwhile.
    pub(crate) fn found(&mut self, ctx: &mut Context<E>, lookup: &Lookup, found: Found) {
        let bytes = found_bytes(&found);
        let has_room = ctx.found_bytes + bytes <= ctx.options.found_bytes_max;
        let found = match has_room {
            true => found,
            false => Err(Error::Busy("too many bytes of pairs wait".to_owned())),
        };
        if self.held.note_found(lookup, found) && has_room {
            ctx.found_bytes += bytes;
        }
    }

    /// Refuses the modifications of which the pair is being read, and all requests behind them. None
    /// of them was proposed.
    pub(super) fn refuse_held(&mut self, ctx: &mut Context<E>, refusal: &Refusal) {
        let Removed { gone, found_bytes, .. } = self.held.take_all();
        ctx.found_bytes -= found_bytes;
        gone.into_iter().for_each(|id| ctx.reject(id, refusal.clone()));
    }
}
