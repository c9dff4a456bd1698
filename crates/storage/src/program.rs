//! Changes of several keys of one region, decided together and logged as their effects.

use crate::Pair;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use stele_types::CommandBuilder;

/// Most engine keys that a program holds.
pub const PROGRAM_KEYS_MAX: usize = 1024;

/// Pairs that a program reads, by engine key: `None` for a key without a live one.
pub type Pairs = BTreeMap<Bytes, Option<Pair>>;

/// A pure function from the pairs of a region to operations and an answer. The leader decides it when it
/// proposes it, so every replica applies the same operations.
pub trait Program: fmt::Debug + Send + Sync {
    /// Returns the engine keys that it holds, ascending and each once, at most [`PROGRAM_KEYS_MAX`]. While
    /// pairs are read from the device, no other change of these keys is proposed. What it reads and
    /// writes beside them must be changed only together with one of them.
    fn keys(&self) -> &[Bytes];

    /// Returns whether it reads the value of a key's pair. If not, the value that it receives may be empty.
    fn reads_value(&self, key: &[u8]) -> bool {
        let _ = key;
        true
    }

    /// Returns the bytes of its keys and arguments.
    fn bytes(&self) -> usize;

    /// Decides on the pairs read so far (at first none), or names those that it needs too. `now_ms` is
    /// the leader's time in Unix milliseconds.
    fn decide(&self, pairs: &Pairs, now_ms: u64) -> ProgramStep;

    /// Whether it may replace pairs of its keys that it does not read. While the region may have intents, the
    /// leader gives it the pairs of all its keys.
    fn may_replace_unread(&self) -> bool {
        false
    }

    /// Whether it puts intents: pairs that no program may replace unread for some seconds.
    fn puts_intents(&self) -> bool {
        false
    }
}

/// Step of a program.
#[derive(Debug)]
pub enum ProgramStep {
    /// Engine keys of which it needs the pairs; none of them was read before.
    Read(Vec<Bytes>),
    /// The decision.
    Done(Outcome),
}

/// Decision of a program.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Operations, which take effect together; none: nothing changes.
    pub command: CommandBuilder,
    /// Answer to the caller.
    pub answer: Bytes,
}
