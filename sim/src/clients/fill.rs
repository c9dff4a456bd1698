//! Many small keys, each put once or again with the same value and never deleted: enough for
//! blocks, filters and merges in an index. Acknowledged puts stay permanently.

use super::values::value_of;
use super::{Act, Pending, World};
use crate::world::{Requester, Slot};
use bytes::Bytes;
use stele_replica::{BatchOp, BatchWrite};
use stele_replica::{Header, Reply, Write};
use stele_storage::{EngineView, StateMachine};
use stele_types::ColumnFamily;

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

#[derive(Debug)]
pub(super) struct Fill {
    pub numbers: Vec<u32>,
    header: Header,
    batch: BatchWrite,
    /// An entry was written.
    is_begun: bool,
}

impl World {
    pub(super) fn fill(&mut self, at: usize) {
        let serving = self.serving();
        let first = self.clients.prng.below(serving.len().max(1) as u64) as usize;
        let number = self.clients.prng.below(FILLS) as u32;
        let target =
            serving.get(first).and_then(|first| self.target_of(*first, false, &fill_key(number)));
        let Some(target) = target else { return self.pause_client(at) };
        let (mut ops, mut fills) = (Vec::new(), Vec::new());
        for number in number..number + BATCH as u32 {
            let key = fill_key(number);
            if !target.region.range.contains(&key) {
                continue;
            }
            let key = ColumnFamily::Default.engine_key(&key);
            ops.push(BatchOp::Put {
                key,
                value: value_of(number.into(), BYTES_MAX),
                expires_at_s: 0,
            });
            fills.push(number);
        }
        if ops.is_empty() {
            return self.pause_client(at);
        }
        self.begin_operation(at, 0, &target, Act::Write(Vec::new()));
        let batch = BatchWrite::new(ops, self.plan.batch_entry_bytes_max);
        let fill = Fill { numbers: fills, header: target.header, batch, is_begun: false };
        self.propose_fill(at, target.slot, fill);
    }

    fn propose_fill(&mut self, at: usize, slot: u64, mut fill: Fill) {
        let (entry, header) = (fill.batch.next_entry(), fill.header);
        let Some(pending) = &mut self.clients.list[at].pending else { return };
        pending.fill = Some(fill);
        let command = match entry {
            Ok(command) => command,
            Err(error) => return self.fail(format!("a put does not fit a command: {error}")),
        };
        let requester = Requester::Client { at, step: self.clients.list[at].step };
        let write = Write { header, command, only_deletes: false };
        self.request(slot, requester, write);
    }

    /// Takes the reply to an entry of a batch. Returns the operation with the reply to the whole;
    /// `None` after it proposed the next entry.
    pub(super) fn fill_replied(
        &mut self,
        at: usize,
        mut pending: Pending,
        reply: Reply,
    ) -> Option<(Pending, Reply)> {
        let Some(mut fill) = pending.fill.take() else { return Some((pending, reply)) };
        let is_begun = fill.is_begun;
        fill.is_begun |= matches!(reply, Reply::Done(_));
        if let Some(reply) = fill.batch.replied(reply) {
            if is_begun && matches!(reply, Reply::Refused(_) | Reply::Busy(_)) {
                let slot = pending.slot;
                self.fail(format!(
                    "store {slot} refuses a batch of which it wrote a part: {reply:?}"
                ));
            }
            pending.fill = Some(fill);
            return Some((pending, reply));
        }
        let slot = pending.slot;
        self.clients.list[at].pending = Some(pending);
        self.propose_fill(at, slot, fill);
        None
    }

    /// Checks that every replica has all acknowledged puts.
    pub(crate) fn check_filled(&mut self) {
        let numbers: Vec<u32> = self.clients.filled.iter().copied().collect();
        for slot in self.serving() {
            let excused = self.slots.get(&slot).is_none_or(Slot::may_fail_reads);
            let view = self.engine(slot).and_then(|engine| engine.view().ok());
            let Some(view) = view.filter(|_| !excused) else { continue };
            for number in &numbers {
                let key = fill_key(*number);
                if self.find(slot, &key).is_none() {
                    continue;
                }
                let found = view.get(&ColumnFamily::Default.engine_key(&key));
                let found = found.map(|pair| pair.map(|pair| pair.value));
                if !matches!(&found, Ok(Some(value)) if *value == value_of((*number).into(), BYTES_MAX))
                {
                    let found = found.map(|value| value.is_some());
                    return self.fail(format!("store {slot} lost {key:?}, found: {found:?}"));
                }
            }
        }
    }
}
