//! Identity of a store's runs: which start of its directory, by which process, after which others, and where
//! its files lie.

use crate::varint;
use std::fmt;
use std::sync::Arc;

/// Random number of one start of a store's directory; 0 if it is unknown.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StartId(pub u128);

impl StartId {
    /// Number of bytes of [`StartId::to_bytes`].
    pub const BYTES: usize = 16;

    /// Returns whether the start has a number.
    pub fn is_known(self) -> bool {
        self.0 != 0
    }

    /// Encodes the number.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.to_be_bytes()
    }

    /// Decodes the number of `hex`; `None` if it is malformed or 0.
    pub fn from_hex(hex: &str) -> Option<Self> {
        let id = u128::from_str_radix(hex, 16).ok().map(Self);
        id.filter(|id| id.is_known() && hex.len() == 2 * Self::BYTES)
    }
}

impl fmt::Display for StartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A start of a directory and the starts before it, newest first. Clones share the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lineage(Arc<[StartId]>);

impl Default for Lineage {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl Lineage {
    /// Most earlier starts that are kept.
    pub const EARLIER_MAX: usize = 64;

    /// Creates the lineage of the start `ids[0]` after the starts that follow it. Drops unknown and
    /// repeated ones, and those beyond the limit.
    pub fn new(ids: impl IntoIterator<Item = StartId>) -> Self {
        let mut kept: Vec<StartId> = Vec::new();
        for id in ids.into_iter().filter(|id| id.is_known()) {
            if kept.len() <= Self::EARLIER_MAX && !kept.contains(&id) {
                kept.push(id);
            }
        }
        Self(kept.into())
    }

    /// Returns the lineage of a start of the same directory after this one.
    pub fn next(&self, id: StartId) -> Self {
        Self::new(std::iter::once(id).chain(self.ids().iter().copied()))
    }

    /// Returns the start; unknown for a node of an earlier version.
    pub fn id(&self) -> StartId {
        self.0.first().copied().unwrap_or_default()
    }

    /// Returns the start and those before it.
    pub fn ids(&self) -> &[StartId] {
        &self.0
    }

    /// Returns whether the start has a number.
    pub fn is_known(&self) -> bool {
        !self.0.is_empty()
    }

    /// Returns whether the start came after `id` in the same directory, or in one it was copied from.
    pub fn holds(&self, id: StartId) -> bool {
        self.0.iter().skip(1).any(|earlier| *earlier == id)
    }

    /// Returns whether both have a start in common.
    pub fn is_related_to(&self, other: &Self) -> bool {
        self.0.iter().any(|id| other.0.contains(id))
    }

    /// Returns the lineage with at most `earlier_max` of the earlier starts.
    pub fn shortened(&self, earlier_max: usize) -> Self {
        match self.0.get(..=earlier_max) {
            Some(kept) => Self(kept.into()),
            None => self.clone(),
        }
    }

    /// Encodes the ids, the start first, with [`StartId::BYTES`] bytes each.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|id| id.to_bytes()).collect()
    }

    /// Decodes what [`Lineage::to_bytes`] encoded; `None` if it is malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (ids, rest) = bytes.as_chunks::<{ StartId::BYTES }>();
        let is_bounded = rest.is_empty() && ids.len() <= Self::EARLIER_MAX + 1;
        is_bounded.then(|| Self::new(ids.iter().map(|id| StartId(u128::from_be_bytes(*id)))))
    }
}

/// One run of a store, as a node states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreRun {
    /// Number of the start, and the process; all that nodes of earlier versions state.
    pub boot: Boot,
    /// The start, and those before it.
    pub lineage: Lineage,
}

impl StoreRun {
    /// Returns whether the node stated anything.
    pub fn is_known(&self) -> bool {
        self.boot.is_known() || self.lineage.is_known()
    }
}

impl From<Boot> for StoreRun {
    fn from(boot: Boot) -> Self {
        Self { boot, lineage: Lineage::default() }
    }
}

impl fmt::Display for StoreRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lineage.is_known() {
            true => write!(f, "start {} ({})", self.boot.count, self.lineage.id()),
            false => write!(f, "start {}", self.boot.count),
        }
    }
}

/// Place of a directory in its file system. A move within the file system keeps it; a copy has
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the directory's inode.
    pub inode: u64,
    /// Time at which the directory was created, in nanoseconds since 1970.
    pub born_nanos: u64,
    /// Number of the file system where a copy of all of it keeps the other two (a snapshot of btrfs);
    /// 0 elsewhere.
    pub file_system: u64,
}

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

    fn lineage(ids: &[u128]) -> Lineage {
        Lineage::new(ids.iter().copied().map(StartId))
    }

    #[test]
    fn a_start_holds_the_starts_before_it_and_not_itself() {
        let third = lineage(&[3, 2, 1]);
        assert_eq!(third.id(), StartId(3));
        assert!(third.holds(StartId(2)) && third.holds(StartId(1)));
        assert!(!third.holds(StartId(3)) && !third.holds(StartId(4)) && !third.holds(StartId(0)));
        assert_eq!(third.next(StartId(4)), lineage(&[4, 3, 2, 1]));
        assert!(third.is_related_to(&lineage(&[9, 2])) && !third.is_related_to(&lineage(&[9])));
        assert!(!Lineage::default().is_known() && !Lineage::default().id().is_known());
        assert_eq!(lineage(&[3, 0, 3, 2]), lineage(&[3, 2]));
    }

    #[test]
    fn the_last_64_starts_are_kept() {
        let last = (1..=200).fold(Lineage::default(), |last, id| last.next(StartId(id)));
        assert_eq!(last.ids().len(), Lineage::EARLIER_MAX + 1);
        assert!(last.holds(StartId(136)) && !last.holds(StartId(135)));
        assert_eq!(last.shortened(2), lineage(&[200, 199, 198]));
        assert_eq!(lineage(&[2, 1]).shortened(9), lineage(&[2, 1]));
    }

    #[test]
    fn a_lineage_survives_the_round_trip_and_a_malformed_one_is_refused() {
        let sample = lineage(&[u128::MAX, 5]);
        let bytes = sample.to_bytes();
        assert_eq!(Lineage::from_bytes(&bytes).as_ref(), Some(&sample));
        assert_eq!(Lineage::from_bytes(&[1; 15]), None);
        assert_eq!(Lineage::from_bytes(&[1; 66 * 16]), None, "more than are kept");
        assert_eq!(Lineage::from_bytes(&[]), Some(Lineage::default()));
        let id = StartId(300);
        assert_eq!(StartId::from_hex(&id.to_string()), Some(id));
        assert_eq!([StartId::from_hex("12c"), StartId::from_hex(&"0".repeat(32))], [None, None]);
    }

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
