//! Comparison of levels: what a store holds, divided by its weight. All comparisons are exact.

/// What a store holds of something that is shared out, and its weight: the level is `held / weight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Amount that the store holds.
    pub held: u64,
    /// Weight of the store; at least 1.
    pub weight: u64,
}

impl Level {
    /// Returns the level after the store has received `amount`.
    pub fn with(self, amount: u64) -> Self {
        Self { held: self.held.saturating_add(amount), ..self }
    }

    /// Returns the level after the store has given `amount` away.
    pub fn without(self, amount: u64) -> Self {
        Self { held: self.held.saturating_sub(amount), ..self }
    }

    /// Whether this level is at least the other one.
    pub fn is_at_least(self, other: Self) -> bool {
        u128::from(self.held) * u128::from(other.weight)
            >= u128::from(other.held) * u128::from(self.weight)
    }

    /// Returns a sort key, ascending by level, with 32 bits after the point.
    pub fn key(self) -> u128 {
        (u128::from(self.held) << 32) / u128::from(self.weight.max(1))
    }

    /// Returns the level in thousandths of the mean; 0 if the mean is 0.
    pub fn permille(self, mean: Self) -> u64 {
        let part = u128::from(self.held) * u128::from(mean.weight);
        let whole = u128::from(mean.held) * u128::from(self.weight);
        // A level far above the mean is only shown.
        let part = part.saturating_mul(1000);
        part.checked_div(whole).map_or(0, |permille| u64::try_from(permille).unwrap_or(u64::MAX))
    }
}

/// Whether the move of `amount` brings the levels of two stores together (ALOR, equation 1):
/// `(S_from − amount) / W_from >= (S_to + amount) / W_to`.
///
/// Invariant: balancing ends: the sum of `S² / W` falls with every move that this allows, by at least
/// `amount² (1 / W_from + 1 / W_to)`. Amounts are at least 1, so that balancing ends. Equal levels
/// after the move are the best balance and lower the sum, too.
/// Test: `every_move_of_a_random_cluster_improves_it_and_balancing_ends_in_every_mode`.
pub fn improves(from: Level, to: Level, amount: u64) -> bool {
    let (after_from, after_to) = (from.without(amount), to.with(amount));
    // bug placement.move_rule_inverted: return after_to.is_at_least(after_from);
    amount <= from.held && after_from.is_at_least(after_to)
}

/// Whether `from` is above `to` by more than `percent` of the mean level. Sizes and rates that change
/// a little thus move nothing.
pub fn is_apart(from: Level, to: Level, mean: Level, percent: u64) -> bool {
    let high = u128::from(from.held) * u128::from(to.weight);
    let low = u128::from(to.held) * u128::from(from.weight);
    let Some(gap) = high.checked_sub(low) else { return false };
    let product = u128::from(from.weight) * u128::from(to.weight);
    let whole = product.checked_mul(u128::from(mean.held)).map(|whole| whole / 100);
    let whole = whole.and_then(|whole| whole.checked_mul(u128::from(percent)));
    // Weights and amounts that overflow are compared with fewer bits.
    let tolerance = match whole {
        Some(whole) => whole / u128::from(mean.weight.max(1)),
        None => product / u128::from(mean.weight.max(1)) * u128::from(mean.held / 100 * percent),
    };
    // bug placement.tolerance_ignored: let tolerance = 0;
    gap > tolerance
}

/// Whether a level is at most `percent` of the mean.
pub fn is_within(level: Level, mean: Level, percent: u64) -> bool {
    let level_part = (u128::from(level.held) * u128::from(mean.weight)).saturating_mul(100);
    let mean_part = u128::from(mean.held) * u128::from(level.weight);
    level_part <= mean_part.saturating_mul(u128::from(percent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::Prng;

    fn level(held: u64, weight: u64) -> Level {
        Level { held, weight }
    }

    #[test]
    fn a_move_needs_the_source_to_stay_at_least_as_high_as_the_target() {
        // (100 - 10) / 3 = 30 against (50 + 10) / 2 = 30.
        assert!(improves(level(100, 3), level(50, 2), 10));
        assert!(!improves(level(100, 3), level(51, 2), 10));
        assert!(!improves(level(5, 1), level(0, 1), 10), "more than the source holds");
        assert!(improves(level(6, 1), level(0, 1_000_000), 5));
    }

    #[test]
    fn levels_that_differ_by_the_tolerance_are_even() {
        let mean = level(200, 2);
        assert!(!is_apart(level(105, 1), level(100, 1), mean, 5));
        assert!(is_apart(level(106, 1), level(100, 1), mean, 5));
        assert!(!is_apart(level(100, 1), level(106, 1), mean, 5));
        let huge = level(u64::MAX, u64::MAX);
        assert!(!is_apart(huge, huge, huge, 5));
        assert!(is_within(level(110, 1), mean, 110) && !is_within(level(111, 1), mean, 110));
        assert_eq!(level(110, 1).permille(mean), 1100);
        assert_eq!(level(1, 0).permille(level(0, 0)), 0);
    }

    /// Returns the sum of S² / W, times the product of all weights, exactly for small numbers.
    fn sum_of_squares(stores: &[Level]) -> u128 {
        let product: u128 = stores.iter().map(|store| u128::from(store.weight)).product();
        let square = |store: &Level| {
            u128::from(store.held).pow(2) * (product / u128::from(store.weight.max(1)))
        };
        stores.iter().map(square).sum()
    }

    #[test]
    fn the_sum_of_squares_falls_with_every_move_and_balancing_ends() {
        let mut draw = Prng::new(11);
        for _ in 0..400 {
            let count = 2 + draw.below(6) as usize;
            let weights: Vec<u64> = (0..count).map(|_| 1 + draw.below(1000)).collect();
            let mut regions: Vec<(usize, u64)> = (0..draw.below(60))
                .map(|_| (draw.below(count as u64) as usize, 1 + draw.below(1 << 20)))
                .collect();
            let levels = |regions: &[(usize, u64)]| -> Vec<Level> {
                let held = |at| regions.iter().filter(|r| r.0 == at).map(|r| r.1).sum();
                weights.iter().enumerate().map(|(at, w)| level(held(at), *w)).collect()
            };
            let mut moves = 0;
            let mut now = levels(&regions);
            while let Some((region, to)) = (0..regions.len())
                .flat_map(|region| (0..count).map(move |to| (region, to)))
                .find(|(region, to)| {
                    let (from, amount) = regions[*region];
                    from != *to && improves(now[from], now[*to], amount)
                })
            {
                regions[region].0 = to;
                let next = levels(&regions);
                assert!(sum_of_squares(&next) < sum_of_squares(&now), "{now:?} {next:?}");
                now = next;
                moves += 1;
                assert!(moves < 100_000, "balancing does not end");
            }
        }
    }
}
