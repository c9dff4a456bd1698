//! Programs: changes of several keys, decided when they are proposed and logged as their operations, like
//! a modification of one key. A program names the pairs that it needs step by step. What memory holds is
//! read in the loop; for the rest all its keys are held while other threads read.
//!
//! Invariant: a program is decided on the pairs of all its keys after one and the same log: entries about to
//! be proposed, those of earlier leaders that are not applied, the window, and the engine. What it read
//! before its keys were held is not changed until it is decided.
//! Tests: `programs_of_several_keys_see_what_was_proposed_before_them`,
//! `a_program_sees_what_is_answered_and_not_applied`,
//! `a_program_holds_all_its_keys_while_one_pair_is_read`.

use super::Replica;
use super::modify::usable;
use super::parts::{FoundPairs, Purpose, Waiting};
use super::write::{Proposing, Step};
use crate::context::Context;
use crate::input::{RequestId, Run};
use crate::output::Refusal;
use bytes::Bytes;
use std::collections::BTreeSet;
use stele_storage::{
    Cached, CachedGet, EngineView, Modified, Outcome, PROGRAM_KEYS_MAX, Pair, Pairs, Program,
    ProgramStep, StorageEngine,
};
use stele_types::{Command, LogIndex, Op, Result, is_expired};

/// Most pairs that a program reads.
const PAIRS_MAX: usize = 4 * PROGRAM_KEYS_MAX;

impl<E: StorageEngine> Replica<E> {
    /// Proposes the operations of a program, answers it, or holds its keys and looks pairs up. `found` are
    /// the pairs that were read for it.
    pub(super) fn propose_run(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        run: Run,
        found: Option<FoundPairs>,
        proposing: &mut Proposing,
    ) -> Result<Step> {
        let now_s = ctx.now.unix_seconds();
        let live = |pair: Option<Pair>| pair.filter(|pair| !is_expired(pair.expires_at_s, now_s));
        let mut pairs = Pairs::new();
        for (key, found) in found.into_iter().flatten() {
            let Some(pair) = usable(ctx, id, found)? else { return Ok(Step::Settled) };
            pairs.insert(key, live(pair));
        }
        let is_guarded = run.program.may_replace_unread() && {
            let (version, now) = (self.region.epoch.version, ctx.now.monotonic_nanos);
            self.intents.is_on(self.group.term(), version, now)
        };
        loop {
            let keys = match next_step(&run, &pairs, ctx.now.unix_millis, is_guarded) {
                ProgramStep::Done(outcome) => {
                    // bug replica.intents_unguarded: never
                    if run.program.puts_intents() {
                        self.intents.extend(ctx.now.monotonic_nanos);
                    }
                    self.carry_out_outcome(ctx, id, &run, outcome, proposing)?;
                    return Ok(Step::Settled);
                }
                ProgramStep::Read(keys) => keys,
            };
            let before = pairs.len();
            if let Some(reason) = unreadable(&run, before, &keys) {
                ctx.reject(id, Refusal::Invalid(reason));
                return Ok(Step::Settled);
            }
            let program = &*run.program;
            let missing = self.read_cached(&ctx.engine, program, keys, &mut pairs, proposing)?;
            pairs.values_mut().for_each(|pair| *pair = live(pair.take()));
            if !missing.is_empty() {
                let pairs = pairs.into_iter().map(|(key, pair)| (key, Ok(pair))).collect();
                return Ok(self.look_up(ctx, Waiting::Run(id, run), pairs, missing));
            }
        }
    }

    /// Adds the pairs of keys to `pairs`, with one search of the entries that are not applied. Returns the
    /// keys of which only the device has the pairs.
    fn read_cached(
        &self,
        engine: &E,
        program: &dyn Program,
        keys: Vec<Bytes>,
        pairs: &mut Pairs,
        proposing: &mut Proposing,
    ) -> Result<Vec<Bytes>> {
        let mut wanted: BTreeSet<Bytes> = keys.into_iter().collect();
        let Proposing { payloads, search, .. } = proposing;
        let newest = payloads.iter().rev();
        // bug replica.program_ignores_unapplied: skip
        for payload in newest.chain(self.log().newest_first(self.visible().0)) {
            search.take_effects(payload, &mut wanted, pairs);
            if wanted.is_empty() {
                return Ok(Vec::new());
            }
        }
        // bug replica.program_ignores_window: skip
        self.reader.window().take_effects(&mut wanted, pairs, search)?;
        let view = engine.view()?;
        let mut missing = Vec::new();
        for key in wanted {
            // The lookup repeats a read that fails here, and records damage.
            let found = match program.reads_value(&key) {
                true => view.get_cached(&key),
                false => without_value(&view, &key),
            };
            match found {
                Ok(CachedGet::Ready(pair)) => drop(pairs.insert(key, pair)),
                Ok(CachedGet::NeedsIo(_)) | Err(_) => missing.push(key),
            }
        }
        Ok(missing)
    }

    /// Adds the operations of a program to the proposal as one entry, or answers what changes nothing.
    fn carry_out_outcome(
        &mut self,
        ctx: &mut Context<E>,
        id: RequestId,
        run: &Run,
        outcome: Outcome,
        proposing: &mut Proposing,
    ) -> Result<()> {
        let result = Modified::Answered { answer: outcome.answer };
        if outcome.command.is_empty() {
            let last = LogIndex(self.group.last().0 + proposing.payloads.len() as u64);
            self.answer_unchanged(ctx, (id, run.header), last, result);
            return Ok(());
        }
        let command = outcome.command.build().bytes().clone();
        let (bytes, bytes_max) = (command.len() as u64, ctx.options.entry_bytes_max);
        if bytes > bytes_max {
            ctx.reject(id, Refusal::TooLarge { bytes, bytes_max });
            return Ok(());
        }
        if only_deletes(&command) || self.is_admitted(ctx, id, command.len(), proposing)? {
            proposing.push(command, Some(Purpose::Modify(id, result)));
        }
        Ok(())
    }
}

/// Returns the pair of a key with an empty value.
fn without_value(view: &impl EngineView, key: &Bytes) -> Result<CachedGet> {
    Ok(match view.get_meta_cached(key)? {
        Cached::Ready(meta) => CachedGet::Ready(meta.map(|meta| Pair {
            key: key.clone(),
            value: Bytes::new(),
            expires_at_s: meta.expires_at_s,
        })),
        Cached::NeedsIo => CachedGet::needs_io(key),
    })
}

/// Decides a program, or names the pairs that it needs. With `is_guarded` it has those of all its keys first.
fn next_step(run: &Run, pairs: &Pairs, now_ms: u64, is_guarded: bool) -> ProgramStep {
    if is_guarded {
        let keys = run.program.keys().iter();
        let unread: Vec<Bytes> = keys.filter(|key| !pairs.contains_key(*key)).cloned().collect();
        if !unread.is_empty() {
            return ProgramStep::Read(unread);
        }
    }
    run.program.decide(pairs, now_ms)
}

/// Returns why the next pairs of a program cannot be read.
fn unreadable(run: &Run, read: usize, keys: &[Bytes]) -> Option<String> {
    if run.program.keys().len() > PROGRAM_KEYS_MAX {
        return Some(format!("a change of more than {PROGRAM_KEYS_MAX} keys"));
    }
    let is_over = keys.is_empty() || read + keys.len() > PAIRS_MAX;
    is_over.then(|| format!("a change that reads more than {PAIRS_MAX} pairs"))
}

fn only_deletes(command: &Bytes) -> bool {
    let mut only = true;
    Command::each_op_of(command, |op| only &= !matches!(op, Op::Put { .. }));
    only
}
