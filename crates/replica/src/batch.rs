//! A batch of operations on one region: one entry, or several in order when it is larger than an
//! entry may be, or has more operations.

use crate::{Done, Reply, Unknown};
use bytes::Bytes;
use std::collections::VecDeque;
use stele_types::{CommandBuilder, Result};

/// Bytes of an operation in a command beside key and value.
pub const OP_OVERHEAD_BYTES: usize = 32;

/// Most operations of an entry. An entry is applied, and its effects are built, in one go.
const ENTRY_OPS_MAX: usize = 1 << 16;

/// Operation of a batch, with its engine key.
#[derive(Clone, Debug)]
pub enum BatchOp {
    /// Sets a key.
    Put {
        /// Key.
        key: Bytes,
        /// Value.
        value: Bytes,
        /// Expiry in Unix seconds; 0 for none.
        expires_at_s: u64,
    },
    /// Removes a key.
    Delete {
        /// Key.
        key: Bytes,
    },
}

impl BatchOp {
    fn bytes(&self) -> usize {
        let bytes = match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
        };
        bytes + OP_OVERHEAD_BYTES
    }
}

/// Batch under way. Its owner proposes [`BatchWrite::next_entry`], passes the reply to [`BatchWrite::replied`],
/// and goes on until that returns the reply of the whole.
#[derive(Debug)]
pub struct BatchWrite {
    ops: VecDeque<BatchOp>,
    entry_bytes_max: usize,
    /// An entry of the batch was written.
    is_partly_written: bool,
}

impl BatchWrite {
    /// Creates the batch of these operations, in order.
    pub fn new(ops: impl IntoIterator<Item = BatchOp>, entry_bytes_max: usize) -> Self {
        let ops = ops.into_iter().collect();
        Self { ops, entry_bytes_max, is_partly_written: false }
    }

    /// Encodes the next entry, with at least one operation. Fails with `Invalid` on a pair that no
    /// command holds.
    pub fn next_entry(&mut self) -> Result<Bytes> {
        let mut command = CommandBuilder::new();
        let mut count = 0;
        while let Some(op) = self.ops.front() {
            let is_full = count == ENTRY_OPS_MAX;
            // bug replica.entry_of_any_operations: let is_full = false;
            let fits = command.encoded_bytes() + op.bytes() <= self.entry_bytes_max;
            if (is_full || !fits) && !command.is_empty() {
                break;
            }
            count += 1;
            match op {
                BatchOp::Put { key, value, expires_at_s } => {
                    command.put(key, value, *expires_at_s)?;
                }
                BatchOp::Delete { key } => {
                    command.delete(key)?;
                }
            }
            self.ops.pop_front();
        }
        Ok(command.build().bytes().clone())
    }

    /// Takes the reply to the latest entry. Returns the reply to the whole batch; `None` while an
    /// entry is left to propose.
    ///
    /// Invariant: a batch of which an entry was written is never answered as not done.
    /// Test: `a_batch_with_a_written_part_is_unknown_and_one_without_is_what_its_first_entry_is`.
    pub fn replied(&mut self, reply: Reply) -> Option<Reply> {
        let Reply::Done(Done::Written { .. }) = reply else {
            // bug replica.part_as_refused: `self.is_partly_written` is `false`
            return Some(match self.is_partly_written {
                true => Reply::Unknown(Unknown::PartlyExecuted),
                false => reply,
            });
        };
        self.is_partly_written = true;
        self.ops.is_empty().then_some(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Busy, Refusal, Timings};
    use stele_types::{Command, LogIndex, Term};

    fn puts(count: u8, value_bytes: usize) -> Vec<BatchOp> {
        let put = |n: u8| BatchOp::Put {
            key: Bytes::from(vec![b'k', n]),
            value: Bytes::from(vec![n; value_bytes]),
            expires_at_s: 0,
        };
        (0..count).map(put).collect()
    }

    fn written() -> Reply {
        let (index, term, timings) = (LogIndex(7), Term(1), Timings::default());
        Reply::Done(Done::Written { index, term, timings })
    }

    #[test]
    fn a_batch_of_more_small_operations_than_an_entry_may_have_is_several_entries() {
        let deletes = (0..ENTRY_OPS_MAX as u32 + 10)
            .map(|key| BatchOp::Delete { key: Bytes::copy_from_slice(&key.to_be_bytes()) });
        let mut batch = BatchWrite::new(deletes, 96 << 20);
        let counts = [batch.next_entry(), batch.next_entry()].map(|entry| {
            let mut count = 0;
            Command::each_op_of(&entry.unwrap(), |_| count += 1);
            count
        });
        assert_eq!(counts, [ENTRY_OPS_MAX, 10]);
    }

    #[test]
    fn a_batch_is_cut_into_entries_in_order() {
        let mut batch = BatchWrite::new(puts(10, 100), 400);
        let mut entries = Vec::new();
        let reply = loop {
            let entry = Command::parse(batch.next_entry().unwrap()).unwrap();
            entries.push(entry.ops().count());
            if let Some(reply) = batch.replied(written()) {
                break reply;
            }
        };
        assert_eq!(entries, [3, 3, 3, 1]);
        assert_eq!(reply, written());
    }

    #[test]
    fn a_batch_with_a_written_part_is_unknown_and_one_without_is_what_its_first_entry_is() {
        let replies = [
            Reply::Refused(Refusal::RegionNotFound),
            Reply::Busy(Busy::DiskFull),
            Reply::Unknown(Unknown::LeadershipLost),
        ];
        for reply in replies {
            let mut batch = BatchWrite::new(puts(4, 100), 1);
            batch.next_entry().unwrap();
            assert_eq!(batch.replied(reply.clone()), Some(reply.clone()));
            let mut batch = BatchWrite::new(puts(4, 100), 1);
            batch.next_entry().unwrap();
            assert_eq!(batch.replied(written()), None);
            batch.next_entry().unwrap();
            let unknown = Some(Reply::Unknown(Unknown::PartlyExecuted));
            assert_eq!(batch.replied(reply), unknown);
        }
    }
}
