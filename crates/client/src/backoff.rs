//! Retries of one call: their deadline, and the pauses between them.

use crate::Options;
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_types::{Error, Prng, Result};
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// No pause, except after repeated redirections.
    None,
    /// Regions or leaders are changing: 2 ms, growing to at most 50 ms while an election may be going
    /// on, afterwards to at most 500 ms.
    Region,
    /// The server sheds load: the time that it requests, or 50 ms growing to at most 2 s.
    Busy(Duration),
}

/// Redirections that a call follows without a pause: before its first one, and after each later one. A
/// peer that was reached after a pause knows the new leader, or still names the old one.
const REDIRECTIONS_AT_FIRST: u32 = 3;
const REDIRECTIONS_AFTER_A_PAUSE: u32 = 1;
/// Number of tries after which the region is looked up again, whatever the hints say.
const TRIES_PER_LOOKUP: u32 = 6;

/// Most milliseconds of a pause while regions or leaders change: for [`LEADERLESS_AFTER`] that of a
/// call that finds the new leader soon after its election, then that of one among many that wait for a
/// cluster without a quorum.
const CHANGE_PAUSE_MS_MAX: u64 = 50;
const LEADERLESS_PAUSE_MS_MAX: u64 = 500;
/// Time after a call's first pause. It is longer than two failed elections with the longest usual tick.
const LEADERLESS_AFTER: Duration = Duration::from_secs(2);

/// Time after which a call reports that it waits for a quorum.
const WAIT_REPORTED_AFTER: Duration = Duration::from_secs(2);
/// Last words of a node's statement that too few voters are up.
const NO_QUORUM: &str = ": no quorum";
/// Words of a node before that statement.
const NO_LEADER: &str = "no leader: ";

/// Returns the statement in a reason that too few voters are up, without the node and what other
/// nodes said.
fn quorum_of(reason: &str) -> Option<&str> {
    let end = reason.find(NO_QUORUM)? + NO_QUORUM.len();
    let before = reason.get(..end)?;
    let start = before.rfind(NO_LEADER).map_or(0, |at| at + NO_LEADER.len());
    before.get(start..)
}

/// Returns the reason to keep of two nodes' reasons: the later one, unless only the earlier one tells
/// that too few voters are up.
pub(crate) fn more_telling(earlier: String, later: String) -> String {
    match quorum_of(&earlier).is_some() && quorum_of(&later).is_none() {
        true => earlier,
        false => later,
    }
}

pub(crate) struct Tries {
    deadline: Instant,
    started: Instant,
    count: u32,
    waits: u32,
    waiting_since: Option<Instant>,
    /// Tries without a pause since the last pause.
    unpaused: u32,
    /// Whether an attempt may have taken effect.
    is_ambiguous: bool,
    /// Whether the last attempt sent or wanted too much for one message or entry.
    is_too_long: bool,
    last: String,
    /// Last statement that too few voters are up, until a node has answered for the placement group.
    /// Connections to the nodes that are down fail in between: that is its effect.
    quorum: Option<String>,
    on_wait: Option<fn(&str)>,
}

impl Tries {
    pub(crate) fn new(options: &Options) -> Self {
        let started = Instant::now();
        Self {
            deadline: started + options.timeout,
            started,
            count: 0,
            waits: 0,
            waiting_since: None,
            unpaused: 0,
            is_ambiguous: false,
            is_too_long: false,
            last: String::new(),
            quorum: None,
            on_wait: options.on_wait,
        }
    }

    pub(crate) fn found_leader(&mut self) {
        self.quorum = None;
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub(crate) fn of_part(&self) -> Self {
        Self {
            count: 0,
            waits: 0,
            waiting_since: None,
            unpaused: 0,
            is_ambiguous: false,
            is_too_long: false,
            last: String::new(),
            quorum: None,
            ..*self
        }
    }

    /// Continues with a part of the call for which an attempt may have taken effect, or none.
    pub(crate) fn continue_with(&mut self, is_ambiguous: bool) {
        self.is_ambiguous = is_ambiguous;
    }

    pub(crate) fn is_ambiguous(&self) -> bool {
        self.is_ambiguous
    }

    /// Records that an attempt may have taken effect: the call then does not end as if it had not.
    pub(crate) fn note_ambiguous(&mut self) {
        self.is_ambiguous = true;
    }

    /// Records that the call fails because it sends or wants too much at once.
    pub(crate) fn note_too_long(&mut self) {
        self.is_too_long = true;
    }

    /// Returns whether the call failed because it sent or wanted too much at once, and forgets it: the
    /// caller tries less.
    pub(crate) fn take_too_long(&mut self) -> bool {
        std::mem::take(&mut self.is_too_long)
    }

    /// Returns whether the region must be looked up again, because following hints did not succeed.
    pub(crate) fn is_lookup_due(&self) -> bool {
        self.count > 0 && self.count.is_multiple_of(TRIES_PER_LOOKUP)
    }

    /// Waits before the next try. Fails if the deadline would pass. An attempt that the deadline cut off
    /// says less than the one before it, of which the reason stays.
    pub(crate) async fn pause(&mut self, pause: Pause, reason: impl Into<String>) -> Result<()> {
        if self.last.is_empty() || !self.left().is_zero() {
            self.last = reason.into();
        }
        if let Some(quorum) = quorum_of(&self.last) {
            self.quorum = Some(quorum.to_owned());
        }
        if let (Some(quorum), true) = (&self.quorum, self.started.elapsed() >= WAIT_REPORTED_AFTER)
            && let Some(on_wait) = self.on_wait.take()
        {
            on_wait(&format!("{quorum}; trying for another {} s", self.left().as_secs()));
        }
        self.count += 1;
        let duration = self.duration(pause);
        if duration >= self.left() {
            return Err(self.timeout_error());
        }
        self.unpaused += 1;
        if !duration.is_zero() {
            self.waits += 1;
            self.unpaused = 0;
            self.waiting_since.get_or_insert_with(Instant::now);
            tokio::time::sleep(duration).await;
        }
        Ok(())
    }

    pub(crate) fn timeout_error(&mut self) -> Error {
        let seconds = self.started.elapsed().as_secs_f64();
        let kept = self.quorum.as_ref();
        // bug client.connection_named: let kept = None;
        let reason = kept.unwrap_or(&self.last);
        let detail = format!("{reason} (after {seconds:.1} s)");
        self.final_error(Error::Unavailable(detail))
    }

    /// Returns the error with which the call ends: `Undetermined` if an earlier try may have taken
    /// effect, because the last try's error says nothing about it.
    pub(crate) fn final_error(&mut self, error: Error) -> Error {
        self.is_ambiguous |= matches!(error, Error::Undetermined(_));
        // bug client.forget_ambiguity: always
        if !self.is_ambiguous {
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
        let redirections = match self.waits {
            0 => REDIRECTIONS_AT_FIRST,
            _ => REDIRECTIONS_AFTER_A_PAUSE,
        };
        let waited = self.waiting_since.map_or(Duration::ZERO, |since| since.elapsed());
        let change_ms_max = match waited < LEADERLESS_AFTER {
            true => CHANGE_PAUSE_MS_MAX,
            false => LEADERLESS_PAUSE_MS_MAX,
        };
        match pause {
            Pause::None if self.unpaused < redirections => Duration::ZERO,
            Pause::None | Pause::Region => grown(2, change_ms_max),
            Pause::Busy(requested) if !requested.is_zero() => requested + grown(1, 50),
            Pause::Busy(_) => grown(50, 2_000),
        }
    }
}

thread_local! {
    /// Random part of the pauses of this thread's calls.
    static RNG: RefCell<Prng> = RefCell::new(Prng::new(any_seed()));
}

/// Makes the pauses of this thread's calls those of a seed.
pub(crate) fn seed_pauses(seed: u64) {
    RNG.with_borrow_mut(|rng| *rng = Prng::new(seed));
}

/// Returns a time between half of `whole` and `whole`, so that callers that failed together do not
/// retry together.
fn jitter(whole: u64) -> u64 {
    RNG.with_borrow_mut(|rng| whole - rng.below(whole / 2 + 1))
}

/// Returns a seed that differs between threads and between processes.
fn any_seed() -> u64 {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let process = u64::from(std::process::id()) << 32;
    since.as_nanos() as u64 ^ process ^ THREADS.fetch_add(1, Relaxed) << 56
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    fn tries(timeout: Duration) -> Tries {
        Tries::new(&Options { timeout, ..Options::default() })
    }

    #[tokio::test]
    async fn a_call_that_waits_for_a_quorum_names_it_and_not_the_connection_that_failed_last() {
        let mut tries = tries(Duration::from_millis(300));
        let refused = "b:1: tcp connect error";
        let quorum = "1 of 2 voters of region 1 is up: no quorum";
        let both = format!("{refused}; a:1: no leader: {quorum}; c:1: no response");
        tries.pause(Pause::Region, both).await.unwrap();
        let error = loop {
            if let Err(error) = tries.pause(Pause::Region, refused).await {
                break error.to_string();
            }
        };
        assert!(error.contains(quorum) && !error.contains("connect"), "{error}");
        tries.found_leader();
        assert!(tries.timeout_error().to_string().contains(refused));
        let of_two = |earlier: &str, later: &str| more_telling(earlier.into(), later.into());
        let stated = format!("no leader: {quorum}");
        assert_eq!(of_two(&stated, refused), stated);
        assert_eq!(of_two(refused, &stated), stated);
        assert_eq!(of_two("no leader", refused), refused);
    }

    #[tokio::test]
    async fn an_attempt_that_the_deadline_cuts_off_does_not_hide_the_reason_before_it() {
        let mut tries = tries(Duration::from_secs(20));
        tries.pause(Pause::None, "b:1: no response").await.unwrap();
        tries.pause(Pause::None, "the leader is new").await.unwrap();
        tries.deadline = Instant::now();
        let error = tries.pause(Pause::Region, "b:1: no response").await.unwrap_err().to_string();
        assert!(error.contains("is new") && !error.contains("no response"), "{error}");
        let mut first = Tries { deadline: Instant::now(), ..self::tries(Duration::ZERO) };
        let error = first.pause(Pause::Region, "b:1: no response").await.unwrap_err().to_string();
        assert!(error.contains("no response"), "{error}");
    }

    #[tokio::test]
    async fn a_wait_for_a_quorum_is_reported_once_after_2_s_and_no_other_wait_is() {
        static REPORTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let on_wait: fn(&str) = |text| REPORTED.lock().push(text.to_owned());
        let options = Options { on_wait: Some(on_wait), ..Options::default() };
        for reason in ["no leader", "no leader: 2 of 5 voters of region 1 are up: no quorum"] {
            let mut tries = Tries::new(&options);
            tries.pause(Pause::Region, reason).await.unwrap();
            assert!(REPORTED.lock().is_empty(), "2 s are not over");
            tries.started -= WAIT_REPORTED_AFTER;
            tries.deadline -= WAIT_REPORTED_AFTER;
            tries.pause(Pause::Region, "b:1: tcp connect error").await.unwrap();
            tries.pause(Pause::Region, reason).await.unwrap();
        }
        let text = "2 of 5 voters of region 1 are up: no quorum; trying for another 17 s";
        assert_eq!(*REPORTED.lock(), [text]);
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_grow_and_end_at_the_deadline() {
        let mut tries = tries(Duration::from_millis(120));
        let mut pauses = 0;
        let error = loop {
            match tries.pause(Pause::Region, "no leader").await {
                Ok(()) => pauses += 1,
                Err(error) => break error,
            }
        };
        assert!((4..=8).contains(&pauses), "{pauses}");
        assert!(matches!(&error, Error::Unavailable(text) if text.contains("no leader")));
        assert!(tries.started.elapsed() < Duration::from_millis(120));
    }

    #[tokio::test]
    async fn once_an_attempt_may_have_acted_no_end_says_it_has_not() {
        let mut tries = tries(Duration::ZERO);
        tries.note_ambiguous();
        let error = tries.pause(Pause::Region, "gone").await.unwrap_err();
        assert!(matches!(error, Error::Undetermined(_)), "{error}");
        let refused = tries.final_error(Error::Refused("no".into()));
        assert!(matches!(refused, Error::Undetermined(_)), "{refused}");
    }

    /// Time is simulated: each pause takes exactly as long as it was chosen.
    #[tokio::test(start_paused = true)]
    async fn a_call_asks_for_a_new_leader_every_50_ms_for_2_s_and_every_500_ms_later() {
        for pause in [Pause::Region, Pause::None] {
            let mut tries = tries(Duration::from_secs(20));
            let started = Instant::now();
            let mut pauses = Vec::new();
            loop {
                let before = Instant::now();
                let Ok(()) = tries.pause(pause, "no leader").await else { break };
                pauses.push((before - started, before.elapsed()));
            }
            let longest = |until: Duration, from: Duration| {
                let those = pauses.iter().filter(|(at, _)| (from..until).contains(at));
                those.map(|(_, pause)| pause.as_millis() as u64).max().unwrap_or_default()
            };
            let (none, all) = (Duration::ZERO, Duration::from_secs(20));
            let early = longest(LEADERLESS_AFTER, none);
            assert!((26..=CHANGE_PAUSE_MS_MAX).contains(&early), "{pauses:?}");
            let late = longest(all, LEADERLESS_AFTER + Duration::from_millis(50));
            assert!((300..=LEADERLESS_PAUSE_MS_MAX).contains(&late), "{pauses:?}");
            assert!(pauses.len() < 300, "a cluster without leaders gets few calls: {pauses:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_is_reached_after_a_pause_redirects_once_without_another() {
        let mut tries = tries(Duration::from_secs(5));
        let mut paused = Vec::new();
        for pause in [Pause::Region, Pause::None, Pause::None, Pause::None] {
            let before = Instant::now();
            tries.pause(pause, "not leader").await.unwrap();
            paused.push(!before.elapsed().is_zero());
        }
        assert_eq!(paused, [true, false, true, false]);
    }

    #[tokio::test]
    async fn redirections_in_circles_wait() {
        let mut tries = tries(Duration::from_secs(5));
        let started = Instant::now();
        for _ in 0..10 {
            tries.pause(Pause::None, "not leader").await.unwrap();
        }
        assert!(started.elapsed() > Duration::from_millis(20));
    }
}
