//! One store made slower under load, and fast again: leaders of the store, moves and throughput.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) const FACTOR: u64 = 10;
const SLICES_PER_SECOND: f64 = 10.0;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Times {
    pub before: Duration,
    pub slow: Duration,
    pub after: Duration,
}

impl Times {
    pub(super) fn whole(&self) -> Duration {
        self.before + self.slow + self.after
    }
}

#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub at: Duration,
    pub leaders: BTreeMap<u64, u64>,
}

impl Sample {
    /// Reads the rows of `stele ctl regions`. A region without a leader is left out.
    pub(super) fn of(at: Duration, regions: &[Value]) -> Self {
        let leader = |row: &Value| Some((row["region"].as_u64()?, row["leader"].as_u64()?));
        Self { at, leaders: regions.iter().filter_map(leader).collect() }
    }

    fn led_by(&self, store: u64) -> usize {
        self.leaders.values().filter(|leader| **leader == store).count()
    }
}

pub(super) fn summary(samples: &[Sample], curve: &[f64], store: u64, times: Times) -> Value {
    let (slow, fast) = (times.before, times.before + times.slow);
    let led = |from: Duration, to: Duration| {
        let within = samples.iter().filter(move |sample| sample.at >= from && sample.at < to);
        within.map(move |sample| (sample.at, sample.led_by(store)))
    };
    let led_before = led(Duration::ZERO, slow).next_back().map_or(0, |(_, led)| led);
    let gone = led(slow, fast).find(|(_, led)| *led == 0).map(|(at, _)| at - slow);
    // Half of the former leaders: afterwards the even share of the store may be another.
    let back = led(fast, times.whole()).find(|(_, led)| led * 2 >= led_before.max(1));
    let half = |from: Duration, length: Duration| mean(curve, from + length / 2, from + length);
    let (before, during) = (mean(curve, Duration::ZERO, slow), half(slow, times.slow));
    json!({
        "leaders_before": led_before,
        // The whole time if some stayed.
        "leaders_gone_s": gone.unwrap_or(times.slow).as_secs_f64(),
        "leaders_left": led(slow, fast).next_back().map_or(0, |(_, led)| led),
        "leaders_back_s": back.map_or(times.after, |(at, _)| at - fast).as_secs_f64(),
        "leaders_moved_most": moves(samples).values().max().copied().unwrap_or(0),
        "operations_before": before,
        "operations_slow": during,
        "operations_after": half(fast, times.after),
    })
}

fn mean(curve: &[f64], from: Duration, to: Duration) -> f64 {
    let slice = |at: Duration| (at.as_secs_f64() * SLICES_PER_SECOND) as usize;
    let (from, to) = (slice(from).min(curve.len()), slice(to).min(curve.len()));
    let part = curve.get(from..to).unwrap_or_default();
    part.iter().sum::<f64>() / (part.len().max(1) as f64) * SLICES_PER_SECOND
}

fn moves(samples: &[Sample]) -> BTreeMap<u64, u64> {
    let mut counts = BTreeMap::new();
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in samples {
        for (region, leader) in &sample.leaders {
            let earlier = last.insert(*region, *leader);
            if earlier.is_some_and(|earlier| earlier != *leader) {
                *counts.entry(*region).or_default() += 1;
            }
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn sample(second: u32, leaders: &[u64]) -> Sample {
        Sample { at: SECOND * second, leaders: (1..).zip(leaders.iter().copied()).collect() }
    }

    #[test]
    fn times_and_moves_are_read_from_the_samples() {
        let times = Times { before: SECOND * 2, slow: SECOND * 4, after: SECOND * 4 };
        let samples = [
            sample(1, &[1, 3, 3]),
            sample(2, &[1, 3, 3]),
            sample(3, &[1, 2, 3]),
            sample(4, &[1, 2, 1]),
            sample(7, &[1, 2, 1]),
            sample(8, &[1, 3, 1]),
        ];
        let curve: Vec<f64> = (0..100).map(|at| f64::from(at / 10)).collect();
        let found = summary(&samples, &curve, 3, times);
        let expected = json!({
            "leaders_before": 2, "leaders_gone_s": 2.0, "leaders_left": 0, "leaders_back_s": 2.0,
            "leaders_moved_most": 2,
            "operations_before": 5.0, "operations_slow": 45.0, "operations_after": 85.0,
        });
        assert_eq!(found, expected);
    }

    #[test]
    fn a_store_that_keeps_leaders_has_the_whole_time() {
        let times = Times { before: SECOND, slow: SECOND * 3, after: SECOND * 2 };
        let samples = [sample(0, &[3]), sample(2, &[3]), sample(5, &[2])];
        let found = summary(&samples, &[], 3, times);
        assert_eq!((&found["leaders_gone_s"], &found["leaders_left"]), (&json!(3.0), &json!(1)));
        assert_eq!(
            (&found["leaders_back_s"], &found["operations_slow"]),
            (&json!(2.0), &json!(0.0))
        );
    }

    #[test]
    fn a_region_without_a_leader_has_not_moved() {
        let rows = [json!({"region": 1, "leader": 2}), json!({"region": 2, "leader": null})];
        let without = Sample::of(SECOND, &rows);
        assert_eq!(without.leaders, BTreeMap::from([(1, 2)]));
        let samples = [sample(0, &[2, 2]), without, sample(3, &[2, 2])];
        assert!(moves(&samples).is_empty());
    }
}
