//! Gets of many keys: their values are read together, in the order of their places.

use super::Shared;
use super::view::View;
use bytes::Bytes;
use stele_log::{Log, ReadMany, Unchecked};
use stele_storage::{Admit, Admitted, GotAdmitted, Pair, PendingGet};
use stele_types::{Locator, Result, ValueRef};

/// Bytes of keys and values that are admitted and read together.
const PART_BYTES_MAX: u64 = 4 << 20;
/// Shortest value that is read by itself, into memory of its own: a read of it takes as long as that of
/// many short ones.
const LONG_VALUE_BYTES: u32 = 64 << 10;
/// Bytes of long values that are requested from the device before the first of them is read.
const REQUESTED_BYTES_MAX: u64 = 4 << 20;

/// A get of which the value must be read.
struct FoundGet {
    /// Index of its result.
    slot: usize,
    key: Bytes,
    value: ValueRef,
    expires_at_s: u64,
    /// The value was not in memory when its location was found.
    is_missed: bool,
}

impl FoundGet {
    fn bytes(&self) -> u64 {
        self.key.len() as u64 + u64::from(self.value.len())
    }

    /// Returns its position, by which reads are sorted; that of a value in the index is the first.
    fn place(&self) -> u64 {
        match &self.value {
            ValueRef::Inline(_) => 0,
            ValueRef::At(at) => at.lsn().as_u64(),
        }
    }

    fn is_long(&self) -> bool {
        self.value.len() >= LONG_VALUE_BYTES
    }

    fn got(&self, value: Bytes) -> GotAdmitted {
        let (key, expires_at_s) = (self.key.clone(), self.expires_at_s);
        Admitted::Read(Some(Pair { key, value, expires_at_s }))
    }
}

impl View {
    /// Reads many pairs, each with its own result, in the order of `gets`.
    ///
    /// Invariant: no memory is used for values that are not admitted.
    /// Tests: `a_read_of_which_the_memory_is_refused_reads_no_value`,
    /// `short_values_are_admitted_and_read_in_parts_of_bounded_size`.
    pub(super) fn read_pairs(
        &self,
        gets: Vec<PendingGet>,
        admit: Admit<'_>,
    ) -> Vec<Result<GotAdmitted>> {
        let mut results = Vec::with_capacity(gets.len());
        let mut found = Vec::with_capacity(gets.len());
        for (slot, get) in gets.into_iter().enumerate() {
            results.push(match self.find(slot, get) {
                Ok(None) => Ok(Admitted::Read(None)),
                Ok(Some(get)) => {
                    found.push(get);
                    // Until it is read.
                    Ok(Admitted::Refused)
                }
                Err(error) => Err(error),
            });
        }
        found.sort_unstable_by_key(|get| (get.is_long(), get.place()));
        // bug engine.many_gets_in_order_of_places: found.iter_mut().enumerate().for_each(|(slot, get)| get.slot = slot);
        let (short, long) = found.split_at(found.partition_point(|get| !get.is_long()));
        if self.shared().read_short(short, &mut *admit, &mut results) {
            self.shared().read_long(long, admit, &mut results);
        }
        results
    }

    /// Finds the value of a get in the index, unless its location is known.
    ///
    /// Invariant: a get with a known location does not search the index again.
    /// Test: `a_cold_get_searches_the_index_once_and_reads_once`.
    fn find(&self, slot: usize, get: PendingGet) -> Result<Option<FoundGet>> {
        let PendingGet { key, located } = get;
        // bug engine.located_get_searches_again: let located = located.filter(|_| false);
        if let Some((at, expires_at_s)) = located {
            let value = ValueRef::At(at);
            return Ok(Some(FoundGet { slot, key, value, expires_at_s, is_missed: true }));
        }
        let found = self.reference(&key)?;
        Ok(found.map(|(value, expires_at_s)| FoundGet {
            slot,
            key,
            value,
            expires_at_s,
            is_missed: false,
        }))
    }
}

/// Takes the gets off that are read together, with the bytes of their keys and values.
fn first_part<'a>(rest: &mut &'a [FoundGet]) -> (&'a [FoundGet], u64) {
    let (mut count, mut bytes) = (0, 0_u64);
    for get in *rest {
        let with = bytes + get.bytes();
        if count > 0 && with > PART_BYTES_MAX {
            break;
        }
        (count, bytes) = (count + 1, with);
    }
    let (part, after) = rest.split_at(count.min(rest.len()));
    *rest = after;
    (part, bytes)
}

fn set(results: &mut [Result<GotAdmitted>], get: &FoundGet, value: Result<Bytes>) {
    if let Some(result) = results.get_mut(get.slot) {
        *result = value.map(|value| get.got(value));
    }
}

impl Shared {
    /// Reads short values, many at a time. Returns false after a refusal.
    fn read_short(
        &self,
        mut rest: &[FoundGet],
        admit: Admit<'_>,
        results: &mut [Result<GotAdmitted>],
    ) -> bool {
        while !rest.is_empty() {
            let (part, bytes) = first_part(&mut rest);
            let is_admitted = admit(part.len(), bytes);
            // bug engine.get_reads_unadmitted: never
            if !is_admitted {
                return false;
            }
            self.read_part(part, results);
        }
        true
    }

    /// Reads long values, each by itself, while the device works on the next ones.
    fn read_long(&self, long: &[FoundGet], admit: Admit<'_>, results: &mut [Result<GotAdmitted>]) {
        // The first one is read at once.
        let (mut requested, mut requested_bytes) = (1, 0_u64);
        for (number, get) in long.iter().enumerate() {
            let is_admitted = admit(1, get.bytes());
            // bug engine.long_get_reads_unadmitted: never
            if !is_admitted {
                return;
            }
            while requested_bytes < REQUESTED_BYTES_MAX
                && let Some(next) = long.get(requested)
            {
                if let ValueRef::At(at) = &next.value {
                    self.log.will_read(at);
                }
                requested_bytes += next.bytes();
                requested += 1;
            }
            let ValueRef::At(at) = &get.value else { continue };
            let value = match self.values.get(at) {
                Some(value) => Ok(value),
                None if number > 0 => self.read_alone(get, at, |log, at| log.get_requested(at)),
                None => self.read_first(get, at),
            };
            set(results, get, value);
            if number > 0 {
                requested_bytes = requested_bytes.saturating_sub(get.bytes());
            }
        }
    }

    fn read_part(&self, part: &[FoundGet], results: &mut [Result<GotAdmitted>]) {
        let mut missing = Vec::new();
        for get in part {
            match &get.value {
                ValueRef::Inline(value) => set(results, get, Ok(value.clone())),
                ValueRef::At(at) => match self.values.get(at) {
                    Some(value) => set(results, get, Ok(value)),
                    None => missing.push((get, at)),
                },
            }
        }
        if let [(get, at)] = missing.as_slice() {
            return set(results, get, self.read_first(get, at));
        }
        let read = self.read_missing(&missing);
        for ((get, at), read) in missing.into_iter().zip(read) {
            let value = self.log.checked(at, read);
            if let Ok(value) = &value {
                self.values.insert_copy(at, value);
            }
            set(results, get, self.noted(get, at, value));
        }
    }

    /// Reads a value that was not requested from the device before.
    fn read_first(&self, get: &FoundGet, at: &Locator) -> Result<Bytes> {
        self.read_alone(get, at, |log, at| match get.is_missed {
            true => log.get_missed(at),
            false => log.get(at),
        })
    }

    fn read_alone(
        &self,
        get: &FoundGet,
        at: &Locator,
        read: impl FnOnce(&Log, &Locator) -> Result<Bytes>,
    ) -> Result<Bytes> {
        let value = read(&self.log, at);
        if let Ok(value) = &value {
            self.values.insert(at, value);
        }
        self.noted(get, at, value)
    }

    /// Records a value that cannot be read as lost.
    fn noted(&self, get: &FoundGet, at: &Locator, value: Result<Bytes>) -> Result<Bytes> {
        value.inspect_err(|error| self.lost_values.note(&get.key, at, error))
    }

    /// Reads values together; if that fails, each is read again by itself when it is checked.
    ///
    /// Invariant: a value that cannot be read fails its own get only.
    /// Test: `of_many_gets_only_those_of_unreadable_values_fail`.
    fn read_missing(&self, missing: &[(&FoundGet, &Locator)]) -> Vec<Unchecked> {
        let places: Vec<Locator> = missing.iter().map(|(_, at)| **at).collect();
        let read = match missing.iter().all(|(get, _)| get.is_missed) {
            true => self.log.read_many_missed(&places),
            false => self.log.read_many(&places),
        };
        // bug engine.unreadable_value_fails_all_gets: if read.is_err() { return Vec::new(); }
        read.unwrap_or_else(|_| ReadMany::failed(places.len())).into_values()
    }
}
