//! Cursors of scans: numbers that clients return, and the table in which their node finds the place of each.
//!
//! ```text
//! cursor := node:26 check:17 step:4 slot:16      63 bits: clients parse it as a signed number
//! ```
//!
//! An iteration has one slot. Each page that is returned has the next step, and the slot keeps the places of
//! the last two: a client that did not receive a page sends the cursor before it again. `check` differs for
//! each iteration, and its first one is random for each start of the node.
//!
//! Invariant: a cursor is the place that it stood for, or unknown. One of an earlier start, or of an
//! iteration that was dropped, is never the place of another iteration.
//! Tests: `a_cursor_of_a_dropped_iteration_is_unknown`, `a_cursor_of_an_earlier_start_is_unknown`.

use bytes::Bytes;
use std::collections::BTreeMap;

const NODE_BITS: u32 = 26;
const CHECK_BITS: u32 = 17;
const STEP_BITS: u32 = 4;
const SLOT_BITS: u32 = 16;

/// Iterations of a table, at most. The one that was used longest ago is dropped for another one.
pub const ITERATIONS_MAX: usize = 1 << SLOT_BITS;
/// Bytes of the places of a table, at most.
const PLACES_BYTES_MAX: usize = 32 << 20;
/// Bytes of an iteration beside those of its keys.
const ITERATION_BYTES: usize = 256;

/// Place at which a scan continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanPlace {
    /// Names of a database.
    Names {
        /// Number of the database.
        database: u8,
        /// First user key that was not examined.
        next_key: Bytes,
    },
    /// Members of a hash or set.
    Members {
        /// Engine key of the header.
        header_key: Bytes,
        /// Stamp of the members.
        stamp: u64,
        /// Last field that was returned.
        after: Bytes,
    },
}

impl ScanPlace {
    fn bytes(&self) -> usize {
        match self {
            Self::Names { next_key, .. } => next_key.len(),
            Self::Members { header_key, after, .. } => header_key.len() + after.len(),
        }
    }
}

/// Number of a scan that is not at its begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    node: u32,
    check: u32,
    step: u8,
    slot: u16,
}

impl Cursor {
    /// Decodes a number that a client returned. `None` for one that no node made.
    pub fn from_number(number: u64) -> Option<Self> {
        let field = |bits: u32, below: u32| (number >> below) & ((1 << bits) - 1);
        let cursor = Self {
            slot: field(SLOT_BITS, 0) as u16,
            step: field(STEP_BITS, SLOT_BITS) as u8,
            check: field(CHECK_BITS, SLOT_BITS + STEP_BITS) as u32,
            node: field(NODE_BITS, SLOT_BITS + STEP_BITS + CHECK_BITS) as u32,
        };
        (cursor.check != 0 && number >> 63 == 0).then_some(cursor)
    }

    /// Returns the number, which is never 0.
    pub fn number(self) -> u64 {
        let high = (u64::from(self.node) << CHECK_BITS) | u64::from(self.check);
        (((high << STEP_BITS) | u64::from(self.step)) << SLOT_BITS) | u64::from(self.slot)
    }

    /// Returns whether a node with a store of this number made the cursor.
    pub fn is_of(self, store: u64) -> bool {
        self.node == node_of(store)
    }

    /// Returns the lowest number of a store of which the node may have made the cursor.
    pub fn store(self) -> u64 {
        u64::from(self.node)
    }

    fn next_step(self) -> Self {
        Self { step: (self.step + 1) % (1 << STEP_BITS), ..self }
    }
}

fn node_of(store: u64) -> u32 {
    (store & ((1 << NODE_BITS) - 1)) as u32
}

/// Table of the iterations that a node has begun.
#[derive(Debug)]
pub struct Cursors {
    slots: BTreeMap<u16, Iteration>,
    /// Slots by the number of their last use.
    by_use: BTreeMap<u64, u16>,
    uses: u64,
    last_check: u32,
    bytes: usize,
    iterations_max: usize,
}

#[derive(Debug)]
struct Iteration {
    /// Of the last page.
    cursor: Cursor,
    place: ScanPlace,
    /// Place of the page before it.
    before: Option<ScanPlace>,
    used: u64,
}

impl Iteration {
    fn bytes(&self) -> usize {
        ITERATION_BYTES + self.place.bytes() + self.before.as_ref().map_or(0, ScanPlace::bytes)
    }

    fn place_of(&self, cursor: Cursor) -> Option<&ScanPlace> {
        match cursor == self.cursor {
            true => Some(&self.place),
            false if cursor.next_step() == self.cursor => self.before.as_ref(),
            false => None,
        }
    }
}

impl Cursors {
    /// Creates the table of a node that starts.
    pub fn new(random: u64) -> Self {
        Self::with(random, ITERATIONS_MAX)
    }

    fn with(random: u64, iterations_max: usize) -> Self {
        Self {
            slots: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            last_check: (random & ((1 << CHECK_BITS) - 1)) as u32,
            bytes: 0,
            iterations_max,
        }
    }

    /// Returns the place of a cursor. `None` if its iteration was dropped or belongs to an earlier start, or
    /// the cursor is older than the two last pages.
    pub fn find(&self, cursor: Cursor) -> Option<ScanPlace> {
        self.slots.get(&cursor.slot)?.place_of(cursor).cloned()
    }

    /// Returns the cursor for the next place of a scan. `after` is the cursor of its page, which this table
    /// may not know; `store` is one of the node's.
    ///
    /// Invariant: only the last cursor of an iteration moves it. A page that is read again begins another
    /// one, so that a place that a client has is never moved past names that it lacks.
    /// Test: `a_page_that_is_read_again_moves_no_other_cursor`.
    pub fn advance(&mut self, after: Option<Cursor>, store: u64, place: ScanPlace) -> Cursor {
        let known = after.and_then(|cursor| self.slots.get_mut(&cursor.slot).zip(Some(cursor)));
        // bug redis.any_cursor_moves: `it.cursor == *cursor` is `it.place_of(*cursor).is_some()`
        if let Some((iteration, _)) = known.filter(|(it, cursor)| it.cursor == *cursor) {
            self.bytes -= iteration.bytes();
            iteration.cursor = iteration.cursor.next_step();
            iteration.before = Some(std::mem::replace(&mut iteration.place, place));
            self.bytes += iteration.bytes();
            let (cursor, used) = (iteration.cursor, iteration.used);
            self.uses += 1;
            iteration.used = self.uses;
            self.by_use.remove(&used);
            self.by_use.insert(self.uses, cursor.slot);
            return cursor;
        }
        self.begin(node_of(store), place)
    }

    fn begin(&mut self, node: u32, place: ScanPlace) -> Cursor {
        let new_bytes = ITERATION_BYTES + place.bytes();
        while !self.slots.is_empty()
            && (self.slots.len() >= self.iterations_max
                || self.bytes + new_bytes > PLACES_BYTES_MAX)
        {
            self.drop_oldest();
        }
        self.uses += 1;
        // Consecutive iterations take consecutive slots, and skip those in use.
        let first = self.uses as u16;
        let mut following = (0..=u16::MAX).map(|step| first.wrapping_add(step));
        let slot = following.find(|slot| !self.slots.contains_key(slot)).unwrap_or(first);
        // bug redis.cursors_repeat: skip
        self.last_check = self.last_check % ((1 << CHECK_BITS) - 1) + 1;
        let cursor = Cursor { node, check: self.last_check, step: 0, slot };
        let iteration = Iteration { cursor, place, before: None, used: self.uses };
        self.bytes += iteration.bytes();
        self.by_use.insert(self.uses, slot);
        self.slots.insert(slot, iteration);
        cursor
    }

    fn drop_oldest(&mut self) {
        let Some((_, slot)) = self.by_use.pop_first() else { return };
        if let Some(iteration) = self.slots.remove(&slot) {
            self.bytes -= iteration.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(key: &str) -> ScanPlace {
        ScanPlace::Names { database: 0, next_key: Bytes::copy_from_slice(key.as_bytes()) }
    }

    proptest! {
        #[test]
        fn a_cursor_is_a_positive_number_that_clients_return(
            node in 0..1u32 << 26, check in 1..1u32 << 17, step in 0..16u8, slot: u16,
        ) {
            let cursor = Cursor { node, check, step, slot };
            let number = cursor.number();
            prop_assert!(number > 0 && i64::try_from(number).is_ok());
            prop_assert_eq!(Cursor::from_number(number), Some(cursor));
            prop_assert!(cursor.is_of(u64::from(node)) && cursor.is_of((5 << 26) + u64::from(node)));
            prop_assert!(!cursor.is_of(u64::from(node) + 1));
        }
    }

    #[test]
    fn a_scan_goes_on_from_its_last_two_cursors() {
        let mut table = Cursors::new(9);
        let mut cursors = vec![table.advance(None, 1, place("0"))];
        for page in 1..40 {
            let last = *cursors.last().unwrap();
            cursors.push(table.advance(Some(last), 1, place(&page.to_string())));
            let found = |back: usize| table.find(cursors[cursors.len() - back]);
            assert_eq!(found(1), Some(place(&page.to_string())));
            assert_eq!(found(2), Some(place(&(page - 1).to_string())));
            assert!(page < 2 || found(3).is_none());
        }
        assert_eq!((table.slots.len(), table.by_use.len()), (1, 1));
        assert_eq!(Cursor::from_number(0), None);
        assert_eq!(Cursor::from_number(u64::MAX), None);
    }

    #[test]
    fn a_page_that_is_read_again_moves_no_other_cursor() {
        let mut table = Cursors::new(9);
        let first = table.advance(None, 1, place("c"));
        let second = table.advance(Some(first), 1, place("f"));
        // Names were deleted meanwhile, so that the same page ends later.
        let again = table.advance(Some(first), 1, place("g"));
        assert_eq!(table.find(second), Some(place("f")));
        assert_eq!(table.find(again), Some(place("g")));
        let foreign = Cursor { node: 8, ..first };
        let continued = table.advance(Some(foreign), 1, place("h"));
        assert_eq!(table.find(continued), Some(place("h")));
        assert_eq!(table.find(first), Some(place("c")));
    }

    #[test]
    fn a_cursor_of_a_dropped_iteration_is_unknown() {
        let mut table = Cursors::with(9, 4);
        let mut lasting = table.advance(None, 1, place("lasting"));
        let first = table.advance(None, 1, place("first"));
        for _ in 0..100 {
            lasting = table.advance(Some(lasting), 1, place("lasting"));
            let other = table.advance(None, 1, place("other"));
            assert_eq!(table.find(other), Some(place("other")));
        }
        assert_eq!(table.find(first), None);
        assert_eq!(table.find(lasting), Some(place("lasting")), "it was used");
        let kept: usize = table.slots.values().map(Iteration::bytes).sum();
        assert_eq!((table.slots.len(), table.bytes), (4, kept));
        // A slot that is used again has another check.
        let mut table = Cursors::with(9, 1);
        let first = table.advance(None, 1, place("first"));
        for _ in 0..1 << 17 {
            let next = table.advance(None, 1, place("other"));
            assert!(next != first && table.find(first).is_none());
        }
    }

    #[test]
    fn a_cursor_of_an_earlier_start_is_unknown() {
        let mut before = Cursors::new(9);
        let cursor = before.advance(None, 1, place("a"));
        let mut table = Cursors::new(700);
        table.advance(None, 1, place("b"));
        assert_eq!(table.find(cursor), None);
    }

    #[test]
    fn places_have_a_bound_in_bytes() {
        let mut table = Cursors::new(9);
        let long = "x".repeat(8 << 10);
        for _ in 0..10_000 {
            table.advance(None, 1, place(&long));
        }
        assert!(table.bytes <= PLACES_BYTES_MAX && table.slots.len() > 3_000);
    }
}
