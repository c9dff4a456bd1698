//! Data weights of stores (ALOR section 3.2): the share of all data that each store should hold,
//! and the comparison of levels: what a store holds, divided by its weight. All comparisons are
//! exact.
//!
//! Shares are proportional to the stores' speeds, as far as two caps allow. Invariants: no failure
//! domain holds more than one copy of the data, and no store more than its capacity. The stores that
//! are below their caps share the rest in proportion to their speeds.

/// Input of one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Operations a second; 0 counts as 1.
    pub speed: u64,
    /// Bytes that the store may hold; `u64::MAX` if unknown.
    pub capacity_bytes: u64,
    /// Number of the failure domain.
    pub domain: usize,
    /// The store must give data away: its weight is a millionth.
    pub is_nearly_full: bool,
}

/// Sum of all weights, if no capacity is exceeded and no store is nearly full.
pub(crate) const WEIGHTS_SUM: u64 = 1 << 32;
/// Divisor of the weight of a store that is nearly full (ALOR: a data weight of 10^-6).
const NEARLY_FULL_DIVISOR: u64 = 1_000_000;
/// Fraction bits of the level that the search raises.
const LEVEL_BITS: u32 = 40;

/// Returns the weights, in the order of `stores`; each is at least 1. `data_bytes`: bytes of all
/// copies together, which only capacities are compared with. `replicas`: copies of each region.
///
/// The result depends on `data_bytes` only where a capacity limits a store.
pub fn weights(stores: &[Share], data_bytes: u64, replicas: usize) -> Vec<u64> {
    let domain_count = stores.iter().map(|store| store.domain + 1).max().unwrap_or(0);
    let occupied = occupied_domains(stores, domain_count);
    let copies = replicas.min(occupied).max(1) as u64;
    // Rounded up, so that the domains together can hold everything.
    let domain_max = WEIGHTS_SUM.div_ceil(copies);
    // bug placement.domain_cap_ignored: let domain_max = WEIGHTS_SUM;
    let caps: Vec<u64> = stores.iter().map(|store| capacity_share(store, data_bytes)).collect();
    let wanted = u128::from(WEIGHTS_SUM);
    let level = least_level(wanted, |level| {
        domains(stores, &caps, domain_count, level).iter().map(|sum| (*sum).min(domain_max)).sum()
    });
    let mut out: Vec<u64> =
        stores.iter().zip(&caps).map(|(store, cap)| fill(store, *cap, level)).collect();
    let sums = domains(stores, &caps, domain_count, level);
    for (domain, _) in sums.iter().enumerate().filter(|(_, sum)| **sum > domain_max) {
        let here = |(store, _): &(&Share, &u64)| store.domain == domain;
        let within = least_level(u128::from(domain_max), |level| {
            stores.iter().zip(&caps).filter(here).map(|(s, cap)| fill(s, *cap, level)).sum()
        });
        for (at, (store, cap)) in stores.iter().zip(&caps).enumerate() {
            if store.domain == domain
                && let Some(share) = out.get_mut(at)
            {
                *share = fill(store, *cap, within);
            }
        }
    }
    out.iter().zip(stores).map(|(share, store)| finish(*share, store)).collect()
}

fn finish(share: u64, store: &Share) -> u64 {
    let keeps = !store.is_nearly_full;
    // bug placement.nearly_full_keeps_weight: let keeps = true;
    match keeps {
        true => share.max(1),
        false => (share / NEARLY_FULL_DIVISOR).max(1),
    }
}

fn occupied_domains(stores: &[Share], domain_count: usize) -> usize {
    let mut seen = vec![false; domain_count];
    for store in stores {
        if let Some(slot) = seen.get_mut(store.domain) {
            *slot = true;
        }
    }
    seen.iter().filter(|is_seen| **is_seen).count()
}

fn capacity_share(store: &Share, data_bytes: u64) -> u64 {
    // bug placement.capacity_ignored: always
    if store.capacity_bytes == u64::MAX {
        return WEIGHTS_SUM;
    }
    let share = u128::from(store.capacity_bytes) * u128::from(WEIGHTS_SUM);
    let share = share.checked_div(u128::from(data_bytes)).unwrap_or(u128::MAX);
    u64::try_from(share).unwrap_or(WEIGHTS_SUM).min(WEIGHTS_SUM)
}

/// Returns the share of a store when everything is filled up to `level`.
fn fill(store: &Share, cap: u64, level: u128) -> u64 {
    let share = (u128::from(store.speed.max(1)).saturating_mul(level)) >> LEVEL_BITS;
    u64::try_from(share).unwrap_or(u64::MAX).min(cap)
}

fn domains(stores: &[Share], caps: &[u64], domain_count: usize, level: u128) -> Vec<u64> {
    let mut out = vec![0_u64; domain_count];
    for (store, cap) in stores.iter().zip(caps) {
        if let Some(sum) = out.get_mut(store.domain) {
            *sum = sum.saturating_add(fill(store, *cap, level));
        }
    }
    out
}

/// Returns the least level at which `sum` reaches `wanted`; the greatest if none does. `sum` never
/// falls with the level.
fn least_level(wanted: u128, sum: impl Fn(u128) -> u64) -> u128 {
    // At this level every store with a speed of at least 1 reaches every cap.
    let (mut low, mut high) = (0_u128, u128::from(WEIGHTS_SUM) << LEVEL_BITS);
    while low < high {
        let middle = low + (high - low) / 2;
        match u128::from(sum(middle)) >= wanted {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    low
}

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

    pub(crate) fn is_at_least(self, other: Self) -> bool {
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
pub(crate) fn improves(from: Level, to: Level, amount: u64) -> bool {
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

    fn store(speed: u64, domain: usize) -> Share {
        Share { speed, capacity_bytes: u64::MAX, domain, is_nearly_full: false }
    }

    fn permille(weights: &[u64]) -> Vec<u64> {
        let sum: u64 = weights.iter().sum();
        weights.iter().map(|weight| (weight * 1000 + sum / 2) / sum).collect()
    }

    #[test]
    fn shares_follow_the_speeds_until_a_domain_or_a_store_is_at_its_cap() {
        // The paper's example: performance 3:3:2:2:1:1 on six nodes.
        let six: Vec<Share> =
            [3, 3, 2, 2, 1, 1].iter().enumerate().map(|(at, s)| store(*s, at)).collect();
        assert_eq!(permille(&weights(&six, 1 << 40, 3)), [250, 250, 167, 167, 83, 83]);
        // A fast node cannot hold more than one of three copies; the others share the rest by speed.
        let one: Vec<Share> =
            [100, 2, 2, 1, 1].iter().enumerate().map(|(at, s)| store(*s, at)).collect();
        assert_eq!(permille(&weights(&one, 1 << 40, 3)), [333, 222, 222, 111, 111]);
        // Three nodes hold all copies each, whatever their speeds.
        let three = [store(100, 0), store(10, 1), store(1, 2)];
        assert_eq!(permille(&weights(&three, 1 << 40, 3)), [333, 333, 333]);
        // Inside a capped domain the stores share by speed.
        let two_disks = [store(60, 0), store(30, 0), store(1, 1), store(1, 2), store(1, 3)];
        assert_eq!(permille(&weights(&two_disks, 1 << 40, 3)), [222, 111, 222, 222, 222]);
    }

    #[test]
    fn capacity_caps_a_store_and_what_it_cannot_take_is_shared_by_the_others() {
        let mut four: Vec<Share> = (0..4).map(|at| store(10, at)).collect();
        four[0].capacity_bytes = 100;
        assert_eq!(permille(&weights(&four, 1000, 3)), [100, 300, 300, 300]);
        // Too little capacity for everything: each store is at its cap.
        four.iter_mut().for_each(|store| store.capacity_bytes = 100);
        assert_eq!(permille(&weights(&four, 1000, 3)), [250, 250, 250, 250]);
    }

    #[test]
    fn a_nearly_full_store_keeps_a_millionth_of_its_weight() {
        let mut four: Vec<Share> = (0..4).map(|at| store(10, at)).collect();
        let before = weights(&four, 1000, 3);
        four[2].is_nearly_full = true;
        let after = weights(&four, 1000, 3);
        assert_eq!(after[2], before[2] / NEARLY_FULL_DIVISOR);
        assert_eq!((after[0], after[1], after[3]), (before[0], before[1], before[3]));
    }

    #[test]
    fn no_stores_and_stores_of_speed_zero_have_weights() {
        assert_eq!(weights(&[], 1000, 3), Vec::<u64>::new());
        assert_eq!(permille(&weights(&[store(0, 0), store(0, 1)], 0, 3)), [500, 500]);
    }

    #[test]
    fn weights_of_random_clusters_keep_the_caps_and_do_not_depend_on_the_amount_of_data() {
        let mut draw = Prng::new(7);
        for _ in 0..300 {
            let count = 1 + draw.below(30);
            let domain_count = 1 + draw.below(10);
            let replicas = 1 + draw.below(5) as usize;
            let stores: Vec<Share> = (0..count)
                .map(|_| Share {
                    speed: 1 << draw.below(20),
                    capacity_bytes: if draw.coin() { u64::MAX } else { 1 + draw.below(1 << 30) },
                    domain: draw.below(domain_count) as usize,
                    is_nearly_full: false,
                })
                .collect();
            let data_bytes = 1 + draw.below(1 << 33);
            let found = weights(&stores, data_bytes, replicas);
            let occupied: std::collections::BTreeSet<usize> =
                stores.iter().map(|store| store.domain).collect();
            let copies = replicas.min(occupied.len()) as u64;
            for domain in &occupied {
                let here = stores.iter().zip(&found).filter(|(s, _)| s.domain == *domain);
                // Each weight is at least 1, and the last step of the level may round up.
                let sum: u64 = here.clone().map(|(_, weight)| *weight).sum();
                let slack = 4 * here.count() as u64 + (WEIGHTS_SUM >> 16);
                assert!(sum <= WEIGHTS_SUM / copies + slack, "{stores:?} {found:?}");
            }
            for (store, weight) in stores.iter().zip(&found) {
                let bytes = u128::from(*weight) * u128::from(data_bytes) / u128::from(WEIGHTS_SUM);
                assert!(bytes <= u128::from(store.capacity_bytes).max(4), "{store:?} {weight}");
            }
            let unlimited: Vec<Share> =
                stores.iter().map(|s| Share { capacity_bytes: u64::MAX, ..*s }).collect();
            let doubled = weights(&unlimited, data_bytes * 2, replicas);
            assert_eq!(weights(&unlimited, data_bytes, replicas), doubled);
        }
    }

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
