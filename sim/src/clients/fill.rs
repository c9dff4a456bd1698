//! Many small keys, each put once or again with the same value and never deleted: enough for
//! blocks, filters and merges in an index. Acknowledged puts stay permanently.

use super::values::value_of;
use super::{Act, World};
use bytes::Bytes;
use stele_raftstore::{Input, Write};
use stele_storage::{EngineView, StateMachine};
use stele_types::{ColumnFamily, CommandBuilder};

/// Number of keys.
const FILLS: u64 = 1_500;
/// Keys of one put.
const BATCH: u64 = 40;
/// Bound of a value's length after its 8-digit number, exclusive.
const BYTES_MAX: u64 = 120;

/// Returns the user key of a number. The keys lie on both sides of the groups.
pub fn fill_key(number: u32) -> Bytes {
    Bytes::from(match number % 2 {
        0 => format!("f{:05}", number.wrapping_mul(7919) % 100_000),
        _ => format!("h/{number:04}/with-a-longer-name"),
    })
}

impl World {
    pub(super) fn fill(&mut self, at: usize) {
        let serving = self.serving();
        let first = self.clients.prng.below(serving.len().max(1) as u64) as usize;
        let number = self.clients.prng.below(FILLS) as u32;
        let target =
            serving.get(first).and_then(|first| self.target_of(*first, false, &fill_key(number)));
        let Some(target) = target else { return self.pause_client(at) };
        let mut command = CommandBuilder::new();
        let mut fills = Vec::new();
        for number in number..number + BATCH as u32 {
            let key = fill_key(number);
            if !target.region.range.contains(&key) {
                continue;
            }
            let name = ColumnFamily::Default.engine_key(&key);
            if let Err(error) = command.put(&name, &value_of(number, BYTES_MAX), 0) {
                return self.fail(format!("a put does not fit a command: {error}"));
            }
            fills.push(number);
        }
        let requester = self.begin_operation(at, 0, &target, Act::Write(Vec::new()));
        if let Some(pending) = &mut self.clients.list[at].pending {
            pending.fills = fills;
        }
        let id = self.register(target.slot, requester);
        let command = command.build().bytes().clone();
        let write = Write { id, header: target.header, command, frees: false };
        self.push(target.slot, Input::Write(write));
    }

    /// Checks that every replica has all acknowledged puts.
    pub(crate) fn check_filled(&mut self) {
        let numbers: Vec<u32> = self.clients.filled.iter().copied().collect();
        for slot in self.serving() {
            let excused = self.slots.get(&slot).is_none_or(|it| it.is_damaged || it.is_troubled);
            let view = self.engine(slot).and_then(|engine| engine.view().ok());
            let Some(view) = view.filter(|_| !excused) else { continue };
            for number in &numbers {
                let key = fill_key(*number);
                if self.find(slot, &key).is_none() {
                    continue;
                }
                let found = view.get(&ColumnFamily::Default.engine_key(&key));
                let found = found.map(|pair| pair.map(|pair| pair.value));
                if !matches!(&found, Ok(Some(value)) if *value == value_of(*number, BYTES_MAX)) {
                    let found = found.map(|value| value.is_some());
                    return self.fail(format!("store {slot} lost {key:?}, found: {found:?}"));
                }
            }
        }
    }
}
