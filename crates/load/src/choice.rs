//! Choice of the record for an operation (Cooper et al., Benchmarking Cloud Serving Systems with
//! YCSB, 2010, section 4).

use crate::args::{Distribution, Load, Workload};
use stele_types::Prng;

/// Mixes the bits of a number, one to one (the output function of splitmix64).
pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns the requested distribution, or else that of the workload.
pub fn distribution(load: &Load) -> Distribution {
    load.distribution.unwrap_or(match load.workload {
        Workload::D => Distribution::Latest,
        Workload::Load | Workload::Update => Distribution::Uniform,
        _ => Distribution::Zipfian,
    })
}

/// Rule that chooses among the existing records.
#[derive(Clone, Debug)]
pub enum Choice {
    /// All with the same probability.
    Uniform,
    /// Few much more often, scattered over the key space.
    Zipfian(Zipf),
    /// Recently inserted ones more often.
    Latest(Zipf),
    /// Shares, from 0 to 1, of the records that are hot and of the operations on them.
    Hotspot {
        /// Hot share of the records.
        records: f64,
        /// Share of the operations on them.
        operations: f64,
    },
}

impl Choice {
    /// Returns the rule of a load.
    pub fn new(load: &Load) -> Self {
        match distribution(load) {
            Distribution::Uniform => Self::Uniform,
            Distribution::Zipfian => Self::Zipfian(Zipf::new(load.records)),
            Distribution::Latest => Self::Latest(Zipf::new(load.records)),
            Distribution::Hotspot => {
                Self::Hotspot { records: load.hot_records, operations: load.hot_operations }
            }
        }
    }

    /// Draws one of the records 0..`records`.
    pub fn draw(&self, prng: &mut Prng, records: u64) -> u64 {
        let drawn = match self {
            Self::Uniform => prng.below(records),
            // Popular records are scattered over the key space.
            Self::Zipfian(zipf) => mix(zipf.rank(prng)) % records.max(1),
            Self::Latest(zipf) => records.saturating_sub(1).saturating_sub(zipf.rank(prng)),
            Self::Hotspot { records: share, operations } => {
                let hot = ((records as f64 * share) as u64).clamp(1, records.max(1));
                if prng.unit() < *operations {
                    prng.below(hot)
                } else {
                    hot + prng.below(records.saturating_sub(hot))
                }
            }
        };
        drawn.min(records.saturating_sub(1))
    }
}

/// Generator of ranks by Zipf's law with θ = 0.99 (Gray et al., Quickly Generating Billion-Record
/// Synthetic Databases, 1994, section 3.2).
#[derive(Clone, Debug)]
pub struct Zipf {
    items: f64,
    zeta: f64,
    eta: f64,
}

const THETA: f64 = 0.99;

impl Zipf {
    /// Creates the distribution over ranks below `items`.
    pub fn new(items: u64) -> Self {
        let zeta_of = |n: u64| (1..=n).map(|i| (i as f64).powf(-THETA)).sum::<f64>();
        let zeta = zeta_of(items);
        let n = items as f64;
        let eta = (1.0 - (2.0 / n).powf(1.0 - THETA)) / (1.0 - zeta_of(2) / zeta);
        Self { items: n, zeta, eta }
    }

    /// Draws a rank; 0 is the most popular.
    pub fn rank(&self, prng: &mut Prng) -> u64 {
        let u = prng.unit();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5f64.powf(THETA) {
            return 1;
        }
        let alpha = 1.0 / (1.0 - THETA);
        let rank = self.items * (self.eta * u - self.eta + 1.0).powf(alpha);
        (rank as u64).min(self.items as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share_of_top(choice: &Choice, records: u64, top: usize) -> f64 {
        let mut prng = Prng::new(7);
        let mut counts = vec![0u64; records as usize];
        for _ in 0..100_000 {
            counts[choice.draw(&mut prng, records) as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts[..top].iter().sum::<u64>() as f64 / 100_000.0
    }

    #[test]
    fn distributions_have_their_shape() {
        let zipf = share_of_top(&Choice::Zipfian(Zipf::new(1000)), 1000, 100);
        assert!((0.55..0.8).contains(&zipf), "top tenth of zipfian takes {zipf}");
        let uniform = share_of_top(&Choice::Uniform, 1000, 100);
        assert!(uniform < 0.15, "top tenth of uniform takes {uniform}");
        let hot = Choice::Hotspot { records: 0.2, operations: 0.8 };
        let hot = share_of_top(&hot, 1000, 200);
        assert!((0.78..0.84).contains(&hot), "hot fifth takes {hot}");
    }

    #[test]
    fn latest_prefers_the_newest_and_stays_inside() {
        let choice = Choice::Latest(Zipf::new(1000));
        let mut prng = Prng::new(3);
        let drawn: Vec<u64> = (0..1000).map(|_| choice.draw(&mut prng, 1500)).collect();
        assert!(drawn.iter().all(|&record| record < 1500));
        assert!(drawn.iter().filter(|&&record| record >= 1490).count() > 300);
        assert_eq!(choice.draw(&mut prng, 1), 0);
    }
}
