//! Network model.

use std::collections::BTreeSet;
use stele_types::Prng;

/// Network between stores. Times are in nanoseconds, probabilities in 1/1000.
#[derive(Clone, Debug)]
pub(crate) struct Network {
    /// Directed ways (from, to) on which nothing arrives.
    pub cut: BTreeSet<(u64, u64)>,
    pub lost_permille: u64,
    pub doubled_permille: u64,
    /// Least and greatest delay.
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
    /// Draws the delay of each copy of a message; none, one or two copies arrive.
    pub(crate) fn deliveries(&self, prng: &mut Prng, way: (u64, u64)) -> Vec<u64> {
        if self.cut.contains(&way) || prng.below(1000) < self.lost_permille {
            return Vec::new();
        }
        let copies = 1 + usize::from(prng.below(1000) < self.doubled_permille);
        (0..copies).map(|_| self.delay(prng)).collect()
    }

    pub(crate) fn delay(&self, prng: &mut Prng) -> u64 {
        let (least, most) = self.delay_nanos;
        least + prng.below(most - least + 1)
    }

    pub(crate) fn is_open(&self, way: (u64, u64)) -> bool {
        !self.cut.contains(&way)
    }

    pub(crate) fn partition(&mut self, one: &[u64], other: &[u64]) {
        for a in one {
            for b in other {
                self.cut.insert((*a, *b));
                self.cut.insert((*b, *a));
            }
        }
    }

    /// Cuts the way from `from` to `to`; the other direction stays open.
    pub(crate) fn cut_one_way(&mut self, from: u64, to: u64) {
        self.cut.insert((from, to));
    }

    pub(crate) fn heal(&mut self) {
        self.cut.clear();
    }
}
