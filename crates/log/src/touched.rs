//! Which values were read from the device a short while ago.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use stele_types::Lsn;

/// Places remembered; the memory is four times as many bytes.
const SLOTS: usize = 1 << 16;

/// A value read for the first time goes past the page cache: it costs half as much, and pushes out
/// nothing. One read again soon is worth a place there.
#[derive(Debug)]
pub(crate) struct Touched {
    slots: Box<[AtomicU32]>,
}

impl Touched {
    pub const MEMORY_BYTES: u64 = (SLOTS * size_of::<AtomicU32>()) as u64;

    pub fn new() -> Self {
        Self { slots: (0..SLOTS).map(|_| AtomicU32::new(0)).collect() }
    }

    /// Whether the place was not read lately; from now on it was. Now and then wrong, which costs
    /// time only.
    pub fn is_first(&self, at: Lsn) -> bool {
        let hash = at.as_u64().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let tag = (hash >> 32) as u32 | 1;
        let slot = self.slots.get((hash >> 16) as usize % SLOTS);
        slot.is_some_and(|slot| slot.swap(tag, Relaxed) != tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::FileId;

    #[test]
    fn the_second_look_at_a_place_is_known_until_others_push_it_out() {
        let touched = Touched::new();
        let at = |n: u32| Lsn::new(FileId(3), n * 16_400);
        assert!(touched.is_first(at(1)) && !touched.is_first(at(1)));
        let firsts = (10..10_000).filter(|&n| touched.is_first(at(n))).count();
        assert!(firsts > 9900, "{firsts} of 9990 new places were new");
        for n in 10_000..250_000 {
            touched.is_first(at(n));
        }
        let forgotten = (10..10_000).filter(|&n| touched.is_first(at(n))).count();
        assert!(forgotten > 8000, "{forgotten} of 9990 old places were forgotten");
    }
}
