//! Memory that the pairs of an answer need, charged before they are read.

use super::{Exceeded, RequestMemory};
use stele_proto::SHARED_BYTES_MIN;
use stele_proto::kvrpcpb::KvPair;
use stele_storage::{Admitted, EngineView, Pages, Pair};
use stele_types::Result;

/// Memory of a pair beside its bytes: its place in a list that doubles, while the previous half exists.
const PAIR_BYTES: u64 = 3 * size_of::<KvPair>() as u64;

/// Returns the memory of a value in an answer: a short one is copied into the encoded answer.
pub fn value_memory(bytes: u64) -> u64 {
    if bytes < SHARED_BYTES_MIN as u64 { 2 * bytes } else { bytes }
}

/// Returns the memory of pairs that are read together. The memory of their reads is at most twice
/// their bytes, and short ones are copied into the encoded answer.
pub fn pairs_memory(pairs: usize, bytes: u64) -> u64 {
    pairs as u64 * PAIR_BYTES + 3 * bytes
}

/// Returns the memory of one pair that was read by itself.
pub fn pair_memory(key_bytes: u64, value_bytes: u64) -> u64 {
    PAIR_BYTES + 2 * key_bytes + value_memory(value_bytes)
}

/// Charges a value that is in memory already.
pub fn charge_value(memory: &RequestMemory, value: &[u8]) -> Result<(), Exceeded> {
    memory.charge(value_memory(value.len() as u64))
}

/// Charges reads before they use memory, and settles what they used.
pub struct Charging<'a> {
    memory: &'a RequestMemory,
    used_before: u64,
    exceeded: Option<Exceeded>,
}

impl<'a> Charging<'a> {
    /// Begins a read.
    pub fn new(memory: &'a RequestMemory) -> Self {
        Self { memory, used_before: memory.used(), exceeded: None }
    }

    /// Charges `bytes`; returns whether they may be used.
    pub fn admit(&mut self, bytes: u64) -> bool {
        self.exceeded = self.memory.charge(bytes).err();
        self.exceeded.is_none()
    }

    /// Ends the read, of which `bytes` stay in use.
    pub fn settle(&self, bytes: u64) -> Result<(), Exceeded> {
        let charged = self.memory.used().saturating_sub(self.used_before);
        if bytes > charged {
            return self.memory.charge(bytes - charged);
        }
        self.memory.release_to(self.used_before + bytes);
        Ok(())
    }

    /// Returns the reason of the refusal.
    pub fn exceeded(&self) -> Exceeded {
        self.exceeded.unwrap_or(Exceeded::Shared)
    }
}

/// Returns the next page, if there is memory for it: an inner error otherwise.
pub fn next_page<V: EngineView>(
    pages: &mut Pages<'_, V>,
    charging: &mut Charging<'_>,
) -> Result<Result<Option<Vec<Pair>>, Exceeded>> {
    let read =
        pages.next_admitted(&mut |pairs, bytes| charging.admit(pairs_memory(pairs, bytes)))?;
    Ok(match read {
        Admitted::Read(page) => Ok(page),
        Admitted::Refused => Err(charging.exceeded()),
    })
}
