//! Keys that are written once. Every acknowledged write must be present ever after.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;

#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    writers: Vec<Vec<WriteOutcome>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    Acknowledged,
    Refused,
    Unknown,
}

pub(crate) const PREFIX: &str = "ledger/";
const VALUE_BYTES_MIN: u64 = 32;

impl Ledger {
    pub(crate) fn new(writers: usize) -> Self {
        Self { writers: vec![Vec::new(); writers] }
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        let all = self.writers.iter().flatten();
        all.filter(|outcome| **outcome == WriteOutcome::Acknowledged).count() as u64
    }

    pub(crate) fn count(&self, writer: usize) -> usize {
        self.writers.get(writer).map_or(0, Vec::len)
    }

    pub(crate) fn extend(&mut self, writer: usize, outcomes: Vec<WriteOutcome>) {
        if let Some(own) = self.writers.get_mut(writer) {
            own.extend(outcomes);
        }
    }

    /// Compares the ledger with all pairs that a replica has below [`PREFIX`], in their order.
    pub(crate) fn compare(&self, found: &[(Bytes, Bytes)]) -> Result<()> {
        let mut found = found.iter().peekable();
        for (writer, outcomes) in self.writers.iter().enumerate() {
            for (number, outcome) in outcomes.iter().enumerate() {
                let name = key(writer, number);
                let here = found.next_if(|(key, _)| **key == *name.as_bytes());
                match (here, outcome) {
                    (Some((_, bytes)), WriteOutcome::Acknowledged | WriteOutcome::Unknown) => {
                        ensure!(*bytes == value(writer, number), "{name} has a wrong value");
                    }
                    (Some(_), WriteOutcome::Refused) => {
                        anyhow::bail!("{name} is present although its write was refused");
                    }
                    (None, WriteOutcome::Acknowledged) => {
                        anyhow::bail!("{name} was acknowledged and is missing");
                    }
                    (None, _) => {}
                }
            }
        }
        let rest = found.next().map(|(key, _)| String::from_utf8_lossy(key).into_owned());
        ensure!(rest.is_none(), "{} was never written", rest.context("a key")?);
        Ok(())
    }
}

pub(super) fn key(writer: usize, number: usize) -> String {
    format!("{PREFIX}{writer:03}/{number:09}")
}

/// Returns the value of a write; its length and bytes are derived from the key.
pub(super) fn value(writer: usize, number: usize) -> Bytes {
    let mut prng = stele_types::Prng::new((writer as u64) << 40 | number as u64);
    // Most values are small; some are large enough to be separated from the index.
    let bytes_max = if prng.below(8) == 0 { 20_000 } else { 800 };
    let bytes = VALUE_BYTES_MIN + prng.below(bytes_max);
    let fill = prng.draw().to_le_bytes();
    fill.iter().copied().cycle().take(bytes as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(number: usize) -> (Bytes, Bytes) {
        (Bytes::from(key(0, number)), value(0, number))
    }

    fn ledger(outcomes: &[WriteOutcome]) -> Ledger {
        let mut ledger = Ledger::new(1);
        ledger.extend(0, outcomes.to_vec());
        ledger
    }

    #[test]
    fn what_was_acknowledged_must_be_there_and_what_is_unknown_may() {
        use WriteOutcome::{Acknowledged, Refused, Unknown};
        let one = ledger(&[Acknowledged, Unknown, Unknown, Refused, Acknowledged]);
        one.compare(&[pair(0), pair(2), pair(4)]).unwrap();
        assert!(one.compare(&[pair(0), pair(2)]).is_err());
        assert!(one.compare(&[pair(0), pair(3), pair(4)]).is_err());
        assert!(one.compare(&[pair(0), pair(4), pair(5)]).is_err());
        let wrong = (Bytes::from(key(0, 4)), value(0, 5));
        assert!(one.compare(&[pair(0), wrong]).is_err());
        assert_eq!(one.acknowledged(), 2);
    }
}
