//! Data weights of stores (ALOR section 3.2): the share of all data that each store should hold.
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
pub const WEIGHTS_SUM: u64 = 1 << 32;
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

/// Returns the capacity as a share of all data.
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

/// Returns the sum of the shares in each domain.
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

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::Prng;

    fn store(speed: u64, domain: usize) -> Share {
        Share { speed, capacity_bytes: u64::MAX, domain, is_nearly_full: false }
    }

    /// Returns the weights in parts of a thousand of their sum.
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
}
