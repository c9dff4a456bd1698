use super::*;
use stele_types::{PeerRole, Prng, StoreId};

fn members(ids: &[u64]) -> Vec<Peer> {
    let peer = |id: &u64| Peer { id: PeerId(*id), store: StoreId(*id), role: PeerRole::Voter };
    ids.iter().map(peer).collect()
}

fn writes(writes: u64, counted_since: u64) -> Traffic {
    Traffic { writes, counted_since, ..Traffic::default() }
}

/// A region with three members, known for so long that it counts in full.
struct Region {
    heat: Heat,
    members: Vec<Peer>,
}

impl Region {
    fn new() -> Self {
        let mut region = Self { heat: Heat::default(), members: members(&[1, 2, 3]) };
        region.note(1, writes(0, 0), 0);
        region
    }

    fn note(&mut self, peer: u64, traffic: Traffic, second: u64) {
        self.heat.note(PeerId(peer), &traffic, &self.members, Millis(second * 1000));
    }

    fn writes_at(&self, second: u64) -> u64 {
        self.heat.at(Millis(second * 1000)).writes
    }
}

/// Time at which the tests count, in seconds: a new region counts as known for long.
const LATER: u64 = 6000;
/// Writes that a rate of 100 a second leaves behind.
const HUNDRED: u64 = 8656;

fn is_near(rate: u64, expected: u64) -> bool {
    rate.abs_diff(expected) <= expected / 50 + 1
}

#[test]
fn the_parts_that_are_left_halve_every_minute() {
    assert_eq!(kept(0), ONE);
    for (millis, share) in [(60_000, 2), (120_000, 4), (600_000, 1024)] {
        assert!(kept(millis).abs_diff(ONE / share) < ONE / share / 1_000_000, "{millis} ms");
    }
    assert_eq!(kept(u64::MAX), 0);
    let mut last = ONE;
    for millis in (1..200_000).step_by(7) {
        let now = kept(millis);
        assert!(now < last, "{millis} ms");
        last = now;
    }
}

#[test]
fn a_steady_rate_is_found_after_ten_seconds_and_kept() {
    let mut heat = Heat::default();
    let members = members(&[1]);
    for second in 0..=600 {
        let traffic = Traffic {
            written_bytes: second * 1_000_000_000,
            read_bytes: second * 7_000,
            writes: second * 300,
            reads: second * 20,
            counted_since: 5,
        };
        heat.note(PeerId(1), &traffic, &members, Millis(second * 1000));
        let rates = heat.at(Millis(second * 1000));
        let all = [rates.written_bytes, rates.read_bytes, rates.writes, rates.reads];
        let is_steady =
            all.into_iter().zip([1_000_000_000, 7_000, 300, 20]).all(|(a, b)| is_near(a, b));
        assert!(is_steady == (second >= 10), "second {second}: {rates:?}");
    }
}

#[test]
fn a_region_without_traffic_cools_with_and_without_reports() {
    let mut idle = Region::new();
    idle.note(1, writes(0, 5), LATER);
    idle.note(1, writes(HUNDRED, 5), LATER);
    let mut hibernating = Region { heat: idle.heat.clone(), members: idle.members.clone() };
    for second in LATER..LATER + 600 {
        idle.note(1, writes(HUNDRED, 5), second);
        let rate = idle.writes_at(second);
        assert!(rate.abs_diff(hibernating.writes_at(second)) <= 1, "second {second}");
    }
    for (minutes, rate) in [(0, 100), (1, 50), (2, 25), (5, 3), (8, 0)] {
        assert!(is_near(hibernating.writes_at(LATER + minutes * 60), rate), "{minutes} min");
    }
    hibernating.note(1, writes(HUNDRED, 5), LATER + 3600);
    assert_eq!(hibernating.writes_at(LATER + 3600), 0);
}

#[test]
fn a_lost_report_is_contained_in_the_next_and_a_repeated_one_adds_nothing() {
    let (mut all, mut some) = (Region::new(), Region::new());
    for total in [0, 3000, 5000, HUNDRED] {
        all.note(1, writes(total, 5), LATER);
    }
    for total in [0, 5000, 5000, HUNDRED, HUNDRED] {
        some.note(1, writes(total, 5), LATER);
    }
    assert_eq!(all.heat, some.heat);
    assert!(is_near(all.writes_at(LATER), 100));
}

#[test]
fn a_restarted_process_counts_from_zero_and_loses_nothing() {
    let mut region = Region::new();
    region.note(1, writes(1_000_000, 5), LATER);
    region.note(1, writes(1_000_000 + HUNDRED, 5), LATER);
    region.note(1, writes(HUNDRED, 9), LATER);
    assert!(is_near(region.writes_at(LATER), 200));
    // Two starts in one second: the totals are smaller.
    region.note(1, writes(HUNDRED / 2, 9), LATER);
    assert!(is_near(region.writes_at(LATER), 250));
}

#[test]
fn what_a_replica_counted_before_it_was_known_has_no_time_and_does_not_count() {
    let mut region = Region::new();
    region.note(1, writes(0, 5), LATER);
    region.note(1, writes(HUNDRED, 5), LATER);
    region.note(2, writes(1_000_000, 7), LATER);
    assert!(is_near(region.writes_at(LATER), 100), "heat outlasts the change of leaders");
    region.note(2, writes(1_000_000 + HUNDRED, 7), LATER);
    region.note(1, writes(2 * HUNDRED, 5), LATER);
    assert!(is_near(region.writes_at(LATER), 300));
}

#[test]
fn counts_of_an_earlier_version_are_added_as_they_are() {
    let mut region = Region::new();
    region.note(1, writes(HUNDRED / 2, 0), LATER);
    region.note(1, writes(HUNDRED / 2, 0), LATER);
    assert!(is_near(region.writes_at(LATER), 100));
}

#[test]
fn totals_of_replicas_that_left_are_forgotten() {
    let mut region = Region::new();
    for peer in 1..=1000 {
        region.members = members(&[peer, peer + 1, peer + 2]);
        region.note(peer, writes(peer, 5), LATER);
        assert!(region.heat.counters.len() <= 3);
    }
}

#[test]
fn absurd_counts_neither_overflow_nor_last() {
    let mut region = Region::new();
    region.note(1, writes(0, 5), LATER);
    for since in 6..2000 {
        region.note(1, writes(u64::MAX, since), LATER);
    }
    assert!(region.writes_at(LATER) > 1 << 40);
    assert!(region.writes_at(LATER + 4000) < 10);
}

#[test]
fn random_losses_and_repetitions_change_no_sum() {
    for seed in 0..100 {
        let mut draw = Prng::new(seed);
        let (mut region, mut totals, mut since) = (Region::new(), [0_u64; 4], [1_u64; 4]);
        (1..4).for_each(|peer| region.note(peer, writes(0, 1), LATER));
        let mut expected = 0;
        // Counts that were never reported end with their process.
        let mut unreported = [0; 4];
        for _ in 0..200 {
            let peer = 1 + draw.below(3) as usize;
            let count = draw.below(50);
            totals[peer] += count;
            unreported[peer] += count;
            if draw.below(20) == 0 {
                (totals[peer], since[peer], unreported[peer]) = (0, since[peer] + 1, 0);
            }
            for _ in 0..draw.below(3) {
                region.note(peer as u64, writes(totals[peer], since[peer]), LATER);
                expected += std::mem::take(&mut unreported[peer]);
            }
        }
        assert_eq!(region.heat.sums[2] >> FRACTION_BITS, expected, "seed {seed}");
    }
}
