//! One attempt of a transaction over several regions: where its names lie, and what it has read.

use super::changes::{Blocked, Executed, KeyChange};
use super::coordinator::{Commands, TransactionFailure};
use super::layout::TransactionId;
use crate::key;
use crate::program::{Run, Watched, run};
use crate::reply::Reply;
use crate::state::{Members, Needs};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use stele_storage::Pairs;
use stele_types::{CommandBuilder, RegionId};

/// What an attempt has read, and where it writes.
#[derive(Debug)]
pub(super) struct Attempt {
    pub transaction: TransactionId,
    pub record_key: Bytes,
    /// Region of the record.
    pub home: RegionId,
    /// Engine keys of headers by region.
    pub groups: BTreeMap<RegionId, BTreeSet<Bytes>>,
    regions: BTreeMap<Bytes, RegionId>,
    seed: u64,
    pairs: Pairs,
    members: Members,
    now_ms: u64,
}

/// What an attempt does next.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It needs these pairs.
    Reads(Needs),
    /// A watched name has changed, so that nothing is changed.
    WatchedChanged,
    /// It writes.
    Writes(Writes),
    /// It fails.
    Fails(TransactionFailure),
}

/// What an attempt writes.
#[derive(Debug)]
pub(super) struct Writes {
    /// Encoded replies.
    pub replies: Bytes,
    /// Changes in the regions without the record.
    pub intents: BTreeMap<RegionId, Vec<KeyChange>>,
    /// Change numbers of the names in the region of the record.
    pub expected: Vec<(Bytes, Option<u64>)>,
    /// Operations in this region.
    pub operations: CommandBuilder,
}

impl Attempt {
    /// Creates the attempt. The record lies beside the first name. `None` without names.
    pub(super) fn new(names: &[Bytes], regions: &[RegionId], numbers: [u64; 3]) -> Option<Self> {
        let [high, low, seed] = numbers;
        let transaction = TransactionId(u128::from(high) << 64 | u128::from(low));
        let regions: BTreeMap<Bytes, RegionId> =
            names.iter().cloned().zip(regions.iter().copied()).collect();
        let mut groups: BTreeMap<RegionId, BTreeSet<Bytes>> = BTreeMap::new();
        for (name, region) in &regions {
            groups.entry(*region).or_default().insert(name.clone());
        }
        let (first, home) = regions.first_key_value().map(|(name, region)| (name, *region))?;
        Some(Self {
            transaction,
            record_key: key::record_key(first, transaction.0),
            home,
            groups,
            regions,
            seed,
            pairs: Pairs::new(),
            members: Members::new(),
            now_ms: 0,
        })
    }

    /// Adds pairs that were read. What was read before stays: the change numbers of the headers that were read
    /// first prove that the members are theirs.
    pub(super) fn add_pairs(&mut self, pairs: Pairs, now_ms: u64) {
        for (key, pair) in pairs {
            self.pairs.entry(key).or_insert(pair);
        }
        self.now_ms = self.now_ms.max(now_ms);
    }

    pub(super) fn add_members(&mut self, members: Members) {
        self.members.extend(members);
    }

    /// Returns the names of each region of which a header was not read.
    pub(super) fn unread(&self) -> Vec<BTreeSet<Bytes>> {
        let is_unread = |name: &&Bytes| !self.pairs.contains_key(*name);
        let unread = |names: &BTreeSet<Bytes>| names.iter().filter(is_unread).cloned().collect();
        self.groups
            .values()
            .map(unread)
            .filter(|names: &BTreeSet<Bytes>| !names.is_empty())
            .collect()
    }

    /// Returns the region that has a pair of a name.
    pub(super) fn region_of(&self, engine_key: &[u8]) -> Option<RegionId> {
        let named = key::decode(engine_key)?;
        self.regions.get(&key::header_key(named.database, &named.name)).copied()
    }

    /// Returns the names of other regions than that of the record.
    pub(super) fn distant(&self) -> impl Iterator<Item = &Bytes> {
        self.groups.iter().filter(|(region, _)| **region != self.home).flat_map(|(_, names)| names)
    }

    /// Executes the commands on what was read.
    pub(super) fn execute(&self, commands: &Commands) -> Verdict {
        match self.has_changed(&commands.watched) {
            Ok(false) => {}
            Ok(true) => return Verdict::WatchedChanged,
            Err(failure) => return Verdict::Fails(failure),
        }
        let (seed, now_ms) = (self.seed, self.now_ms);
        let done = run(&commands.requests, &self.pairs, &self.members, seed, now_ms);
        let (command, replies) = match done {
            Run::Needs(needs) => return Verdict::Reads(needs),
            Run::Done { command, replies } => (command, replies),
        };
        let (pairs, members, command) = (&self.pairs, &self.members, &command);
        let executed = Executed { command, pairs, members, seed: !seed, now_ms };
        match self.writes(commands, executed, &replies) {
            Ok(writes) => Verdict::Writes(writes),
            Err(Blocked::Needs(members)) => Verdict::Reads(Needs { members, ..Needs::default() }),
            Err(Blocked::TooManyMembers { kind, count }) => {
                Verdict::Fails(TransactionFailure::TooManyMembers { kind, count })
            }
            Err(Blocked::Damaged(text)) => Verdict::Fails(TransactionFailure::Invalid(text)),
        }
    }

    fn has_changed(&self, watched: &[Watched]) -> Result<bool, TransactionFailure> {
        for watched in watched {
            let pair = self.pairs.get(&watched.header_key).and_then(Option::as_ref);
            let now = Watched::now(watched.header_key.clone(), pair, self.now_ms);
            let now = now.map_err(|damage| TransactionFailure::Invalid(damage.to_string()))?;
            if now != *watched {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn writes(
        &self,
        commands: &Commands,
        executed: Executed<'_>,
        replies: &[Reply],
    ) -> Result<Writes, Blocked> {
        let distant: Vec<Bytes> = self.distant().cloned().collect();
        let mut intents: BTreeMap<RegionId, Vec<KeyChange>> = BTreeMap::new();
        for change in executed.changes(&distant)? {
            if let Some(region) = self.regions.get(&change.header_key) {
                intents.entry(*region).or_default().push(change);
            }
        }
        let near = self.groups.get(&self.home).cloned().unwrap_or_default();
        let expected = near.iter().map(|name| Ok((name.clone(), executed.change_of(name)?)));
        Ok(Writes {
            replies: commands.encode(replies),
            intents,
            expected: expected.collect::<Result<_, Blocked>>()?,
            operations: executed.operations(&near)?,
        })
    }
}
