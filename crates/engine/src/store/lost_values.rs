//! What this store refers to and can't read, until another replica's copy is in its place.

use super::{Replay, Shared};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use stele_storage::LostValue;
use stele_types::{Error, Locator, Result, ValueRef, mutant};

/// Most bytes of keys that are remembered as lost; what is beyond is found again later.
const KEYS_BYTES_MAX: usize = 1 << 20;
/// Most bytes of copies that wait to be written; one always may.
const COPIES_BYTES_MAX: usize = 8 << 20;

/// Lost values looked at again in one slice of maintenance.
const LOOKS_MAX: usize = 64;

/// Figures of one store since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairStats {
    /// Values that can't be read now, as far as it was noticed.
    pub lost: u64,
    /// Values that were found to be unreadable.
    pub found: u64,
    /// Of those, replaced by another replica's copy.
    pub repaired: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LostValues {
    /// A store without replicas has nobody to ask.
    has_replicas: bool,
    state: Mutex<State>,
    /// Of the state's values, for who only wants to know whether there are any.
    count: AtomicUsize,
    found: AtomicU64,
    repaired: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    values: BTreeMap<Bytes, Lost>,
    keys_bytes: usize,
    copies_bytes: usize,
    /// The last one that was asked for.
    asked: Bytes,
    /// The last one that was looked at again.
    looked_at: Bytes,
}

#[derive(Debug)]
struct Lost {
    at: Locator,
    /// It was read once more, in vain.
    is_confirmed: bool,
    copy: Option<Bytes>,
}

impl State {
    /// All that come after a key, then the others: what nobody has must not keep the rest waiting.
    fn after(&self, key: &Bytes) -> impl Iterator<Item = (&Bytes, &Lost)> {
        let after = self.values.range::<Bytes, _>((Bound::Excluded(key), Bound::Unbounded));
        after.chain(self.values.range::<Bytes, _>((Bound::Unbounded, Bound::Included(key))))
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(lost) = self.values.remove(key) {
            self.keys_bytes -= key.len();
            self.copies_bytes -= lost.copy.map_or(0, |copy| copy.len());
        }
    }
}

impl LostValues {
    pub fn new(replay: Replay) -> Self {
        Self {
            has_replicas: replay == Replay::Committed,
            state: Mutex::default(),
            count: AtomicUsize::new(0),
            found: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
        }
    }

    /// The value of `key` at this place could not be read.
    pub fn note(&self, key: &[u8], at: &Locator, error: &Error) {
        let concerns = error.is_damage() || matches!(error, Error::Io { .. });
        if !self.has_replicas || !concerns {
            return;
        }
        let mut state = self.state.lock();
        if state.values.get(key).is_some_and(|lost| lost.at == *at) {
            return;
        }
        state.remove(key);
        if state.keys_bytes + key.len() <= KEYS_BYTES_MAX {
            let lost = Lost { at: *at, is_confirmed: false, copy: None };
            state.values.insert(Bytes::copy_from_slice(key), lost);
            state.keys_bytes += key.len();
            self.found.fetch_add(1, Ordering::Relaxed);
        }
        self.count.store(state.values.len(), Ordering::Release);
    }

    pub fn has_lost(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// The next ones in the order of keys, round and round.
    pub fn lost_values(&self, count_max: usize) -> Vec<LostValue> {
        let mut state = self.state.lock();
        let wanted = |(_, lost): &(&Bytes, &Lost)| lost.is_confirmed && lost.copy.is_none();
        let next: Vec<LostValue> = state
            .after(&state.asked)
            .filter(wanted)
            .take(count_max)
            .map(|(key, lost)| LostValue {
                key: key.clone(),
                length: lost.at.length,
                crc: lost.at.crc,
            })
            .collect();
        if let Some(last) = next.last() {
            state.asked = last.key.clone();
        }
        next
    }

    /// Takes a copy. Rule: only bytes of the length and checksum that the index names are the value;
    /// whoever sent others has another version, or is damaged himself.
    pub fn repair_value(&self, key: &Bytes, value: Bytes) {
        let mut state = self.state.lock();
        let room = state.copies_bytes == 0 || state.copies_bytes + value.len() <= COPIES_BYTES_MAX;
        let Some(lost) = state.values.get_mut(key).filter(|lost| lost.copy.is_none() && room)
        else {
            return;
        };
        if lost.at.check(&value).is_err() && !mutant::active("engine.mend_unchecked") {
            return;
        }
        let bytes = value.len();
        lost.copy = Some(value);
        state.copies_bytes += bytes;
    }

    /// Looks at the next lost values again: forgets what can be read after all, and what nothing
    /// refers to any more.
    pub fn confirm(&self, shared: &Shared) -> Result<()> {
        let known = |(key, lost): (&Bytes, &Lost)| (key.clone(), lost.at, lost.is_confirmed);
        let noted: Vec<_> = {
            let mut state = self.state.lock();
            let noted: Vec<_> = state.after(&state.looked_at).take(LOOKS_MAX).map(known).collect();
            if let Some((last, ..)) = noted.last() {
                state.looked_at = last.clone();
            }
            noted
        };
        for (key, at, is_confirmed) in noted {
            let is_current = is_at(shared, &key, &at)? || mutant::active("engine.mend_over_newer");
            let is_lost = is_current && (is_confirmed || shared.log.check(&at).is_err());
            let mut state = self.state.lock();
            match state.values.get_mut(&key).filter(|lost| lost.at == at) {
                Some(lost) if is_lost => lost.is_confirmed = true,
                Some(_) => state.remove(&key),
                None => {}
            }
            self.count.store(state.values.len(), Ordering::Release);
        }
        Ok(())
    }

    /// Lost values of which a copy came.
    pub fn copies(&self) -> Vec<(Bytes, Locator, Bytes)> {
        let state = self.state.lock();
        let copied =
            |(key, lost): (&Bytes, &Lost)| Some((key.clone(), lost.at, lost.copy.clone()?));
        state.values.iter().filter_map(copied).collect()
    }

    /// The index refers to readable copies of these.
    pub fn note_mended(&self, keys: &[Bytes]) {
        let mut state = self.state.lock();
        keys.iter().for_each(|key| state.remove(key));
        self.repaired.fetch_add(keys.len() as u64, Ordering::Relaxed);
        self.count.store(state.values.len(), Ordering::Release);
    }

    pub fn stats(&self) -> RepairStats {
        RepairStats {
            lost: self.count.load(Ordering::Acquire) as u64,
            found: self.found.load(Ordering::Relaxed),
            repaired: self.repaired.load(Ordering::Relaxed),
        }
    }
}

/// Whether the newest value of `key` is the one at this place. An index that can't be read says so.
pub(super) fn is_at(shared: &Shared, key: &[u8], at: &Locator) -> Result<bool> {
    let found = shared.index.get(key)?;
    Ok(matches!(
        found,
        Some(stele_index::Found::Value { value: ValueRef::At(now), .. }) if now == *at
    ))
}
