//! Read-modify-write of one key, decided when it is proposed and logged as its result: the entry
//! directly follows the log on which it was decided, so wherever it commits the decision holds (log
//! matching).

use super::Peer;
use super::parts::{Found, Purpose, Request, found_bytes};
use super::propose::{Proposing, Step, is_admitted};
use crate::input::{Modification, Modify, NewPair};
use crate::output::{Busy, Lookup, Modified, Refusal};
use crate::store::Context;
use bytes::Bytes;
use stele_storage::{Cached, EngineView, Pair, StorageEngine};
use stele_types::computed::{self, Unfit};
use stele_types::{Command, CommandBuilder, Error, KeyRange, LogIndex, Op, Result, mutant};

/// Decision on a modification.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// The key gets this pair; the result is known before the entry is proposed.
    Change(NewPair, Modified),
    /// Nothing changes.
    Keep(Modified),
}

impl<E: StorageEngine> Peer<E> {
    /// Proposes a modification, answers it, or holds its key and looks its pair up. `found` is the
    /// pair if it was looked up.
    pub(super) fn propose_modify(
        &mut self,
        ctx: &mut Context<E>,
        modify: Modify,
        found: Option<Found>,
        proposing: &mut Proposing,
    ) -> Result<Step> {
        let found = match found {
            Some(found) => found,
            None => match self.cached_pair(&ctx.engine, &modify.key, &proposing.payloads)? {
                Cached::Here(pair) => Ok(pair),
                Cached::NeedsIo => return Ok(self.look_up(ctx, modify)),
            },
        };
        let pair = match found {
            Ok(pair) => pair,
            Err(Error::Busy(_)) => {
                let reason = "too many bytes of requests wait in this store";
                ctx.reject(modify.id, Busy::Wait { reason });
                return Ok(Step::Settled);
            }
            // Nothing was proposed. The engine recorded the damage, and the store requests a copy
            // from another replica.
            Err(error)
                if (error.is_damage() || error.is_failed_read())
                    && !mutant::active("raftstore.stop_on_damaged_value") =>
            {
                let reason =
                    "the value cannot be read here; a copy is requested from other replicas";
                ctx.reject(modify.id, Busy::Wait { reason });
                return Ok(Step::Settled);
            }
            Err(error) => return Err(error),
        };
        let now_s = ctx.now.unix_seconds;
        let live = pair.filter(|pair| pair.expires_at_s == 0 || pair.expires_at_s > now_s);
        self.carry_out_decision(ctx, modify, live, proposing)?;
        Ok(Step::Settled)
    }

    fn carry_out_decision(
        &mut self,
        ctx: &mut Context<E>,
        modify: Modify,
        live: Option<Pair>,
        proposing: &mut Proposing,
    ) -> Result<()> {
        let (new, result) = match decide(&modify.change, live) {
            Decision::Change(new, result) => (new, result),
            Decision::Keep(result) => {
                let last = LogIndex(self.group.last().0 + proposing.payloads.len() as u64);
                self.answer_unchanged(ctx, modify, last, result);
                return Ok(());
            }
        };
        let command = match command(&modify.key, &new) {
            Ok(command) => command.bytes().clone(),
            Err(error) => {
                ctx.reject(modify.id, Refusal::Invalid(error.to_string()));
                return Ok(());
            }
        };
        if new == NewPair::Delete || is_admitted(ctx, modify.id, command.len())? {
            proposing.push(command, Some(Purpose::Modify(modify.id, result)));
        }
        Ok(())
    }

    /// Returns the pair of a key after the whole log: entries about to be proposed, entries that are
    /// not visible, the window, then the engine, newest first; `NeedsIo` if only the device has it.
    fn cached_pair(
        &self,
        engine: &E,
        key: &Bytes,
        proposing: &[Bytes],
    ) -> Result<Cached<Option<Pair>>> {
        let newest = proposing.iter().rev();
        let mut invisible = newest.chain(self.log().newest_first(self.visible().0));
        if !mutant::active("raftstore.lookup_before_overlay") {
            if let Some(effect) = invisible.find_map(|payload| last_effect(payload, key)) {
                return Ok(Cached::Here(effect));
            }
            if let Some(effect) = self.window_effect(key)? {
                return Ok(Cached::Here(effect));
            }
        }
        // The lookup repeats a read that fails here, and records damage.
        Ok(engine.view()?.get_cached(key).unwrap_or(Cached::NeedsIo))
    }

    /// Returns what entries that are committed and not applied do to a key.
    fn window_effect(&self, key: &Bytes) -> Result<Option<Option<Pair>>> {
        match mutant::active("raftstore.modification_ignores_window") {
            true => Ok(None),
            false => self.reader.window().effect(key),
        }
    }

    /// Holds the key of a modification and looks its pair up: no unapplied entry changes it.
    fn look_up(&mut self, ctx: &mut Context<E>, modify: Modify) -> Step {
        let key = modify.key.clone();
        match ctx.look_up(self.region.id, key.clone()) {
            Some(lookup) => {
                self.held.hold(lookup, key, Request::Modify(modify));
                Step::Held
            }
            None => {
                let reason = "too many values are being read from the device";
                ctx.reject(modify.id, Busy::Wait { reason });
                Step::Settled
            }
        }
    }

    /// Takes the result of a lookup, unless its modification was refused meanwhile.
    pub fn found(&mut self, ctx: &mut Context<E>, lookup: &Lookup, found: Found) {
        let bytes = found_bytes(&found);
        let has_room = ctx.waiting_bytes + bytes <= ctx.options.pending_bytes_max;
        let found = match has_room {
            true => found,
            false => Err(Error::Busy("too many bytes of requests wait".to_owned())),
        };
        if self.held.note_found(lookup, found) && has_room {
            ctx.waiting_bytes += bytes;
        }
    }

    /// Refuses the modifications of which the pair is being read, and all requests behind them. None
    /// of them was proposed.
    pub(super) fn refuse_held(&mut self, ctx: &mut Context<E>, refusal: &Refusal) {
        for (id, bytes) in self.held.take_all() {
            ctx.waiting_bytes -= bytes;
            ctx.reject(id, refusal.clone());
        }
    }
}

/// Decides a modification on the live pair of its key.
fn decide(change: &Modification, live: Option<Pair>) -> Decision {
    match change {
        Modification::Compare { expected, new } => {
            let holds = live.as_ref().map(|pair| &pair.value) == expected.as_ref();
            match holds {
                true => Decision::Change(new.clone(), Modified::Replaced { previous: live }),
                false => Decision::Keep(Modified::Unchanged { previous: live }),
            }
        }
        Modification::GetAndDelete => match live {
            Some(_) => Decision::Change(NewPair::Delete, Modified::Replaced { previous: live }),
            None => Decision::Keep(Modified::Unchanged { previous: None }),
        },
        Modification::Increment { by } => {
            let sum = computed::incremented(value_of(live.as_ref()), *by);
            updated(live.as_ref(), sum.map(|sum| sum.to_string().into()))
        }
        Modification::Append { bytes } => {
            let value = computed::appended(value_of(live.as_ref()), bytes);
            updated(live.as_ref(), value.map(Bytes::from))
        }
    }
}

fn value_of(live: Option<&Pair>) -> Option<&[u8]> {
    live.map(|pair| &pair.value[..])
}

/// Decides on a value computed from the pair; its expiry stays.
fn updated(live: Option<&Pair>, value: Result<Bytes, Unfit>) -> Decision {
    let expires_at_s = match mutant::active("raftstore.modification_drops_expiry") {
        true => 0,
        false => live.map_or(0, |pair| pair.expires_at_s),
    };
    match value {
        Ok(value) => {
            let new = NewPair::Put { value: value.clone(), expires_at_s };
            Decision::Change(new, Modified::Updated { value })
        }
        Err(unfit) => Decision::Keep(Modified::Unfit(unfit)),
    }
}

fn command(key: &Bytes, new: &NewPair) -> Result<Command> {
    let mut builder = CommandBuilder::new();
    match new {
        NewPair::Put { value, expires_at_s } => builder.put(key, value, *expires_at_s)?,
        NewPair::Delete => builder.delete(key)?,
    };
    Ok(builder.build())
}

/// Returns a command's effect on a key; `None` if it does not change the key.
fn last_effect(payload: &Bytes, key: &Bytes) -> Option<Option<Pair>> {
    let mut effect = None;
    Command::each_op_of(payload, |op| match op {
        Op::Put { key: put, value, expires_at_s, value_offset, .. } if put == &key[..] => {
            let at = value_offset as usize;
            let value = payload.slice(at..at + value.len());
            effect = Some(Some(Pair { key: key.clone(), value, expires_at_s }));
        }
        Op::Delete { key: deleted } if deleted == &key[..] => effect = Some(None),
        Op::DeleteRange { start, end } => {
            let range = KeyRange::new(start.to_vec(), end.to_vec());
            if range.contains(key) {
                effect = Some(None);
            }
        }
        _ => {}
    });
    effect
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_operation_on_a_key_counts() {
        let mut builder = CommandBuilder::new();
        builder.put(b"a", b"1", 0).unwrap();
        builder.put(b"a", b"2", 9).unwrap();
        builder.put(b"b", b"3", 0).unwrap();
        builder.delete_range(b"b", b"c").unwrap();
        let command = builder.build().bytes().clone();
        let at = |key: &'static [u8]| last_effect(&command, &Bytes::from_static(key));
        let pair = at(b"a").unwrap().unwrap();
        assert_eq!((&pair.value[..], pair.expires_at_s), (&b"2"[..], 9));
        assert_eq!(at(b"b"), Some(None));
        assert_eq!(at(b"c"), None);
    }

    fn pair(value: &[u8], expires_at_s: u64) -> Pair {
        Pair { key: Bytes::from_static(b"k"), value: Bytes::copy_from_slice(value), expires_at_s }
    }

    #[test]
    fn a_comparison_and_a_get_and_delete_see_the_pair_and_change_it_or_not() {
        let new = NewPair::Put { value: Bytes::from_static(b"n"), expires_at_s: 7 };
        let compare = |expected: Option<&[u8]>| Modification::Compare {
            expected: expected.map(Bytes::copy_from_slice),
            new: new.clone(),
        };
        let old = || Some(pair(b"o", 3));
        let changes =
            |to: &NewPair, previous| Decision::Change(to.clone(), Modified::Replaced { previous });
        let keeps = |previous| Decision::Keep(Modified::Unchanged { previous });
        let rows = [
            (compare(None), None, changes(&new, None)),
            (compare(None), old(), keeps(old())),
            (compare(Some(b"o")), old(), changes(&new, old())),
            (compare(Some(b"x")), old(), keeps(old())),
            (compare(Some(b"o")), None, keeps(None)),
            (Modification::GetAndDelete, old(), changes(&NewPair::Delete, old())),
            (Modification::GetAndDelete, None, keeps(None)),
        ];
        for (change, live, expected) in rows {
            assert_eq!(decide(&change, live.clone()), expected, "{change:?} on {live:?}");
        }
    }

    #[test]
    fn a_computed_value_keeps_the_expiry() {
        let becomes = |value: &[u8], expires_at_s| {
            let value = Bytes::copy_from_slice(value);
            let new = NewPair::Put { value: value.clone(), expires_at_s };
            Decision::Change(new, Modified::Updated { value })
        };
        let increment = |by| Modification::Increment { by };
        let append = || Modification::Append { bytes: Bytes::from_static(b"5") };
        let unfit = |unfit| Decision::Keep(Modified::Unfit(unfit));
        let rows = [
            (increment(1), None, becomes(b"1", 0)),
            (increment(1), Some(pair(b"41", 9)), becomes(b"42", 9)),
            (increment(1), Some(pair(b"x", 9)), unfit(Unfit::NotANumber)),
            (append(), None, becomes(b"5", 0)),
            (append(), Some(pair(b"4", 9)), becomes(b"45", 9)),
            (append(), Some(pair(&[7; 64 << 10], 0)), unfit(Unfit::TooLong { bytes: 65_537 })),
        ];
        for (change, live, expected) in rows {
            assert_eq!(decide(&change, live.clone()), expected, "{change:?}");
        }
    }
}
