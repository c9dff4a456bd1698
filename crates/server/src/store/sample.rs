//! Last state of a store that heartbeats, metrics and the status page show. Its device may hang: they
//! wait for a bounded time, and then show the state before.

use super::{Engine, StoreHandle};
use crate::tasks::caught;
use std::sync::Arc;
use std::time::Duration;
use stele_engine::{RepairStats, ScrubStats};
use stele_replica::{Changes, Collection, RegionReport};
use stele_storage::{EngineStats, LogStore, Space, StateMachine};
use stele_types::Error;
use tokio::sync::watch;

const ANSWER_MAX: Duration = Duration::from_millis(300);

/// State of a store's engine.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Sizes and amplification.
    pub stats: EngineStats,
    /// Space of the device.
    pub space: Space,
    /// Hits and misses of the value cache.
    pub value_cache: (u64, u64),
    /// Phase of garbage collection.
    pub gc_phase: String,
    /// The cluster's time in Unix seconds; 0 if it is unknown.
    pub cluster_time_s: u64,
    /// Value repair.
    pub repairs: RepairStats,
    /// Scrub.
    pub scrub: ScrubStats,
    /// What is wrong with the place of the directory: it was moved away, deleted or replaced.
    pub displaced: Option<Arc<Error>>,
}

impl Sample {
    fn of(engine: &Engine) -> Self {
        let gc = engine.gc_stats();
        Self {
            stats: engine.stats(),
            space: engine.space(),
            value_cache: engine.value_cache_hits(),
            gc_phase: format!("{:?}", gc.phase).to_lowercase(),
            cluster_time_s: gc.cluster_time_s,
            repairs: engine.repair_stats(),
            scrub: engine.scrub_stats(),
            displaced: displaced(engine),
        }
    }
}

/// Returns what is wrong with the place of a store. A device that does not answer shows elsewhere.
fn displaced(engine: &Engine) -> Option<Arc<Error>> {
    match engine.check_place() {
        Err(error @ Error::WrongStore { .. }) => Some(Arc::new(error)),
        Ok(()) | Err(_) => None,
    }
}

/// Last answer to a question.
///
/// Invariant: a store that hangs delays no report: a question is asked again only after its answer. One that
/// is never answered holds one task, or one thread, and no caller longer than [`ANSWER_MAX`].
/// Test: `a_question_without_an_answer_is_asked_once_and_the_last_answer_is_returned_in_time`.
#[derive(Debug)]
pub(super) struct Latest<T>(watch::Sender<State<T>>);

#[derive(Debug)]
struct State<T> {
    is_asking: bool,
    ended: u64,
    answer: Option<Arc<T>>,
}

impl<T> Default for Latest<T> {
    fn default() -> Self {
        Self(watch::Sender::new(State { is_asking: false, ended: 0, answer: None }))
    }
}

impl<T: Send + Sync + 'static> Latest<T> {
    /// Asks, unless a question is under way, and waits for its end. Returns the last answer, and
    /// whether the question ended in time. A question that ends with `None` leaves the answer before.
    async fn ask<F>(self: &Arc<Self>, question: impl FnOnce() -> F) -> (Option<Arc<T>>, bool)
    where
        F: Future<Output = Option<T>> + Send + 'static,
    {
        let mut ends = self.0.subscribe();
        let before = ends.borrow_and_update().ended;
        let begins = |state: &mut State<T>| !std::mem::replace(&mut state.is_asking, true);
        if self.0.send_if_modified(begins) {
            let (latest, question) = (self.clone(), question());
            tokio::spawn(async move {
                // A panic has been logged; the next question may be answered.
                let answer = caught("a question to a store", question).await.ok().flatten();
                latest.0.send_modify(|state| {
                    (state.is_asking, state.ended) = (false, state.ended + 1);
                    state.answer = answer.map(Arc::new).or(state.answer.take());
                });
            });
        }
        let ended = ends.wait_for(|state| state.ended > before);
        // bug server.waits_for_a_hanging_store: `ANSWER_MAX` is `Duration::from_secs(10)`
        let in_time = tokio::time::timeout(ANSWER_MAX, ended).await.is_ok();
        (self.0.borrow().answer.clone(), in_time)
    }
}

impl StoreHandle<Engine> {
    /// Returns the state of the engine; the last known one if it does not answer in time, and `None`
    /// before its first answer.
    pub async fn sample(&self) -> Option<Arc<Sample>> {
        let engine = self.engine.clone();
        let question = || async {
            // Fails only by a panic, which has been logged, or when the node stops.
            tokio::task::spawn_blocking(move || Sample::of(&engine)).await.ok()
        };
        self.samples.ask(question).await.0
    }

    /// Returns the regions of the store that may have changed since a collection; the list before if
    /// its loop does not answer in time, and `None` before its first answer.
    pub async fn changed_regions(self: &Arc<Self>, since: Collection) -> Option<Arc<Changes>> {
        let store = self.clone();
        let question =
            || async move { store.with_core(move |core| core.changed_regions(since)).await };
        self.region_changes.ask(question).await.0
    }

    /// Returns the regions of the store: none after the end of its loop, and `None` if it does not
    /// answer in time.
    pub async fn regions(&self) -> Option<Vec<RegionReport>> {
        if !self.is_running() {
            return Some(Vec::new());
        }
        let answer = self.with_core(|core| core.regions());
        tokio::time::timeout(ANSWER_MAX, answer).await.ok().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    #[tokio::test]
    async fn a_question_without_an_answer_is_asked_once_and_the_last_answer_is_returned_in_time() {
        let latest = Arc::new(Latest::<u8>::default());
        assert_eq!(latest.ask(|| async { Some(7) }).await, (Some(Arc::new(7)), true));
        let asked = Arc::new(AtomicUsize::new(0));
        let (release, hangs) = tokio::sync::watch::channel(false);
        let began = Instant::now();
        for _ in 0..3 {
            let (asked, mut hangs) = (asked.clone(), hangs.clone());
            let question = || async move {
                asked.fetch_add(1, Ordering::Relaxed);
                let _ = hangs.wait_for(|released| *released).await;
                Some(8)
            };
            assert_eq!(latest.ask(question).await, (Some(Arc::new(7)), false));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(began.elapsed() < 30 * ANSWER_MAX, "{:?}", began.elapsed());
        release.send(true).unwrap();
        let mut ends = latest.0.subscribe();
        ends.wait_for(|state| !state.is_asking).await.unwrap();
        assert_eq!(latest.ask(|| async { None }).await, (Some(Arc::new(8)), true));
        assert_eq!(latest.ask(|| async { panic!("no answer") }).await.0, Some(Arc::new(8)));
        assert_eq!(latest.ask(|| async { Some(9) }).await, (Some(Arc::new(9)), true));
    }
}
