//! Retries of one call: their deadline, and the pauses between them.

use parking_lot::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_types::{Error, Prng, Result};
use tokio::time::Instant;

/// Kind of pause before the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// No pause, except after repeated redirections.
    None,
    /// Regions or leaders are changing: 2 ms, growing to at most 500 ms.
    Region,
    /// The server sheds load: the time that it requests, or 50 ms growing to at most 2 s.
    Busy(Duration),
    /// A full device: 200 ms, growing to at most 5 s.
    Disk,
}

/// Number of redirections followed without a pause.
const REDIRECTIONS_WITHOUT_PAUSE: u32 = 3;
/// Number of tries after which the region is looked up again, whatever the hints say.
const TRIES_PER_LOOKUP: u32 = 6;

/// State of one call's tries.
pub struct Tries {
    deadline: Instant,
    started: Instant,
    count: u32,
    waits: u32,
    /// Whether an attempt may have taken effect.
    is_ambiguous: bool,
    last: String,
}

impl Tries {
    /// Starts the time limit.
    pub fn new(timeout: Duration) -> Self {
        let started = Instant::now();
        let deadline = started + timeout;
        Self { deadline, started, count: 0, waits: 0, is_ambiguous: false, last: String::new() }
    }

    /// Returns the time left until the deadline.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Records that an attempt may have taken effect: the call then does not end as if it had not.
    pub fn note_ambiguous(&mut self) {
        self.is_ambiguous = true;
    }

    /// Returns whether the region must be looked up again, because following hints did not succeed.
    pub fn is_lookup_due(&self) -> bool {
        self.count > 0 && self.count.is_multiple_of(TRIES_PER_LOOKUP)
    }

    /// Waits before the next try. Fails if the deadline would pass.
    pub async fn pause(&mut self, pause: Pause, reason: impl Into<String>) -> Result<()> {
        self.last = reason.into();
        self.count += 1;
        let duration = self.duration(pause);
        if duration >= self.left() {
            return Err(self.timeout_error());
        }
        if !duration.is_zero() {
            self.waits += 1;
            tokio::time::sleep(duration).await;
        }
        Ok(())
    }

    /// Returns the error of a call at its deadline.
    pub fn timeout_error(&self) -> Error {
        let seconds = self.started.elapsed().as_secs_f64();
        self.final_error(Error::Unavailable(format!("{} (after {seconds:.1} s)", self.last)))
    }

    /// Returns the error with which the call ends: `Undetermined` if an earlier try may have taken
    /// effect, because the last try's error says nothing about it.
    pub fn final_error(&self, error: Error) -> Error {
        if !self.is_ambiguous || stele_types::mutant::active("client.forget_ambiguity") {
            return error;
        }
        match error {
            Error::Unavailable(detail) | Error::Refused(detail) | Error::Invalid(detail) => {
                Error::Undetermined(detail)
            }
            other => other,
        }
    }

    fn duration(&self, pause: Pause) -> Duration {
        let grown = |first_ms: u64, last_ms: u64| {
            let whole = (first_ms << self.waits.min(12)).min(last_ms);
            Duration::from_millis(jitter(whole))
        };
        match pause {
            Pause::None if self.count <= REDIRECTIONS_WITHOUT_PAUSE => Duration::ZERO,
            Pause::None | Pause::Region => grown(2, 500),
            Pause::Busy(requested) if !requested.is_zero() => requested + grown(1, 50),
            Pause::Busy(_) => grown(50, 2_000),
            Pause::Disk => grown(200, 5_000),
        }
    }
}

/// Returns a time between half of `whole` and `whole`, so that callers that failed together do not
/// retry together.
fn jitter(whole: u64) -> u64 {
    static RNG: Mutex<Option<Prng>> = Mutex::new(None);
    let mut rng = RNG.lock();
    let rng = rng.get_or_insert_with(|| Prng::new(seed()));
    whole - rng.below(whole / 2 + 1)
}

fn seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pauses_grow_and_end_at_the_deadline() {
        let mut tries = Tries::new(Duration::from_millis(120));
        let mut pauses = 0;
        let error = loop {
            match tries.pause(Pause::Region, "no leader").await {
                Ok(()) => pauses += 1,
                Err(error) => break error,
            }
        };
        assert!((4..=8).contains(&pauses), "{pauses}");
        assert!(matches!(&error, Error::Unavailable(text) if text.contains("no leader")));
        assert!(tries.started.elapsed() < Duration::from_millis(150));
    }

    #[tokio::test]
    async fn once_an_attempt_may_have_acted_no_end_says_it_has_not() {
        let mut tries = Tries::new(Duration::ZERO);
        tries.note_ambiguous();
        let error = tries.pause(Pause::Region, "gone").await.unwrap_err();
        assert!(matches!(error, Error::Undetermined(_)), "{error}");
        let refused = tries.final_error(Error::Refused("no".into()));
        assert!(matches!(refused, Error::Undetermined(_)), "{refused}");
    }

    #[tokio::test]
    async fn redirections_in_circles_wait() {
        let mut tries = Tries::new(Duration::from_secs(5));
        let started = Instant::now();
        for _ in 0..10 {
            tries.pause(Pause::None, "not leader").await.unwrap();
        }
        assert!(started.elapsed() > Duration::from_millis(20));
    }
}
