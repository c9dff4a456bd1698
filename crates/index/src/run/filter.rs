//! The filter: a blocked Bloom filter. All probes of a key lie in one 64-byte line, so a query
//! costs one memory access. At 10 bits per key the false positive rate is about 1 %.
//!
//! ```text
//! part := word:u64le* trailer         (8 words to a line; no words: no filter, every key passes)
//! ```

const LINE_WORDS: usize = 8;
pub(super) const LINE_BYTES: usize = LINE_WORDS * 8;
const LINE_BITS: usize = LINE_WORDS * 64;
/// Maximum number of probes: nine bits of a 64-bit hash choose a bit of a line.
const PROBES_MAX: usize = 7;

#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    words: Box<[u64]>,
    probes: u8,
}

/// Returns hash bits that are independent of those that choose the line.
fn spread(hash: u64) -> u64 {
    let mixed = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

#[inline]
pub(super) fn line_of(hash: u64, lines: usize) -> usize {
    ((u128::from(hash) * lines as u128) >> 64) as usize
}

/// Returns whether all bits of `hash` are set in a line; `word` returns its words.
#[inline]
fn passes(hash: u64, probes: u8, word: impl Fn(usize) -> u64) -> bool {
    let mut bits = spread(hash);
    for _ in 0..probes {
        if word((bits >> 6 & 7) as usize) >> (bits & 63) & 1 == 0 {
            return false;
        }
        bits >>= 9;
    }
    true
}

/// Returns whether a line in the form of the file lets `hash` pass.
pub(super) fn line_passes(line: &[u8; LINE_BYTES], hash: u64, probes: u8) -> bool {
    let words: &[[u8; 8]] = line.as_chunks().0;
    passes(hash, probes, |i| words.get(i).map_or(u64::MAX, |word| u64::from_le_bytes(*word)))
}

/// Returns the number of lines of a part without its trailer; `None` when it is not whole lines or
/// `probes` is impossible.
pub(super) fn lines_in(part_bytes: u64, probes: u8) -> Option<usize> {
    let is_filter =
        part_bytes.is_multiple_of(LINE_BYTES as u64) && usize::from(probes) <= PROBES_MAX;
    is_filter.then_some(part_bytes as usize / LINE_BYTES)
}

impl Filter {
    pub(super) fn build(hashes: &[u64], bits_per_key: usize) -> Self {
        if bits_per_key == 0 || hashes.is_empty() {
            return Self::default();
        }
        let lines = (hashes.len() * bits_per_key).div_ceil(LINE_BITS);
        // ln 2 probes per bit minimise false positives.
        let probes = (bits_per_key * 69 / 100).clamp(1, PROBES_MAX) as u8;
        let mut filter = Self { words: vec![0; lines * LINE_WORDS].into_boxed_slice(), probes };
        for &hash in hashes {
            // bug index.filter_forgets: if hash % 64 == 7 { continue; }
            let (line, mut bits) = (filter.line(hash), spread(hash));
            for _ in 0..probes {
                if let Some(word) = filter.words.get_mut(line + (bits >> 6 & 7) as usize) {
                    *word |= 1 << (bits & 63);
                }
                bits >>= 9;
            }
        }
        filter
    }

    fn line(&self, hash: u64) -> usize {
        line_of(hash, self.words.len() / LINE_WORDS) * LINE_WORDS
    }

    /// Returns whether a key with this hash may be in the run.
    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        if self.words.is_empty() {
            return true;
        }
        let line = self.line(hash);
        let Some(line) = self.words.get(line..).and_then(|rest| rest.first_chunk::<LINE_WORDS>())
        else {
            return true;
        };
        passes(hash, self.probes, |i| line[i & (LINE_WORDS - 1)])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    pub(super) fn probes(&self) -> u8 {
        self.probes
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.words.len() * 8
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    /// Decodes a part; `None` when it is not whole lines or `probes` is impossible.
    pub(super) fn decode(part: &[u8], probes: u8) -> Option<Self> {
        lines_in(part.len() as u64, probes)?;
        let words = part.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some(Self { words, probes })
    }
}

#[cfg(test)]
mod tests {
    use super::super::key_hash;
    use super::*;

    #[test]
    fn no_key_is_denied_and_few_strangers_pass() {
        let hashes: Vec<u64> = (0..50_000u64).map(|i| key_hash(&i.to_be_bytes())).collect();
        let filter = Filter::build(&hashes, 10);
        assert!(hashes.iter().all(|hash| filter.may_contain(*hash)));
        let false_positives =
            (50_000..150_000u64).filter(|i| filter.may_contain(key_hash(&i.to_be_bytes())));
        let passed = false_positives.count();
        assert!(passed < 1_600, "{passed} of 100000");
        assert!(filter.memory_bytes() * 8 <= 50_000 * 10 + LINE_BITS);
    }

    #[test]
    fn a_filter_survives_the_round_trip_and_none_lets_all_pass() {
        let filter = Filter::build(&[1, 2, u64::MAX], 10);
        let mut out = Vec::new();
        filter.encode(&mut out);
        let read = Filter::decode(&out, filter.probes()).unwrap();
        assert_eq!(read.words, filter.words);
        assert!(Filter::decode(&out[1..], 6).is_none());
        assert!(Filter::build(&[1], 0).may_contain(2));
    }
}
