//! What happens to messages on their way.

use std::collections::BTreeSet;
use stele_types::Prng;

/// A network between stores. Times are nanoseconds, chances are in 1000.
#[derive(Clone, Debug)]
pub struct Network {
    /// Ways (from, to) on which nothing arrives.
    pub cut: BTreeSet<(u64, u64)>,
    pub lost_permille: u64,
    pub doubled_permille: u64,
    /// Fastest and slowest way.
    pub delay_nanos: (u64, u64),
}

impl Default for Network {
    fn default() -> Self {
        Self {
            cut: BTreeSet::new(),
            lost_permille: 0,
            doubled_permille: 0,
            delay_nanos: (200_000, 1_000_000),
        }
    }
}

impl Network {
    /// How long each copy of a message takes; none, one or two of them arrive.
    pub fn deliveries(&self, prng: &mut Prng, way: (u64, u64)) -> Vec<u64> {
        if self.cut.contains(&way) || prng.below(1000) < self.lost_permille {
            return Vec::new();
        }
        let copies = 1 + usize::from(prng.below(1000) < self.doubled_permille);
        (0..copies).map(|_| self.delay(prng)).collect()
    }

    pub fn delay(&self, prng: &mut Prng) -> u64 {
        let (least, most) = self.delay_nanos;
        least + prng.below(most - least + 1)
    }

    pub fn is_open(&self, way: (u64, u64)) -> bool {
        !self.cut.contains(&way)
    }

    /// Nothing passes between the two groups.
    pub fn partition(&mut self, one: &[u64], other: &[u64]) {
        for a in one {
            for b in other {
                self.cut.insert((*a, *b));
                self.cut.insert((*b, *a));
            }
        }
    }

    /// Nothing passes from the first to the second; the way back stays open.
    pub fn cut_one_way(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }
}
