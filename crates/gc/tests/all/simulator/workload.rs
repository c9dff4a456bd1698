//! Selection of the next key to update.

#[derive(Clone, Copy, Debug)]
pub(super) enum Keys {
    None,
    Uniform,
    /// `of_updates` go to `share` of the keys.
    Hot {
        share: f64,
        of_updates: f64,
    },
    /// Zipf by rejection inversion over scrambled ranks (YCSB's 0.99).
    Zipf {
        theta: f64,
    },
}

pub(super) struct Workload {
    keys: Keys,
    count: usize,
    state: u64,
    cumulative: Vec<f64>,
}

impl Workload {
    pub(super) fn new(keys: Keys, count: usize, seed: u64) -> Self {
        let mut cumulative = Vec::new();
        if let Keys::Zipf { theta } = keys {
            let mut sum = 0.0;
            cumulative.extend((1..=count).map(|rank| {
                sum += (rank as f64).powf(-theta);
                sum
            }));
        }
        Self { keys, count, state: seed.wrapping_mul(2).wrapping_add(1), cumulative }
    }

    fn uniform(&mut self) -> f64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub(super) fn inserts(&self) -> impl Iterator<Item = u32> + use<> {
        let count = self.count;
        (0..count).map(move |i| scramble(i, count))
    }

    pub(super) fn next(&mut self) -> u32 {
        let count = self.count;
        match self.keys {
            Keys::None => unreachable!("no updates"),
            Keys::Uniform => (self.uniform() * count as f64) as u32,
            Keys::Hot { share, of_updates } => {
                let hot = (share * count as f64) as usize;
                let in_hot = self.uniform() < of_updates;
                let at = self.uniform();
                let rank = if in_hot {
                    (at * hot as f64) as usize
                } else {
                    hot + (at * (count - hot) as f64) as usize
                };
                scramble(rank, count)
            }
            Keys::Zipf { .. } => {
                let total = self.cumulative.last().copied().unwrap_or(1.0);
                let at = self.uniform() * total;
                let rank = self.cumulative.partition_point(|&sum| sum < at);
                scramble(rank.min(count - 1), count)
            }
        }
    }
}

/// Permutes indexes, for counts that are powers of two.
fn scramble(i: usize, count: usize) -> u32 {
    (i.wrapping_mul(0x9e37_79b1) & (count - 1)) as u32
}
