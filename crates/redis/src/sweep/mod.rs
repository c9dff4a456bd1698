//! Sweep: the walk over the pairs of a region that finds what may be deleted.
//!
//! The engine drops expired pairs an hour late, and only those with an expiry of their own. So the leader of a
//! region walks its Redis keys and proposes deletes:
//!
//! 1. The header of a name has expired: its pair is deleted.
//! 2. Members are *dead* if no live header of their name has their stamp. Few are deleted one by one, many by
//!    one delete of the range of their stamp.
//! 3. The record of a transaction over regions is pending since more than an hour: it is deleted.
//!
//! The walk reads a view, which may be old and of any replica. It only proposes: a [`SweepProgram`] decides on the
//! headers as they are after the whole log.
//!
//! Cost: one pass reads the keys of all headers and of at most a page of the members of each live stamp: it
//! seeks past the others. It reads the headers of names that have members, records, and no other value.
//!
//! Invariant: a view never has members of a stamp that a header will have only later, so members without a header
//! are dead: the entry that writes the first members of a stamp writes its header too, and an entry takes effect in
//! a view as a whole. A restore, which writes pairs one by one, writes headers before members.
//! Tests: `a_stamp_that_no_header_has_never_returns`, `members_of_redis_keys_are_restored_after_all_headers`.

mod program;
mod round;

pub use program::{SweepProgram, SweptCounts};
pub use round::{FoundSweep, SweepRound, SweptRegion};

use crate::header::Header;
use crate::key::{KeyPart, decode, divide, header_of, members_prefix};
use crate::transaction::is_abandoned;
use bytes::Bytes;
use program::{DeadMembers, Found, SweptName};
use std::ops::ControlFlow;
use stele_storage::{EngineView, PROGRAM_KEYS_MAX, Pair, ScanOptions};
use stele_types::{KeyRange, Result, is_expired, key_after};

/// Keys that are read together.
const PAGE_PAIRS: usize = 256;
/// Dead members of a stamp that are deleted one by one. A delete of a range costs each later scan more.
const FEW_MEMBERS_MAX: usize = 64;
/// Operations of a program at which a walk ends.
const OPS_MAX: usize = 2 * PROGRAM_KEYS_MAX;
/// Bytes of keys of a program at which a walk ends.
const BYTES_MAX: usize = 256 << 10;

/// Result of a walk.
#[derive(Debug)]
pub struct Sweep {
    /// What to propose to the leader of the region; `None` if there is nothing to delete.
    pub program: Option<SweepProgram>,
    /// Engine key at which the next walk begins; `None` at the end of the range.
    pub next: Option<Bytes>,
    /// Number of pairs that were read.
    pub pairs: usize,
}

/// Walks over a range of engine keys of one region until it has found enough for a program or has read about
/// `pairs_max` pairs. The range has each of its names with all pairs, or begins at a pair of a name.
///
/// Headers have expired if their pair did until `expired_until_s`, in Unix seconds: neither later than the
/// clock of this node nor than the cluster's time; 0 if one is unknown.
pub fn sweep(
    view: &impl EngineView,
    range: KeyRange,
    expired_until_s: u64,
    pairs_max: usize,
) -> Result<Sweep> {
    let mut walk =
        Walk { view, expired_until_s, found: Vec::new(), current: None, ops: 0, bytes: 0 };
    let mut options = ScanOptions::new(range, PAGE_PAIRS.min(pairs_max).max(1));
    options.keys_only = true;
    let mut pairs = 0;
    let next = loop {
        if options.range.is_empty() {
            break None;
        }
        let page = view.scan(&options)?;
        pairs += page.len();
        let Some(last) = page.last().map(|pair| pair.key.clone()) else { break None };
        let full = page.into_iter().try_for_each(|pair| walk.take(pair));
        if let ControlFlow::Break(next) = full {
            break Some(next);
        }
        options.range.start = walk.after(&last);
        if pairs >= pairs_max {
            break Some(options.range.start);
        }
    };
    walk.close();
    let program = SweepProgram::new(walk.found);
    Ok(Sweep { program, next, pairs })
}

struct Walk<'a, V> {
    view: &'a V,
    expired_until_s: u64,
    found: Vec<Found>,
    current: Option<Current>,
    ops: usize,
    bytes: usize,
}

/// Name of the last pair: one that has expired or has members.
struct Current {
    /// Bytes with which its engine keys begin.
    name: Bytes,
    header_key: Bytes,
    is_expired: bool,
    /// `None` before the first member.
    kept: Option<Kept>,
    dead: Vec<DeadMembers>,
}

/// Stamps of which the members are not dead.
#[derive(Debug)]
enum Kept {
    /// The header cannot be read.
    All,
    Stamps(Vec<u64>),
}

impl Kept {
    fn has(&self, stamp: u64) -> bool {
        match self {
            Self::All => true,
            Self::Stamps(stamps) => stamps.contains(&stamp),
        }
    }
}

impl<V: EngineView> Walk<'_, V> {
    /// Takes the next pair, or breaks with its key if the program is full.
    fn take(&mut self, pair: Pair) -> ControlFlow<Bytes> {
        let Some(divided) = divide(&pair.key) else {
            self.close();
            return self.take_record(pair.key);
        };
        if self.is_full() {
            return ControlFlow::Break(pair.key);
        }
        if self.current.as_ref().is_none_or(|current| current.name != divided.name) {
            self.close();
            let is_expired = is_expired(pair.expires_at_s, self.expired_until_s);
            if divided.stamp.is_none() && !is_expired {
                // The first member, if there is one, asks for it.
                return ControlFlow::Continue(());
            }
            if self.found.len() >= PROGRAM_KEYS_MAX {
                return ControlFlow::Break(pair.key);
            }
            self.open(divided.name, &pair.key, divided.stamp.is_none());
        }
        if let Some(stamp) = divided.stamp
            && let Some(mut current) = self.current.take()
        {
            self.take_member(&mut current, stamp, pair.key);
            self.current = Some(current);
        }
        ControlFlow::Continue(())
    }

    fn is_full(&self) -> bool {
        self.ops >= OPS_MAX || self.bytes >= BYTES_MAX
    }

    /// Takes a key that is not of a name: the record of a transaction, or one of a later build.
    fn take_record(&mut self, key: Bytes) -> ControlFlow<Bytes> {
        let is_record =
            || matches!(decode(&key), Some(key) if matches!(key.part, KeyPart::Record { .. }));
        // What cannot be read stays.
        let pair = || self.view.get(&key).ok().flatten();
        let until_ms = self.expired_until_s.saturating_mul(1000);
        if !is_record() || !pair().is_some_and(|pair| is_abandoned(&pair.value, until_ms)) {
            return ControlFlow::Continue(());
        }
        if self.is_full() || self.found.len() >= PROGRAM_KEYS_MAX {
            return ControlFlow::Break(key);
        }
        self.ops += 1;
        self.bytes += key.len();
        self.found.push(Found::Record(key));
        ControlFlow::Continue(())
    }

    /// Begins a name, at its expired header or at a member.
    fn open(&mut self, name: &[u8], key: &Bytes, is_expired: bool) {
        if is_expired {
            self.ops += 1;
            self.bytes += key.len();
        }
        self.current = Some(Current {
            name: key.slice_ref(name),
            header_key: header_of(name),
            is_expired,
            kept: None,
            dead: Vec::new(),
        });
    }

    fn take_member(&mut self, current: &mut Current, stamp: u64, member_key: Bytes) {
        let kept = current.kept.take().unwrap_or_else(|| self.kept_of(current));
        let is_kept = current.kept.insert(kept).has(stamp);
        // bug redis.sweep_finds_live_members: let is_kept = false;
        if is_kept {
            return;
        }
        if current.dead.last().is_none_or(|dead| dead.stamp != stamp) {
            current.dead.push(DeadMembers { stamp, few: Some(Vec::new()) });
        }
        let Some(dead) = current.dead.last_mut() else { return };
        match &mut dead.few {
            Some(keys) if keys.len() < FEW_MEMBERS_MAX => {
                self.ops += 1;
                self.bytes += member_key.len();
                keys.push(member_key);
            }
            few => *few = None,
        }
    }

    /// Reads the header of a name that has members.
    fn kept_of(&self, current: &mut Current) -> Kept {
        if current.is_expired {
            return Kept::Stamps(Vec::new());
        }
        let Ok(header) = self.view.get(&current.header_key) else { return Kept::All };
        let Some(pair) = header else { return Kept::Stamps(Vec::new()) };
        if is_expired(pair.expires_at_s, self.expired_until_s) {
            current.is_expired = true;
            return Kept::Stamps(Vec::new());
        }
        match Header::decode(&pair.value) {
            Ok((header, _)) => Kept::Stamps(header.stamps().collect()),
            Err(_) => Kept::All,
        }
    }

    /// Returns where the walk goes on after a page that ends with this key: after all members of a stamp that
    /// is kept, or is deleted as a range.
    fn after(&self, last: &Bytes) -> Bytes {
        let current = self.current.as_ref();
        let stamp = divide(last).and_then(|divided| divided.stamp);
        let (Some(current), Some(stamp)) = (current, stamp) else { return key_after(last) };
        let is_whole = |dead: &DeadMembers| dead.stamp == stamp && dead.few.is_none();
        match &current.kept {
            Some(Kept::All) => KeyRange::prefix(&current.name).end,
            Some(kept) if kept.has(stamp) || current.dead.last().is_some_and(is_whole) => {
                KeyRange::prefix(&members_prefix(&current.header_key, stamp)).end
            }
            _ => key_after(last),
        }
    }

    /// Ends the current name.
    fn close(&mut self) {
        let Some(current) = self.current.take() else { return };
        if current.is_expired || !current.dead.is_empty() {
            let Current { header_key, is_expired, dead, .. } = current;
            self.found.push(Found::Name(SweptName { header_key, is_expired, dead }));
        }
    }
}
