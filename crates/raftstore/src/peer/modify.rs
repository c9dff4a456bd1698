//! Read-modify-write of one key, decided when it is proposed and logged as its result: the entry
//! directly follows the log on which it was decided, so wherever it commits the decision holds (log
//! matching).

use super::Peer;
use super::parts::{Found, Purpose, Request, found_bytes};
use super::propose::{Proposing, Step, is_admitted};
use crate::input::{Modification, Modify, NewPair};
use crate::output::{Busy, Lookup, Modified, Refusal, Unfit};
use crate::store::Context;
use bytes::Bytes;
use stele_storage::{Cached, EngineView, Pair, StorageEngine};
use stele_types::limits::APPENDED_VALUE_BYTES_MAX;
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
                if error.is_damage() && !mutant::active("raftstore.stop_on_damaged_value") =>
            {
                let reason = "a damaged value is being fetched from another replica";
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

    /// Returns the pair of a key after the whole log: entries about to be proposed, then unapplied
    /// entries, then the engine, newest first; `NeedsIo` if only the device has it.
    fn cached_pair(
        &self,
        engine: &E,
        key: &Bytes,
        proposing: &[Bytes],
    ) -> Result<Cached<Option<Pair>>> {
        let newest = proposing.iter().rev();
        let unapplied = newest.chain(self.log().newest_first(self.applied().0));
        let overlay = match mutant::active("raftstore.lookup_before_overlay") {
            true => None,
            false => unapplied.filter_map(|payload| last_effect(payload, key)).next(),
        };
        if let Some(effect) = overlay {
            return Ok(Cached::Here(effect));
        }
        // The lookup repeats a read that fails here, and records damage.
        Ok(engine.view()?.get_cached(key).unwrap_or(Cached::NeedsIo))
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
        Modification::Increment { by } => updated(live.as_ref(), incremented(live.as_ref(), *by)),
        Modification::Append { bytes } => updated(live.as_ref(), appended(live.as_ref(), bytes)),
    }
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

fn incremented(live: Option<&Pair>, by: i64) -> Result<Bytes, Unfit> {
    let number = match live {
        Some(pair) => number(&pair.value).ok_or(Unfit::NotANumber)?,
        None => 0,
    };
    let sum = number.checked_add(by).ok_or(Unfit::Overflow)?;
    Ok(sum.to_string().into())
}

/// Parses a number as an increment writes it: without a plus, blanks or leading zeros.
fn number(value: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(value).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == value).then_some(number)
}

fn appended(live: Option<&Pair>, bytes: &Bytes) -> Result<Bytes, Unfit> {
    let before = live.map(|pair| &pair.value[..]).unwrap_or_default();
    let length = before.len() + bytes.len();
    match length <= APPENDED_VALUE_BYTES_MAX {
        true => Ok([before, bytes].concat().into()),
        false => {
            Err(Unfit::TooLong { bytes: length as u64, bytes_max: APPENDED_VALUE_BYTES_MAX as u64 })
        }
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

    fn put(value: &[u8], expires_at_s: u64) -> NewPair {
        NewPair::Put { value: Bytes::copy_from_slice(value), expires_at_s }
    }

    #[test]
    fn a_comparison_and_a_get_and_delete_see_the_pair_and_change_it_or_not() {
        let new = put(b"n", 7);
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
    fn an_increment_takes_decimal_numbers_of_64_bits_and_keeps_the_expiry() {
        let (most, least) = (i64::MAX.to_string(), i64::MIN.to_string());
        // Value before, number to add, value after.
        let rows: [(Option<&str>, i64, Result<&str, Unfit>); 16] = [
            (None, 5, Ok("5")),
            (None, i64::MIN, Ok(&least)),
            (Some("0"), 0, Ok("0")),
            (Some("41"), 1, Ok("42")),
            (Some("1"), -3, Ok("-2")),
            (Some(&most), 0, Ok(&most)),
            (Some(&most), 1, Err(Unfit::Overflow)),
            (Some(&least), -1, Err(Unfit::Overflow)),
            (Some("9223372036854775808"), 0, Err(Unfit::NotANumber)),
            (Some(""), 1, Err(Unfit::NotANumber)),
            (Some("+1"), 1, Err(Unfit::NotANumber)),
            (Some("01"), 1, Err(Unfit::NotANumber)),
            (Some("-0"), 1, Err(Unfit::NotANumber)),
            (Some(" 1"), 1, Err(Unfit::NotANumber)),
            (Some("1.0"), 1, Err(Unfit::NotANumber)),
            (Some("\u{661}"), 1, Err(Unfit::NotANumber)),
        ];
        for (before, by, after) in rows {
            let live = before.map(|text| pair(text.as_bytes(), 9));
            let expires_at_s = if before.is_some() { 9 } else { 0 };
            let expected = match after {
                Ok(text) => Decision::Change(
                    put(text.as_bytes(), expires_at_s),
                    Modified::Updated { value: Bytes::copy_from_slice(text.as_bytes()) },
                ),
                Err(unfit) => Decision::Keep(Modified::Unfit(unfit)),
            };
            let found = decide(&Modification::Increment { by }, live);
            assert_eq!(found, expected, "{before:?} and {by}");
        }
    }

    #[test]
    fn an_append_keeps_the_expiry_and_stops_at_the_limit() {
        let append = |live: Option<Pair>, bytes: &[u8]| {
            decide(&Modification::Append { bytes: Bytes::copy_from_slice(bytes) }, live)
        };
        let becomes = |value: &[u8], expires_at_s| {
            let value = Bytes::copy_from_slice(value);
            let new = NewPair::Put { value: value.clone(), expires_at_s };
            Decision::Change(new, Modified::Updated { value })
        };
        assert_eq!(append(None, b"ab"), becomes(b"ab", 0));
        assert_eq!(append(None, b""), becomes(b"", 0));
        assert_eq!(append(Some(pair(b"ab", 4)), b"c"), becomes(b"abc", 4));
        let bytes_max = APPENDED_VALUE_BYTES_MAX;
        let nearly = vec![7; bytes_max - 1];
        assert_eq!(append(Some(pair(&nearly, 0)), &[7]), becomes(&vec![7; bytes_max], 0));
        let too_long = |bytes: usize| {
            let (bytes, bytes_max) = (bytes as u64, bytes_max as u64);
            Decision::Keep(Modified::Unfit(Unfit::TooLong { bytes, bytes_max }))
        };
        assert_eq!(append(Some(pair(&nearly, 0)), &[7, 7]), too_long(bytes_max + 1));
        assert_eq!(append(None, &vec![7; bytes_max + 1]), too_long(bytes_max + 1));
    }
}
