//! Runs of a store: which start of its directory, by which process.

use crate::varint;

/// One run of a store. A process draws its nonce once, for all of its stores. The count lies in the
/// directory and grows with each start.
///
/// Invariant: two runs of one directory have different counts. Equal counts with different nonces
/// are runs of a directory and of its copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Boot {
    /// Number of starts of the directory, from 1; 0 if unknown.
    pub count: u64,
    /// Random number of the process; 0 if unknown.
    pub nonce: u64,
}

/// Position of one run relative to another of the same store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootOrder {
    /// It is the same run.
    Same,
    /// It began before the other.
    Before,
    /// It began after the other.
    After,
    /// Both began from the same state of the directory: one of the two directories is a copy.
    Copy,
    /// One of the two is unknown.
    Unknown,
}

impl Boot {
    /// Run of a node of an earlier version, or of a directory in which no count could be written.
    pub const UNKNOWN: Self = Self { count: 0, nonce: 0 };

    /// Returns whether the node stated the run.
    pub fn is_known(&self) -> bool {
        self.count > 0 && self.nonce > 0
    }

    /// Returns the position of this run relative to `other`, of the same store.
    pub fn relative_to(&self, other: &Self) -> BootOrder {
        if !self.is_known() || !other.is_known() {
            return BootOrder::Unknown;
        }
        match self.count.cmp(&other.count) {
            std::cmp::Ordering::Less => BootOrder::Before,
            std::cmp::Ordering::Greater => BootOrder::After,
            std::cmp::Ordering::Equal if self.nonce == other.nonce => BootOrder::Same,
            std::cmp::Ordering::Equal => BootOrder::Copy,
        }
    }

    /// Appends count and nonce as varints.
    pub fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, self.count);
        varint::put(out, self.nonce);
    }

    /// Takes what [`Boot::put`] appended; `None` if it is cut.
    pub fn take(rest: &mut &[u8]) -> Option<Self> {
        Some(Self { count: varint::take(rest)?, nonce: varint::take(rest)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_ordered_by_count_and_equal_counts_of_two_processes_are_of_a_copy() {
        let boot = |count, nonce| Boot { count, nonce };
        let order = |a: Boot, b: Boot| a.relative_to(&b);
        assert_eq!(order(boot(2, 9), boot(2, 9)), BootOrder::Same);
        assert_eq!(order(boot(3, 1), boot(2, 9)), BootOrder::After, "the nonce has no order");
        assert_eq!(order(boot(2, 9), boot(3, 1)), BootOrder::Before);
        assert_eq!(order(boot(2, 8), boot(2, 9)), BootOrder::Copy);
        for unknown in [Boot::UNKNOWN, boot(0, 9), boot(2, 0)] {
            assert_eq!(order(unknown, boot(2, 9)), BootOrder::Unknown);
            assert_eq!(order(boot(2, 9), unknown), BootOrder::Unknown);
        }
    }

    #[test]
    fn a_run_survives_the_round_trip_and_every_cut_is_refused() {
        let (boot, mut bytes) = (Boot { count: 300, nonce: u64::MAX }, Vec::new());
        boot.put(&mut bytes);
        assert_eq!(Boot::take(&mut &bytes[..]), Some(boot));
        for cut in 0..bytes.len() {
            assert_eq!(Boot::take(&mut &bytes[..cut]), None, "cut at {cut}");
        }
    }
}
