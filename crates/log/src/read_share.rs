//! Shares of reads that go through the page cache: of long ones, and of scattered short ones.

use std::sync::atomic::{AtomicU32, Ordering};
use stele_types::FileId;

/// Bytes of a file per decision.
pub(crate) const PIECE_BYTES: u64 = 512 << 10;
const SHARE_MAX: u32 = u32::MAX;
/// Minimum share. Without it free memory would never be noticed again.
const SHARE_MIN: u32 = u32::MAX / 64;
/// Initial share. Pieces read for the first time always miss. With a small initial share, or a
/// larger step down than up, memory was still mostly unused after ten reads of each piece.
const SHARE_FIRST: u32 = u32::MAX / 2;
/// A hit grows the share by 1/`STEP`, a miss shrinks it by as much: it is stable at a hit rate of
/// one half.
const STEP: u32 = 64;

/// Decides which long reads go through the page cache. Direct reads cost half the processor time
/// and evict nothing; cached reads find repeated data in memory. A fixed share of all pieces goes
/// through the page cache, always the same ones. The share adapts to how much stays there: nearly
/// all of a data set that fits in memory, nearly none of data read once, and a part of a larger
/// data set, which would evict itself if all of it were cached.
#[derive(Debug)]
pub(crate) struct LongReads {
    /// In units of 1/`u32::MAX`.
    share: AtomicU32,
}

impl Default for LongReads {
    fn default() -> Self {
        Self { share: AtomicU32::new(SHARE_FIRST) }
    }
}

impl LongReads {
    pub(crate) fn is_cached(&self, file: FileId, piece: u64) -> bool {
        place(file, piece) <= self.share.load(Ordering::Relaxed)
    }

    /// Adapts the share to a hit or miss of a cached piece.
    pub(crate) fn note_lookup(&self, found: bool) {
        adapt(&self.share, found);
    }
}

fn adapt(share: &AtomicU32, found: bool) {
    let now = share.load(Ordering::Relaxed);
    let next = match found {
        true => now.saturating_add(now / STEP),
        false => now - now / STEP,
    };
    // Concurrent updates may lose one, which is harmless: there are many.
    share.store(next.clamp(SHARE_MIN, SHARE_MAX), Ordering::Relaxed);
}

/// Unit in which the page cache keeps what short reads request.
const PAGE_BYTES: u64 = 4096;
/// One of so many pages is watched.
const PAGES_OF_SAMPLE: u32 = 256;
/// Watched pages that are remembered: those of 32 GiB of values.
const SAMPLES: usize = 32 << 10;

/// Decides which scattered short reads go through the page cache. Past it, the system copies nothing, frees
/// no other page, and takes all reads of a scan with one call: half of the processor time at 1 KiB and a
/// third at 16 KiB. Through it, a page that is read again is found. Always the same share of all pages goes
/// through it.
///
/// Invariant: only pages that were read before change the share. A page that is read for the first time
/// always misses, which says nothing of the memory: a data set that fits there stays in it.
/// Test: `scattered_reads_bypass_a_page_cache_only_while_it_loses_what_they_read`.
#[derive(Debug)]
pub(crate) struct ScatteredReads {
    /// In units of 1/`u32::MAX`.
    share: AtomicU32,
    /// Watched pages that were read last, by a part of their hash; 0 for none.
    seen: Box<[AtomicU32]>,
}

impl Default for ScatteredReads {
    fn default() -> Self {
        let seen = (0..SAMPLES).map(|_| AtomicU32::new(0)).collect();
        Self { share: AtomicU32::new(SHARE_MAX), seen }
    }
}

impl ScatteredReads {
    #[cfg(test)]
    pub(crate) fn bypass_all(&self) {
        self.share.store(0, Ordering::Relaxed);
    }

    /// Returns whether a read at this position goes through the page cache.
    pub(crate) fn is_cached(&self, file: FileId, offset: u64) -> bool {
        place(file, offset / PAGE_BYTES) <= self.share.load(Ordering::Relaxed)
    }

    /// Adapts the share to whether such a read was `found` there.
    pub(crate) fn note(&self, file: FileId, offset: u64, found: bool) {
        let mixed = mix(file, offset / PAGE_BYTES);
        let (place, low) = ((mixed >> 32) as u32, mixed as u32);
        let slot = self.seen.get((low / PAGES_OF_SAMPLE) as usize % SAMPLES);
        let Some(slot) = slot.filter(|_| low.is_multiple_of(PAGES_OF_SAMPLE)) else { return };
        let was_seen = slot.swap(place | 1, Ordering::Relaxed) == place | 1;
        // bug log.first_reads_count_as_misses: `was_seen` is `true`
        if was_seen {
            adapt(&self.share, found);
        }
    }
}

/// Maps a piece to a fixed rank from 0 to `u32::MAX`. A larger share includes every smaller one.
fn place(file: FileId, piece: u64) -> u32 {
    (mix(file, piece) >> 32) as u32
}

fn mix(file: FileId, piece: u64) -> u64 {
    const MIX: u64 = 0x9E37_79B9_7F4A_7C15;
    let mixed = ((u64::from(file.0) << 32) ^ piece).wrapping_mul(MIX);
    (mixed ^ (mixed >> 32)).wrapping_mul(MIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    struct PageCache {
        pieces_max: usize,
        pieces: VecDeque<u64>,
    }

    impl PageCache {
        fn read(&mut self, piece: u64) -> bool {
            let at = self.pieces.iter().position(|it| *it == piece);
            let found = at.and_then(|at| self.pieces.remove(at)).is_some();
            self.pieces.push_back(piece);
            if self.pieces.len() > self.pieces_max {
                self.pieces.pop_front();
            }
            found
        }
    }

    fn shares(reads: impl Iterator<Item = u64>, pieces_max: usize) -> (f64, f64) {
        let long = LongReads::default();
        let mut cache = PageCache { pieces_max, pieces: VecDeque::new() };
        let (mut found, mut cached, mut all) = (0.0, 0.0, 0.0);
        for piece in reads {
            all += 1.0;
            if long.is_cached(FileId(1), piece) {
                let is_there = cache.read(piece);
                long.note_lookup(is_there);
                cached += 1.0;
                found += f64::from(is_there);
            }
        }
        (found / all, cached / all)
    }

    fn rounds(pieces: u64, rounds: u64) -> impl Iterator<Item = u64> {
        (0..rounds).flat_map(move |_| 0..pieces)
    }

    #[test]
    fn what_fits_in_memory_is_found_there_in_the_end() {
        let (found, _) = shares(rounds(300, 60), 400);
        assert!(found > 0.7, "{found}");
    }

    #[test]
    fn what_is_read_once_goes_past_memory() {
        let (found, cached) = shares(0..100_000, 1_000);
        assert!(found == 0.0 && cached < 0.02, "{cached}");
    }

    #[test]
    fn of_what_does_not_fit_a_part_is_found_however_it_is_read() {
        // With every read cached there would be no hits.
        let (found, cached) = shares(rounds(1_000, 60), 500);
        assert!(found > 0.2 && cached < 0.6, "{found} of {cached}");
        let mut state = 1_u64;
        let random = std::iter::from_fn(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            Some((state >> 33) % 1_000)
        });
        let (found, cached) = shares(random.take(60_000), 500);
        assert!(found > 0.4 && cached < 0.9, "{found} of {cached}");
    }

    #[test]
    fn what_mostly_fits_is_mostly_found_from_the_first_reads_on_and_after_the_cache_was_emptied() {
        let mut state = 1_u64;
        let mut random = move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % 500
        };
        let first: Vec<u64> = (0..4_500).map(&mut random).collect();
        let (found, _) = shares(first.iter().copied(), 320);
        assert!(found > 0.4, "{found}");
        // Other reads evict everything.
        let again = first.iter().copied().chain(10_000..10_700).chain(first.iter().copied());
        let (found, _) = shares(again, 320);
        assert!(found > 0.35, "{found}");
    }

    #[test]
    fn a_page_cache_that_was_emptied_fills_again() {
        let reads = rounds(300, 40).chain(rounds(300, 60).map(|piece| piece + 1_000));
        let (found, _) = shares(reads, 400);
        assert!(found > 0.6, "{found}");
    }

    /// Reads pages of a data set at random through a page cache of `pages_max`. Returns the parts of the last
    /// half that were found and that went through the cache.
    fn scattered(pages: u64, pages_max: usize, reads: u64) -> (f64, f64) {
        let policy = ScatteredReads::default();
        // Pages that are read least recently go first, roughly: in order of entry, as with a clock.
        let (mut held, mut order) = (std::collections::BTreeSet::new(), VecDeque::new());
        let (mut found, mut cached, mut state) = (0.0, 0.0, 7_u64);
        for n in 0..reads {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = (state >> 33) % pages;
            let is_found = held.contains(&page);
            let is_cached = policy.is_cached(FileId(3), page * PAGE_BYTES + 77);
            let is_found = is_found && is_cached;
            if is_cached {
                policy.note(FileId(3), page * PAGE_BYTES + 77, is_found);
            }
            if !is_found && is_cached {
                held.insert(page);
                order.push_back(page);
                if order.len() > pages_max
                    && let Some(oldest) = order.pop_front()
                {
                    held.remove(&oldest);
                }
            }
            if 2 * n >= reads {
                found += f64::from(is_found);
                cached += f64::from(is_cached);
            }
        }
        (2.0 * found / reads as f64, 2.0 * cached / reads as f64)
    }

    #[test]
    fn scattered_reads_bypass_a_page_cache_only_while_it_loses_what_they_read() {
        // All fits: next to nothing bypasses, from the first read on.
        assert!(scattered(100_000, 120_000, 300_000).1 > 0.999);
        // Read once each.
        let policy = ScatteredReads::default();
        (0..400_000).for_each(|page| policy.note(FileId(1), page * PAGE_BYTES, false));
        assert!((0..400_000).all(|page| policy.is_cached(FileId(1), page * PAGE_BYTES)));
        // A tenth fits: most bypass it, and at least as many are found as if none did.
        let (found, cached) = scattered(200_000, 20_000, 3_000_000);
        assert!(cached < 0.3 && found > 0.09, "{found} of {cached}");
        // Half fits: as good as without a policy.
        let (found, _) = scattered(100_000, 50_000, 1_500_000);
        assert!(found > 0.4, "{found}");
    }
}
