//! Read-modify-writes of clients.

use super::values::{Value, end_of, has_known_bytes, is_countable, key_of, part_of, value_of};
use super::{KEYS, Target};
use crate::check::linear::{Act, Change, Op};
use crate::world::{Requester, World};
use stele_replica::{Modification, Modify, NewPair};
use stele_types::ColumnFamily;

/// Bound of what an increment adds.
const BY_MAX: u64 = 1 << 30;

impl World {
    /// Puts if absent, increments, appends, or gets and deletes.
    pub(super) fn modify(&mut self, at: usize, group: usize, key: u8, target: &Target) {
        let drawn = self.clients.modifications.below(8);
        let (key, change) = match drawn {
            0 => return self.compare_and_swap(at, group, key, target, 0),
            1..4 => {
                let by = 1 + self.clients.modifications.below(BY_MAX) as u32;
                (self.countable(group, target).unwrap_or(key), Change::Increment(by))
            }
            4..6 => {
                self.clients.values += 1;
                (key, Change::Append(self.clients.values as u32))
            }
            _ => (key, Change::Take),
        };
        let modification = match change {
            Change::Increment(by) => Modification::Increment { by: by.into() },
            Change::Append(part) => Modification::Append { bytes: part_of(part) },
            Change::Take => Modification::GetAndDelete,
        };
        let act = Act::Modify { key, change, seen: None };
        let requester = self.begin_operation(at, group, target, act);
        self.send_modification((at, group, key), target, requester, modification);
    }

    /// Returns a key of the target's region that a number may be added to, as far as clients know.
    fn countable(&mut self, group: usize, target: &Target) -> Option<u8> {
        let history = &self.clients.histories[group];
        let latest = |key: u8| history.iter().rev().find_map(|op| op.act.known(key));
        let is_here = |key: &u8| target.region.range.contains(&key_of(group, *key));
        let is_usable = |key: &u8| latest(*key).is_none_or(is_countable);
        let keys: Vec<u8> = (0..KEYS).filter(is_here).filter(is_usable).collect();
        let at = self.clients.modifications.below(keys.len().max(1) as u64) as usize;
        keys.get(at).copied()
    }

    pub(super) fn cas(&mut self, at: usize, group: usize, key: u8, target: &Target) {
        let expected = self.guess(group, key);
        self.compare_and_swap(at, group, key, target, expected);
    }

    fn compare_and_swap(
        &mut self,
        at: usize,
        group: usize,
        key: u8,
        target: &Target,
        expected: Value,
    ) {
        let bytes_max = self.clients.value_bytes_max;
        let deletes = self.clients.prng.below(6) == 0;
        let (new, change) = match deletes {
            true => (0, NewPair::Delete),
            false => {
                self.clients.values += 1;
                let value = value_of(self.clients.values, bytes_max);
                let expires_at_s = end_of(self.clients.values);
                (self.clients.values, NewPair::Put { value, expires_at_s })
            }
        };
        let requester =
            self.begin_operation(at, group, target, Act::Cas { key, expected, new, seen: None });
        let expected = (expected > 0).then(|| value_of(expected, bytes_max));
        let change = Modification::Compare { expected, new: change };
        self.send_modification((at, group, key), target, requester, change);
    }

    fn send_modification(
        &mut self,
        (at, group, key): (usize, usize, u8),
        target: &Target,
        requester: Requester,
        change: Modification,
    ) {
        let name = ColumnFamily::Default.engine_key(&key_of(group, key));
        let header = target.header;
        let modify = Modify { header, key: name, change, session: None };
        if self.draws_session(target) {
            return self.send_in_session((at, key), target, requester, modify);
        }
        self.request(target.slot, requester, modify);
    }

    /// Returns a value that the key may hold.
    fn guess(&mut self, group: usize, key: u8) -> Value {
        let known = |op: &Op| op.act.known(key).filter(|value| has_known_bytes(*value));
        let latest: Vec<Value> =
            self.clients.histories[group].iter().rev().filter_map(known).take(2).collect();
        let at = self.clients.prng.below(2) as usize;
        latest.get(at).or(latest.first()).copied().unwrap_or(0)
    }
}
