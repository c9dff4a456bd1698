//! Pauses between attempts.

use std::time::Duration;
use stele_types::Prng;

/// Exponential backoff up to a bound, half of each pause random: nodes that lost the same peer do
/// not reconnect in step.
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
    rng: Prng,
}

impl Backoff {
    /// Creates the backoff; the first pause is `min`.
    pub(super) fn new(min: Duration, max: Duration, seed: u64) -> Self {
        Self { min, max, next: min, rng: Prng::new(seed) }
    }

    pub(super) fn pause(&mut self) -> Duration {
        let half = self.next / 2;
        self.next = (self.next * 2).min(self.max);
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(self.rng.below(nanos.saturating_add(1)))
    }

    /// Makes the next pause the longest: an attempt soon would change nothing.
    pub(super) fn use_longest(&mut self) {
        self.next = self.max;
    }

    /// Starts over after a successful attempt.
    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_bound_and_differ_by_chance() {
        let (min, max) = (Duration::from_millis(50), Duration::from_secs(2));
        let pauses = |seed| {
            let mut backoff = Backoff::new(min, max, seed);
            (0..12).map(|_| backoff.pause()).collect::<Vec<_>>()
        };
        let mut bound = min;
        for pause in pauses(1) {
            assert!(pause >= bound / 2 && pause <= bound, "{pause:?} of {bound:?}");
            bound = (bound * 2).min(max);
        }
        assert_eq!(pauses(1), pauses(1));
        assert_ne!(pauses(1), pauses(2));
    }
}
