//! Search for the merge that ends the log of a watched region, in the log of a target that has no watched
//! keys yet.
//!
//! The entry that prepares the merge names the target, but not where in its log the merge is. If the source
//! still has its keys after one store stated its next entry of the target's log, the merge comes behind that
//! entry. Otherwise the merge may lie before it: steps back double from there until the merge is found, or
//! the log is no longer there, and are halved after that.

use stele_types::RegionId;

/// Entries of the first step back.
const FIRST_STEP: u64 = 256;
/// Times that a search begins again before it has failed: a replica may lag.
const ATTEMPTS_MAX: u32 = 8;
/// Bits of a stream's number that count the streams of one search: each attempt has some hundred at most.
const GENERATION_BITS: u32 = 16;
/// Index before the first entry of any log.
const BEFORE_FIRST: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The next entry of a store is wanted, and whether the source still has its keys.
    Unknown,
    /// The merge is at `next` or later.
    Ahead { next: u64 },
    /// Reads the entries from `start` to `high`, exclusive. What comes before `low`, inclusive, is not there.
    Back { start: u64, next: u64, low: u64, high: u64, step: u64 },
}

/// A search for one prepared merge.
#[derive(Clone, Debug)]
pub(super) struct Seeker {
    pub(super) target: RegionId,
    /// Index of the entry that prepared the merge, in the log of the source.
    pub(super) prepared_index: u64,
    place: Place,
    /// Grows when the stream must be opened again.
    pub(super) generation: u64,
    pub(super) attempts: u32,
}

impl Seeker {
    /// Makes a search. `number` differs from that of each other search of the watch.
    pub(super) fn new(target: RegionId, prepared_index: u64, number: u64) -> Self {
        let generation = number << GENERATION_BITS;
        Self { target, prepared_index, place: Place::Unknown, generation, attempts: 0 }
    }

    /// Makes the search in a log of which all entries before `next` are known not to be the merge.
    pub(super) fn from(target: RegionId, prepared_index: u64, next: u64, number: u64) -> Self {
        let place = Place::Ahead { next };
        Self { place, ..Self::new(target, prepared_index, number) }
    }

    /// Returns the first entry to read; 0 while it is unknown.
    pub(super) fn next_index(&self) -> u64 {
        match self.place {
            Place::Unknown => 0,
            Place::Ahead { next } | Place::Back { next, .. } => next,
        }
    }

    /// Returns whether the search found nothing so often that the log no longer has the merge, if there was
    /// one.
    pub(super) fn has_failed(&self) -> bool {
        self.attempts > ATTEMPTS_MAX
    }

    /// Takes the next entry of a store, stated before the source was found to have its keys or not.
    pub(super) fn begin(&mut self, next: u64, is_source_there: bool) {
        self.generation += 1;
        match is_source_there {
            true => self.place = Place::Ahead { next },
            false => self.step_back(BEFORE_FIRST, next, FIRST_STEP),
        }
    }

    /// Takes that all entries before `next_index` were read and are not the merge.
    pub(super) fn read_to(&mut self, next_index: u64) {
        match &mut self.place {
            Place::Unknown => {}
            Place::Ahead { next } => *next = next_index.max(*next),
            Place::Back { next, high, .. } if next_index < *high => *next = next_index.max(*next),
            Place::Back { start, low, step, .. } => {
                let (low, high, step) = (*low, *start, step.saturating_mul(2));
                self.generation += 1;
                self.step_back(low, high, step);
            }
        }
    }

    /// Takes that no store has the next entry any longer.
    pub(super) fn too_old(&mut self) {
        self.generation += 1;
        match self.place {
            Place::Back { next, high, .. } => {
                self.step_back(next, high, high.saturating_sub(next) / 2);
            }
            Place::Unknown | Place::Ahead { .. } => self.again(),
        }
    }

    fn step_back(&mut self, low: u64, high: u64, step: u64) {
        let first = low.saturating_add(1);
        if high <= first {
            return self.again();
        }
        let start = high.saturating_sub(step.max(1)).max(first);
        self.place = Place::Back { start, next: start, low, high, step };
    }

    fn again(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        self.place = Place::Unknown;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search in a log with entries from `first` to `last`, of which `merge` is the merge. Returns
    /// the number of entries read, or `None` if it ends without it.
    fn search(first: u64, merge: u64, last: u64) -> Option<u64> {
        let mut seeker = Seeker::new(RegionId(7), 3, 0);
        let mut read = 0;
        loop {
            if seeker.has_failed() {
                return None;
            }
            if seeker.next_index() == 0 {
                seeker.begin(last + 1, false);
                continue;
            }
            let (next, generation) = (seeker.next_index(), seeker.generation);
            if next < first {
                seeker.too_old();
                continue;
            }
            for index in next..=last {
                read += 1;
                if index == merge {
                    return Some(read);
                }
                seeker.read_to(index + 1);
                if seeker.generation != generation || seeker.next_index() == 0 {
                    break;
                }
            }
        }
    }

    #[test]
    fn a_merge_that_the_log_still_has_is_found_wherever_it_is() {
        for (first, last) in
            [(6, 6), (6, 40), (6, 5_000), (900, 1_000), (1_000, 9_000), (4_321, 4_322)]
        {
            for merge in (first..=last).step_by(7).chain([last]) {
                let read = search(first, merge, last);
                let most = 4 * (last - merge) + 2 * FIRST_STEP;
                assert!(read.is_some_and(|read| read <= most), "{first} {merge} {last}: {read:?}");
            }
            assert_eq!(search(first, last + 1, last), None, "a merge that is not there is found");
        }
    }

    #[test]
    fn a_merge_that_comes_later_is_read_on_to() {
        let mut seeker = Seeker::new(RegionId(7), 3, 0);
        seeker.begin(100, true);
        assert_eq!(seeker.next_index(), 100);
        seeker.read_to(140);
        assert_eq!((seeker.next_index(), seeker.generation), (140, 1));
        seeker.too_old();
        assert_eq!((seeker.next_index(), seeker.attempts), (0, 1), "it begins again");
    }
}
