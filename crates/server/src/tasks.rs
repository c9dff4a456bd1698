//! Background tasks of a node, by name.
//!
//! Invariant: no background task ends unseen. If one ends by a panic or an error, or ends at all
//! although the node cannot do without it, `/healthz` and `/metrics` name it. The node then stops
//! with a message if it would report or promise what no longer holds. Tasks of one request or one
//! connection are exempt: their caller sees the end.
//! Test: `a_task_that_panics_is_named_by_healthz_and_a_required_one_ends_the_node`.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use stele_types::{Error, Result, StoreId, error};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_stream::{Stream, StreamExt};

/// Failures after which a node may have to stop.
pub type Failures = mpsc::UnboundedReceiver<NodeFailure>;

/// Failure after which a node may have to stop.
#[derive(Debug)]
pub enum NodeFailure {
    /// A store has stopped; others may run.
    Store(Error),
    /// A task has ended without which the node cannot go on.
    Task(Error),
}

/// State of a task or of a store.
#[derive(Clone, Debug, Default)]
pub struct TaskReport {
    /// Number of times that it runs now.
    pub running: u64,
    /// Number of times that it failed.
    pub failures: u64,
    /// Last failure, until a later run succeeds.
    pub failed: Option<TaskFailure>,
}

/// Last failure of a task or of a store.
#[derive(Clone, Debug)]
pub struct TaskFailure {
    /// Time of the first failure since the last success.
    pub since: Instant,
    /// Text of the error.
    pub reason: String,
    /// Whether the node is not healthy without it.
    pub is_required: bool,
}

/// Runs work that waits for a device on another thread. Fails with [`Error::Busy`] if the node stops
/// meanwhile.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| stopping())?
}

pub(crate) fn stopping() -> Error {
    Error::Busy("the server is stopping".to_owned())
}

/// All background tasks of one node. Clones share it.
#[derive(Clone)]
pub struct Tasks {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: Handle,
    reports: Mutex<BTreeMap<String, TaskReport>>,
    failures: mpsc::UnboundedSender<NodeFailure>,
    stopping: AtomicBool,
}

impl Tasks {
    /// Creates the registry; its tasks run on the runtime of the caller.
    pub fn new() -> (Self, Failures) {
        let (failures, received) = mpsc::unbounded_channel();
        let shared = Shared {
            runtime: Handle::current(),
            reports: Mutex::default(),
            failures,
            stopping: AtomicBool::new(false),
        };
        (Self { shared: Arc::new(shared) }, received)
    }

    /// Starts a task that must run until the node stops: its earlier end stops the node.
    pub fn spawn_lasting(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        let (tasks, name) = (self.clone(), name.to_owned());
        self.update(&name, |report| report.running += 1);
        self.shared.runtime.spawn(async move {
            let ended = caught(&task_name(&name), task).await;
            tasks.update(&name, |report| report.running -= 1);
            if tasks.shared.stopping.load(Ordering::Acquire) {
                return;
            }
            let early = || Error::Panicked(format!("{} ended early", task_name(&name)));
            tasks.end_node(&name, ended.err().unwrap_or_else(early));
        });
    }

    /// Starts a task that ends by itself. Its failure is reported until a later run of the same
    /// name succeeds.
    pub fn spawn_finite(
        &self,
        name: &'static str,
        task: impl Future<Output = Result<()>> + Send + 'static,
    ) {
        let tasks = self.clone();
        self.update(name, |report| report.running += 1);
        self.shared.runtime.spawn(async move {
            let ended = caught(&task_name(name), task).await.flatten();
            tasks.update(name, |report| report.running -= 1);
            match ended {
                Ok(()) => tasks.update(name, |report| report.failed = None),
                Err(error) => {
                    tracing::error!("{} failed: {error}", task_name(name));
                    tasks.record(name, &error, false);
                }
            }
        });
    }

    /// Records that a task failed without which the node cannot go on, and stops the node.
    pub(crate) fn end_node(&self, name: &str, error: Error) {
        tracing::error!("{} failed: {error}", task_name(name));
        self.record(name, &error, true);
        // The receiver is gone once the node stops.
        let _ = self.shared.failures.send(NodeFailure::Task(error));
    }

    /// Records that a store has stopped beside another run of it. The node waits for the operator.
    pub(crate) fn store_stopped(&self, store: StoreId, error: &Error) {
        tracing::error!("store {store} has stopped: {error}");
        self.record(&store_name(store), error, false);
    }

    pub(crate) fn store_goes_on(&self, store: StoreId) {
        self.shared.reports.lock().remove(&store_name(store));
    }

    /// Records that a store has stopped. The node is healthy with the others, and stops with the last.
    pub fn store_failed(&self, store: StoreId, error: Error) {
        tracing::error!("store {store} has stopped: {error}");
        self.record(&store_name(store), &error, false);
        // The receiver is gone once the node stops.
        let _ = self.shared.failures.send(NodeFailure::Store(error));
    }

    /// Records that the node stops: tasks may end.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
    }

    /// Returns all tasks that have run, and the stores that have stopped, by name.
    pub fn reports(&self) -> BTreeMap<String, TaskReport> {
        self.shared.reports.lock().clone()
    }

    /// Returns the state of the node and the lines that explain it: whether all runs without which
    /// it is not healthy.
    pub fn health(&self) -> (bool, String) {
        let (mut is_healthy, mut lines) = (true, String::new());
        for (name, report) in self.reports() {
            let Some(TaskFailure { since, reason, is_required }) = report.failed else { continue };
            is_healthy &= !is_required;
            let seconds = since.elapsed().as_secs();
            lines += &format!("{name} failed {seconds} s ago: {reason}\n");
        }
        (is_healthy, lines)
    }

    pub(crate) fn store_failure(&self, store: StoreId) -> Option<String> {
        let reports = self.shared.reports.lock();
        let report = reports.get(&store_name(store))?;
        report.failed.as_ref().map(|failed| failed.reason.clone())
    }

    fn record(&self, name: &str, error: &Error, is_required: bool) {
        // bug server.task_failure_unseen: return;
        self.update(name, |report| {
            let since = report.failed.as_ref().map_or_else(Instant::now, |failed| failed.since);
            let reason = error.to_string();
            report.failures += 1;
            report.failed = Some(TaskFailure { since, reason, is_required });
        });
    }

    fn update(&self, name: &str, update: impl FnOnce(&mut TaskReport)) {
        update(self.shared.reports.lock().entry(name.to_owned()).or_default());
    }
}

fn store_name(store: StoreId) -> String {
    format!("store {store}")
}

fn task_name(name: &str) -> String {
    format!("the task `{name}`")
}

/// Time without a request after which a stream of a node that stops ends. Its client would keep the
/// connection open, and a command that arrives at the end of the stream is not answered.
const QUIET: Duration = Duration::from_millis(100);

/// Returns the next item of a client's stream; `None` at its end, or when nothing arrives after `stop`
/// turned true.
pub(crate) async fn next_until<T>(
    stream: &mut (impl Stream<Item = T> + Unpin),
    stop: &mut watch::Receiver<bool>,
) -> Option<T> {
    tokio::select! {
        biased;
        next = stream.next() => return next,
        _ = stop.wait_for(|stop| *stop) => {}
    }
    timeout(QUIET, stream.next()).await.ok().flatten()
}

/// Runs a future; returns [`Error::Panicked`] if it panics. The caller must not use what the future
/// may have left half done.
pub async fn caught<T>(name: &str, future: impl Future<Output = T>) -> Result<T> {
    let mut future = pin!(future);
    poll_fn(|context| match error::caught(name, || future.as_mut().poll(context)) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Err(panicked) => Poll::Ready(Err(panicked)),
    })
    .await
}

/// Purpose of a thread. The kernel counts CPU time by thread, so the names of a node's threads show
/// what each stage used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// Runtime: both protocols, requests, the transport between nodes, and blocking calls.
    Network,
    /// Store loop: consensus, log and apply.
    Store,
    /// Writes of a store's log, beside its loop.
    Write,
    /// Reads of pairs for the modifications of a store, beside its loop.
    Lookup,
    /// Flushes, merges, garbage collection and scrubbing of a store.
    Maintenance,
    /// Recovery of a store with lost log entries.
    EntryRecovery,
}

impl Thread {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::Network,
        Self::Store,
        Self::Write,
        Self::Lookup,
        Self::Maintenance,
        Self::EntryRecovery,
    ];

    /// Returns the start of the thread's name; a store's id follows where there is one. The kernel
    /// keeps 15 bytes of a name.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Network => "stele-network",
            Self::Store => "stele-store-",
            Self::Write => "stele-write-",
            Self::Lookup => "stele-lookup-",
            Self::Maintenance => "stele-maintain-",
            Self::EntryRecovery => "stele-recover-",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn until(is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            assert!(started.elapsed() < Duration::from_secs(30), "it does not happen");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn a_lasting_task_that_panics_or_ends_early_stops_the_node_with_its_name() {
        let (tasks, mut failures) = Tasks::new();
        tasks.spawn_lasting("steady", std::future::pending());
        tasks.spawn_lasting("panics", async { panic!("no reason") });
        tasks.spawn_lasting("ends", async {});
        let mut texts = Vec::new();
        for _ in 0..2 {
            let Some(NodeFailure::Task(error)) = failures.recv().await else {
                panic!("no failure")
            };
            texts.push(error.to_string());
        }
        texts.sort();
        assert!(texts[0].starts_with("the task `ends` ended early"), "{texts:?}");
        assert!(texts[1].starts_with("the task `panics` panicked: no reason"), "{texts:?}");
        let (is_healthy, lines) = tasks.health();
        assert!(!is_healthy && lines.contains("panics failed 0 s ago: the task `panics`"));
        assert!(lines.contains("ends failed ") && !lines.contains("steady"), "{lines}");
        assert_eq!(tasks.reports()["steady"].running, 1);
        assert_eq!((tasks.reports()["panics"].running, tasks.reports()["panics"].failures), (0, 1));
    }

    #[tokio::test]
    async fn a_finite_task_that_fails_is_named_until_a_later_run_succeeds() {
        let (tasks, mut failures) = Tasks::new();
        let failures_of = |name: &str| tasks.reports().get(name).map_or(0, |task| task.failures);
        tasks.spawn_finite("split", async { panic!("no key") });
        until(|| failures_of("split") == 1).await;
        tasks.spawn_finite("split", async { Err(Error::invalid("no region")) });
        until(|| failures_of("split") == 2).await;
        let (is_healthy, lines) = tasks.health();
        assert!(is_healthy && lines.contains("split failed 0 s ago: "), "{lines}");
        assert!(lines.contains("no region"), "{lines}");
        tasks.spawn_finite("split", async { Ok(()) });
        until(|| tasks.health() == (true, String::new())).await;
        assert!(failures.try_recv().is_err(), "the node goes on");
    }

    #[tokio::test]
    async fn a_stream_of_a_node_that_stops_ends_when_nothing_more_arrives() {
        let (stop, mut stopped) = watch::channel(false);
        let (sender, items) = mpsc::channel(4);
        let mut items = tokio_stream::wrappers::ReceiverStream::new(items);
        sender.send(1).await.unwrap();
        sender.send(2).await.unwrap();
        assert_eq!(next_until(&mut items, &mut stopped).await, Some(1));
        stop.send(true).unwrap();
        assert_eq!(next_until(&mut items, &mut stopped).await, Some(2), "what arrived is served");
        assert_eq!(next_until(&mut items, &mut stopped).await, None, "though its client stays");
        assert!(!sender.is_closed());
    }

    #[tokio::test]
    async fn what_ends_when_the_node_stops_is_not_a_failure() {
        let (tasks, mut failures) = Tasks::new();
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        tasks.spawn_lasting("port", async move {
            let _ = stopped.changed().await;
        });
        tasks.stop();
        stop.send(true).unwrap();
        until(|| tasks.reports()["port"].running == 0).await;
        assert!(failures.try_recv().is_err() && tasks.health().0);
    }

    #[test]
    fn what_the_kernel_keeps_of_a_name_tells_the_kinds_apart() {
        for thread in Thread::ALL {
            assert!(thread.prefix().len() <= 15, "{thread:?}");
            let begin_so = |other: &Thread| thread.prefix().starts_with(other.prefix());
            assert_eq!(Thread::ALL.into_iter().filter(begin_so).count(), 1, "{thread:?}");
        }
    }
}
