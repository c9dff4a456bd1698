//! Decision of a sweep: deletes, on the headers as they are after the whole log.

use crate::header::Header;
use crate::key::members_prefix;
use crate::transaction::is_abandoned;
use bytes::{BufMut, Bytes, BytesMut};
use stele_storage::{Outcome, Pair, Pairs, Program, ProgramStep};
use stele_types::{CommandBuilder, KeyRange, Result};

/// Name of which something may be deleted.
#[derive(Debug)]
pub(super) struct SweptName {
    pub header_key: Bytes,
    /// Its header had expired in the view.
    pub is_expired: bool,
    /// Members of stamps that no live header had in the view.
    pub dead: Vec<DeadMembers>,
}

#[derive(Debug)]
pub(super) struct DeadMembers {
    pub stamp: u64,
    /// Their engine keys; `None` if they are many.
    pub few: Option<Vec<Bytes>>,
}

/// What a walk has found under one key.
#[derive(Debug)]
pub(super) enum Found {
    Name(SweptName),
    /// Engine key of the record of a transaction that was not decided.
    Record(Bytes),
}

impl Found {
    /// Returns the key on which the program decides.
    fn key(&self) -> &Bytes {
        match self {
            Self::Name(name) => &name.header_key,
            Self::Record(key) => key,
        }
    }

    fn members(&self) -> impl Iterator<Item = &Bytes> {
        let dead = match self {
            Self::Name(name) => &name.dead[..],
            Self::Record(_) => &[],
        };
        dead.iter().flat_map(|dead| dead.few.iter().flatten())
    }

    fn needs_value(&self) -> bool {
        match self {
            Self::Name(name) => !name.dead.is_empty(),
            Self::Record(_) => true,
        }
    }
}

/// Deletes of what a walk has found in one region.
///
/// Invariant: it deletes a header only if the leader finds none that is live, and members of a stamp only if the
/// header that the leader finds does not have the stamp. So neither an old view nor a value that was set
/// meanwhile loses anything.
/// Tests: `a_name_that_was_set_again_after_the_walk_is_not_swept`,
/// `the_sweeper_keeps_the_members_of_every_stamp_of_a_header`.
#[derive(Debug)]
pub struct SweepProgram {
    found: Vec<Found>,
    /// Keys of the headers and records, ascending.
    keys: Vec<Bytes>,
}

/// What a program has deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptCounts {
    /// Expired headers.
    pub keys: u64,
    /// Stamps of which members were deleted; one of which two programs delete members counts twice.
    pub stamps: u64,
    /// Records of transactions that were not decided.
    pub records: u64,
}

impl SweepProgram {
    /// Creates a program of what was found in the order of keys; `None` if there is nothing.
    pub(super) fn new(found: Vec<Found>) -> Option<Self> {
        let keys: Vec<Bytes> = found.iter().map(|found| found.key().clone()).collect();
        (!found.is_empty()).then_some(Self { found, keys })
    }

    fn carry_out(&self, pairs: &Pairs, now_ms: u64) -> Result<Outcome> {
        let (mut command, mut counts) = (CommandBuilder::new(), SweptCounts::default());
        for found in &self.found {
            let header = pairs.get(found.key()).and_then(Option::as_ref);
            let name = match found {
                Found::Name(name) => name,
                Found::Record(key) => {
                    if header.is_some_and(|record| is_abandoned(&record.value, now_ms)) {
                        command.delete(key)?;
                        counts.records += 1;
                    }
                    continue;
                }
            };
            // The leader passes live pairs only.
            let is_absent = header.is_none();
            // bug redis.sweeper_ignores_expiry: let is_absent = true;
            if name.is_expired && is_absent {
                command.delete(&name.header_key)?;
                counts.keys += 1;
            }
            let dead = name.dead.iter().filter(|dead| !may_have(header, dead.stamp));
            for dead in dead {
                delete_members(&mut command, &name.header_key, dead)?;
                counts.stamps += 1;
            }
        }
        Ok(Outcome { command, answer: counts.encode() })
    }
}

/// Returns whether a header may have a stamp.
fn may_have(header: Option<&Pair>, stamp: u64) -> bool {
    // bug redis.sweeper_takes_a_live_stamp: return false;
    let Some(pair) = header else { return false };
    Header::decode(&pair.value).map_or(true, |(header, _)| header.stamps().any(|it| it == stamp))
}

fn delete_members(
    command: &mut CommandBuilder,
    header_key: &Bytes,
    dead: &DeadMembers,
) -> Result<()> {
    match &dead.few {
        Some(keys) => keys.iter().try_for_each(|key| command.delete(key).map(drop)),
        None => {
            let range = KeyRange::prefix(&members_prefix(header_key, dead.stamp));
            command.delete_range(&range.start, &range.end).map(drop)
        }
    }
}

impl Program for SweepProgram {
    fn keys(&self) -> &[Bytes] {
        &self.keys
    }

    fn reads_value(&self, key: &[u8]) -> bool {
        let place = self.keys.binary_search_by(|it| it[..].cmp(key));
        place.ok().and_then(|place| self.found.get(place)).is_none_or(Found::needs_value)
    }

    fn bytes(&self) -> usize {
        let members = self.found.iter().flat_map(Found::members);
        self.keys.iter().chain(members).map(Bytes::len).sum()
    }

    fn decide(&self, pairs: &Pairs, now_ms: u64) -> ProgramStep {
        let is_unread = |key: &&Bytes| !pairs.contains_key(*key);
        let unread: Vec<Bytes> = self.keys.iter().filter(is_unread).cloned().collect();
        if !unread.is_empty() {
            return ProgramStep::Read(unread);
        }
        // A command fails only by the length of a key, and these keys are stored.
        ProgramStep::Done(self.carry_out(pairs, now_ms).unwrap_or_default())
    }
}

impl SweptCounts {
    /// ```text
    /// answer := keys:u64be stamps:u64be records:u64be
    /// ```
    fn encode(self) -> Bytes {
        let mut out = BytesMut::with_capacity(24);
        out.put_u64(self.keys);
        out.put_u64(self.stamps);
        out.put_u64(self.records);
        out.freeze()
    }

    /// Decodes the answer of a program. `None` if its bytes are not one.
    pub fn decode(answer: &[u8]) -> Option<Self> {
        let (keys, rest) = answer.split_first_chunk::<8>()?;
        let (stamps, rest) = rest.split_first_chunk::<8>()?;
        let [keys, stamps] = [keys, stamps].map(|number| u64::from_be_bytes(*number));
        let records = u64::from_be_bytes(rest.try_into().ok()?);
        Some(Self { keys, stamps, records })
    }
}
