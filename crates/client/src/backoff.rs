//! The tries of one call: how long they go on, and the pauses between them.

use parking_lot::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_types::{Error, Prng, Result};
use tokio::time::Instant;

/// How long to wait before the next try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Not at all, unless tries go in circles.
    None,
    /// Regions or leaders are changing: 2 ms growing to 500 ms.
    Region,
    /// The server sheds load: as long as it said, or 50 ms growing to 2 s.
    Busy(Duration),
    /// A full device: 200 ms growing to 5 s.
    Disk,
}

/// Redirections followed at once; later ones wait.
const REDIRECTIONS_AT_ONCE: u32 = 3;
/// Tries after which a region is looked up anew, whatever the hints say.
const TRIES_PER_LOOKUP: u32 = 6;

/// One call's tries.
pub struct Tries {
    deadline: Instant,
    started: Instant,
    count: u32,
    waits: u32,
    /// Some attempt may have taken effect.
    is_ambiguous: bool,
    last: String,
}

impl Tries {
    /// Tries until `timeout` is over.
    pub fn new(timeout: Duration) -> Self {
        let started = Instant::now();
        let deadline = started + timeout;
        Self { deadline, started, count: 0, waits: 0, is_ambiguous: false, last: String::new() }
    }

    /// What is left of the time.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// An attempt may have taken effect: the call can't end as if it had not.
    pub fn may_have_acted(&mut self) {
        self.is_ambiguous = true;
    }

    /// Whether hints have been followed in circles, so that the region is to be looked up anew.
    pub fn is_lost(&self) -> bool {
        self.count > 0 && self.count.is_multiple_of(TRIES_PER_LOOKUP)
    }

    /// Waits before the next try. Fails when the deadline would pass.
    pub async fn pause(&mut self, pause: Pause, why: impl Into<String>) -> Result<()> {
        self.last = why.into();
        self.count += 1;
        let duration = self.duration(pause);
        if duration >= self.left() {
            return Err(self.out_of_time());
        }
        if !duration.is_zero() {
            self.waits += 1;
            tokio::time::sleep(duration).await;
        }
        Ok(())
    }

    /// What the call ends with once time is up.
    pub fn out_of_time(&self) -> Error {
        let seconds = self.started.elapsed().as_secs_f64();
        self.finally(Error::Unavailable(format!("{} (after {seconds:.1} s)", self.last)))
    }

    /// The error the call ends with: what is known of the last try says nothing of an earlier one
    /// that may have acted.
    pub fn finally(&self, error: Error) -> Error {
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
            Pause::None if self.count <= REDIRECTIONS_AT_ONCE => Duration::ZERO,
            Pause::None | Pause::Region => grown(2, 500),
            Pause::Busy(told) if !told.is_zero() => told + grown(1, 50),
            Pause::Busy(_) => grown(50, 2_000),
            Pause::Disk => grown(200, 5_000),
        }
    }
}

/// Between half of `whole` and all of it, so that callers that failed together do not come back
/// together.
fn jitter(whole: u64) -> u64 {
    static CHANCE: Mutex<Option<Prng>> = Mutex::new(None);
    let mut chance = CHANCE.lock();
    let chance = chance.get_or_insert_with(|| Prng::new(seed()));
    whole - chance.below(whole / 2 + 1)
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
        tries.may_have_acted();
        let error = tries.pause(Pause::Region, "gone").await.unwrap_err();
        assert!(matches!(error, Error::Undetermined(_)), "{error}");
        let refused = tries.finally(Error::Refused("no".into()));
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
