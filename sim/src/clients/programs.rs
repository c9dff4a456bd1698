//! Programs of clients: changes of up to five keys of one region that are decided together. Each key holds
//! the number of programs that wrote it and the id of the last one. A program answers what its keys held.
//! All writers of a key write its member with it, which lies beside the key and is not held: programs read
//! it in a step of its own.

use super::{Pending, Target};
use crate::check::programs::{RunProgram, SeenKey, Stamp};
use crate::plan::{MS, Plan, fork};
use crate::world::World;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_replica::{Done, Modified, Refusal, Reply, Run};
use stele_storage::{Outcome, Pair, Pairs, Program, ProgramStep};
use stele_types::{ColumnFamily, CommandBuilder, Level, Prng, Region, Result, key_after};

/// Number of keys of programs.
const PROGRAM_KEYS: u8 = 12;
/// Most keys of a program, except that of a final one.
const KEYS_MAX: u64 = 5;
/// Bound of what a value has after its stamp, exclusive.
const FILLER_BYTES_MAX: u64 = 400;

/// The programs of all clients.
pub(crate) struct Programs {
    /// Those that took effect or may have.
    pub history: Vec<RunProgram>,
    prng: Prng,
    permille: u64,
    ids: u64,
    groups: u64,
    filler_bytes_max: u64,
    /// Keys that final programs read.
    finals: BTreeSet<u8>,
}

/// Program that reads keys and may write them.
#[derive(Debug)]
pub(super) struct CountingProgram {
    id: u64,
    /// Engine keys of `parts`, in the same order.
    held: Vec<Bytes>,
    parts: Vec<Part>,
    /// Each pair is read in a step of its own.
    is_stepwise: bool,
    filler_bytes_max: u64,
}

#[derive(Debug)]
struct Part {
    key: u8,
    /// Engine key.
    member: Option<Bytes>,
    reads_member: bool,
    change: Option<PartChange>,
}

/// Operations that leave the same pairs.
#[derive(Clone, Copy, Debug)]
enum PartChange {
    Put,
    DeleteAndPut,
    DeleteRangeAndPut,
    /// The first put is of another value.
    PutTwice,
}

impl Programs {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            history: Vec::new(),
            prng: fork(plan.seed, "programs"),
            permille: plan.program_permille,
            ids: 0,
            groups: plan.groups,
            filler_bytes_max: plan.value_bytes_max.min(FILLER_BYTES_MAX),
            finals: BTreeSet::new(),
        }
    }

    /// Returns whether the next operation is one.
    pub(super) fn draws(&mut self) -> bool {
        self.permille > 0 && self.prng.below(1_000) < self.permille
    }

    /// Returns the user key of a key. The keys lie between those of the groups, so that regions split
    /// between them.
    fn user_key(&self, key: u8) -> Bytes {
        let group = u64::from(key) * self.groups / u64::from(PROGRAM_KEYS);
        Bytes::from(format!("g{group:02}/{}/{key:02}", key % super::KEYS))
    }

    /// Returns the user key of a key's member. The keys with odd numbers have none.
    fn member_key(&self, key: u8) -> Option<Bytes> {
        let name = [&self.user_key(key)[..], b"/member"].concat();
        key.is_multiple_of(2).then(|| Bytes::from(name))
    }

    /// Returns the keys that lie in a region, in the order of their names. Of a key with a member that lies
    /// in another region only a final program reads.
    fn parts_in(&self, region: &Region, is_final: bool) -> Vec<Part> {
        let mut parts = Vec::new();
        for key in 0..PROGRAM_KEYS {
            let member = self.member_key(key);
            let has_member = member.as_ref().is_none_or(|it| region.range.contains(it));
            if region.range.contains(&self.user_key(key)) && (has_member || is_final) {
                let member = member.filter(|_| has_member);
                let member = member.map(|it| ColumnFamily::Redis.engine_key(&it));
                let reads_member = is_final && member.is_some();
                parts.push(Part { key, member, reads_member, change: None });
            }
        }
        parts.sort_by_key(|part| self.user_key(part.key));
        parts
    }

    /// Draws what a program does with a key and some others of `parts`.
    fn draw(&mut self, key: u8, mut parts: Vec<Part>) -> CountingProgram {
        let count = 1 + self.prng.below(KEYS_MAX) as usize;
        while parts.len() > count {
            let at = self.prng.below(parts.len() as u64) as usize;
            if parts[at].key != key {
                parts.remove(at);
            }
        }
        let prng = &mut self.prng;
        let (is_read_only, writes_all) = (prng.below(10) < 3, prng.below(7) < 5);
        for part in &mut parts {
            part.reads_member = part.member.is_some() && prng.coin();
            part.change = match prng.below(12) {
                _ if is_read_only => None,
                0..4 if !writes_all => None,
                4 => Some(PartChange::DeleteAndPut),
                5 => Some(PartChange::PutTwice),
                6 => Some(PartChange::DeleteRangeAndPut),
                _ => Some(PartChange::Put),
            };
        }
        let is_stepwise = prng.below(4) == 0;
        self.program(parts, is_stepwise)
    }

    /// Returns an id that no other program or transaction has.
    pub(super) fn next_id(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    fn program(&mut self, parts: Vec<Part>, is_stepwise: bool) -> CountingProgram {
        let id = self.next_id();
        let held = parts.iter().map(|part| self.user_key(part.key));
        let held = held.map(|key| ColumnFamily::Redis.engine_key(&key)).collect();
        let filler_bytes_max = self.filler_bytes_max;
        CountingProgram { id, held, parts, is_stepwise, filler_bytes_max }
    }
}

impl CountingProgram {
    /// Returns the stamp of a pair; `None` for bytes that no program wrote.
    fn stamp_of(&self, pair: Option<&Pair>) -> Option<Stamp> {
        let Some(pair) = pair else { return Some(Stamp::default()) };
        let mut words = std::str::from_utf8(&pair.value).ok()?.split(' ');
        let (count, writer) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let stamp = Stamp { count, writer };
        (self.value_of(stamp) == pair.value[..]).then_some(stamp)
    }

    fn value_of(&self, stamp: Stamp) -> Vec<u8> {
        let Stamp { count, writer } = stamp;
        let mut value = format!("{count} {writer} ").into_bytes();
        let bytes = Prng::new(writer).below(self.filler_bytes_max);
        value.extend((0..bytes).map(|at| b'a' + ((at + writer) % 26) as u8));
        value
    }

    /// Returns its operations and its answer: the stamps that its keys and members had.
    fn carry_out(&self, pairs: &Pairs) -> Result<Outcome> {
        let (mut outcome, mut answer) = (Outcome::default(), String::new());
        for (name, part) in self.held.iter().zip(&self.parts) {
            let mut note = |name: &Bytes| {
                let stamp = self.stamp_of(pairs.get(name).and_then(Option::as_ref));
                answer += &stamp.map_or("? ? ".into(), |it| format!("{} {} ", it.count, it.writer));
                stamp
            };
            let before = note(name);
            if let Some(member) = part.member.as_ref().filter(|_| part.reads_member) {
                note(member);
            }
            if let (Some(before), Some(change)) = (before, part.change) {
                let after = Stamp { count: before.count + 1, writer: self.id };
                self.write((name, part.member.as_ref()), change, after, &mut outcome.command)?;
            }
        }
        outcome.answer = answer.into();
        Ok(outcome)
    }

    fn write(
        &self,
        (name, member): (&Bytes, Option<&Bytes>),
        change: PartChange,
        after: Stamp,
        command: &mut CommandBuilder,
    ) -> Result<()> {
        let names = [name].into_iter().chain(member);
        match change {
            PartChange::Put => {}
            PartChange::DeleteAndPut => {
                names.clone().try_for_each(|name| command.delete(name).map(drop))?;
            }
            PartChange::DeleteRangeAndPut => {
                let end = key_after(member.unwrap_or(name));
                command.delete_range(name, &end)?;
            }
            PartChange::PutTwice => {
                let other = self.value_of(Stamp { count: after.count + 7, ..after });
                names.clone().try_for_each(|name| command.put(name, &other, 0).map(drop))?;
            }
        }
        let value = self.value_of(after);
        names.into_iter().try_for_each(|name| command.put(name, &value, 0).map(drop))
    }

    /// Returns what an answer says of its keys; `None` if it had read bytes that no program wrote.
    fn seen_in(&self, answer: &[u8]) -> Option<Vec<SeenKey>> {
        let text = std::str::from_utf8(answer).ok()?;
        let mut words = text.split_terminator(' ');
        let mut next = || -> Option<Stamp> {
            let (count, writer) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Stamp { count, writer })
        };
        let seen = self.parts.iter().map(|part| {
            let before = next()?;
            let member = if part.reads_member { Some(next()?) } else { None };
            Some(SeenKey { key: part.key, before, member })
        });
        seen.collect()
    }

    fn writes(&self) -> BTreeSet<u8> {
        let written = self.parts.iter().filter(|part| part.change.is_some());
        written.map(|part| part.key).collect()
    }
}

impl Program for CountingProgram {
    fn keys(&self) -> &[Bytes] {
        &self.held
    }

    fn bytes(&self) -> usize {
        self.held.iter().map(Bytes::len).sum()
    }

    fn decide(&self, pairs: &Pairs, _: u64) -> ProgramStep {
        let members = self.parts.iter().filter(|part| part.reads_member);
        let members = members.filter_map(|part| part.member.as_ref());
        let is_missing = |key: &&Bytes| !pairs.contains_key(*key);
        let mut missing: Vec<Bytes> = self.held.iter().filter(is_missing).cloned().collect();
        if missing.is_empty() {
            missing = members.filter(is_missing).cloned().collect();
        }
        if self.is_stepwise {
            missing.truncate(1);
        }
        if !missing.is_empty() {
            return ProgramStep::Read(missing);
        }
        // No command of few small pairs exceeds a limit.
        ProgramStep::Done(self.carry_out(pairs).unwrap_or_default())
    }
}

impl World {
    pub(super) fn run_program(&mut self, at: usize) {
        let programs = &mut self.clients.programs;
        let key = programs.prng.below(u64::from(PROGRAM_KEYS)) as u8;
        let user_key = programs.user_key(key);
        let target = self.target_for(&user_key);
        let target = target.filter(|target| self.may_use(target.slot, Level::REDIS));
        let Some(target) = target else { return self.pause_client(at) };
        let parts = self.clients.programs.parts_in(&target.region, false);
        if !parts.iter().any(|part| part.key == key) {
            return self.pause_client(at);
        }
        let program = self.clients.programs.draw(key, parts);
        self.send_program(at, &target, program, false);
    }

    fn send_program(
        &mut self,
        at: usize,
        target: &Target,
        program: CountingProgram,
        is_final: bool,
    ) {
        let requester = self.begin_operation(at, 0, target, super::Act::Write(Vec::new()));
        let program = Arc::new(program);
        if let Some(pending) = &mut self.clients.list[at].pending {
            (pending.program, pending.is_final) = (Some(program.clone()), is_final);
        }
        self.counts.programs_of_several += u64::from(program.parts.len() > 1);
        self.request(target.slot, requester, Run { header: target.header, program });
    }

    /// Takes the reply to a program.
    pub(super) fn program_replied(
        &mut self,
        pending: &Pending,
        program: &CountingProgram,
        reply: Option<Reply>,
    ) {
        let slot = pending.slot;
        match reply {
            Some(Reply::Done(Done::Modified { result: Modified::Answered { answer }, .. })) => {
                let Some(seen) = program.seen_in(&answer) else {
                    return self
                        .fail(format!("store {slot} has bytes that no program wrote: {answer:?}"));
                };
                if pending.is_final {
                    self.clients.programs.finals.extend(seen.iter().map(|seen| seen.key));
                }
                self.record_program(pending, program, Some(seen));
            }
            None | Some(Reply::Unknown(_)) => self.record_program(pending, program, None),
            Some(Reply::Refused(Refusal::Invalid(reason))) => {
                self.fail(format!("store {slot} refuses {program:?}: {reason}"));
            }
            // It had no effect: a history in which its write is seen has no order.
            Some(Reply::Refused(_) | Reply::Busy(_)) => {}
            Some(other) => self.fail(format!("{program:?} was answered with {other:?}")),
        }
    }

    /// Adds a program to the history, with its answer or with an unknown outcome.
    pub(super) fn record_program(
        &mut self,
        pending: &Pending,
        program: &CountingProgram,
        seen: Option<Vec<SeenKey>>,
    ) {
        let (number, writes) = (self.number(), program.writes());
        let returned = seen.is_some().then_some(number);
        self.counts.ops += u64::from(seen.is_some());
        self.counts.programs += u64::from(seen.is_some());
        if seen.is_none() && writes.is_empty() {
            return;
        }
        self.counts.programs_unknown += u64::from(seen.is_none());
        self.trace.mix(pending.called ^ number.rotate_left(32));
        let seen = seen.unwrap_or_default();
        self.trace.mix(seen.iter().fold(0, |mixed, it| mixed ^ it.before.writer));
        let (id, called, slot) = (program.id, pending.called, pending.slot);
        let run = RunProgram { id, called, returned, slot, writes, seen };
        self.clients.programs.history.push(run);
    }

    /// Reads every key once more, with programs. Returns true if all were read before a time.
    pub(super) fn read_programs(&mut self, until: u64) -> bool {
        self.clients.programs.finals.clear();
        if self.clients.programs.history.is_empty() {
            return true;
        }
        for key in 0..PROGRAM_KEYS {
            while !self.clients.programs.finals.contains(&key) {
                if self.now > until || self.violation.is_some() {
                    return false;
                }
                let user_key = self.clients.programs.user_key(key);
                if self.clients.list[0].pending.is_none()
                    && let Some(target) = self.target_for(&user_key)
                {
                    let parts = self.clients.programs.parts_in(&target.region, true);
                    let program = self.clients.programs.program(parts, false);
                    self.send_program(0, &target, program, true);
                }
                self.run(5 * MS);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;
    use stele_types::Op;

    #[test]
    fn a_program_counts_its_keys_and_their_members_and_answers_what_it_saw() {
        let plan = Plan { program_permille: 1_000, ..Plan::draw(5, Mode::Safety) };
        let mut programs = Programs::new(&plan);
        let part = |key, change| {
            let member = programs.member_key(key);
            let member = member.map(|it| ColumnFamily::Redis.engine_key(&it));
            Part { key, reads_member: member.is_some(), member, change }
        };
        let forms = [PartChange::Put, PartChange::DeleteAndPut, PartChange::PutTwice];
        let parts = |change| vec![part(0, Some(change)), part(1, Some(change)), part(2, None)];
        let parts = forms.into_iter().chain([PartChange::DeleteRangeAndPut]).map(parts);
        let parts: Vec<Vec<Part>> = parts.collect();
        let mut pairs = Pairs::new();
        for (count, parts) in parts.into_iter().enumerate() {
            let program = programs.program(parts, true);
            let mut seen = Pairs::new();
            let outcome = loop {
                match program.decide(&seen, 0) {
                    ProgramStep::Read(keys) => {
                        let read = keys.into_iter();
                        let read =
                            read.map(|key| (key.clone(), pairs.get(&key).cloned().flatten()));
                        seen.extend(read);
                    }
                    ProgramStep::Done(outcome) => break outcome,
                }
            };
            let before = Stamp { count: count as u64, writer: count as u64 };
            let seen = program.seen_in(&outcome.answer).unwrap();
            let row = |key, before, member| SeenKey { key, before, member };
            let none = Stamp::default();
            let expected =
                [row(0, before, Some(before)), row(1, before, None), row(2, none, Some(none))];
            assert_eq!(seen, expected);
            outcome.command.ops().for_each(|op| apply(op, &mut pairs));
        }
    }

    fn apply(op: Op<'_>, pairs: &mut Pairs) {
        match op {
            Op::Put { key, value, expires_at_s, .. } => {
                let (key, value) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
                pairs.insert(key.clone(), Some(Pair { key, value, expires_at_s }));
            }
            Op::Delete { key } => drop(pairs.remove(key)),
            Op::DeleteRange { start, end } => {
                pairs.retain(|key, _| key[..] < *start || key[..] >= *end);
            }
        }
    }
}
