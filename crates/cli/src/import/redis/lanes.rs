//! Connections to the target. Each is a lane with a queue of parts, of which it sends many at once.
//!
//! All parts of a name go through one lane, in order. A lane repeats what had no effect, and what may be repeated
//! although its effect is unknown.
//!
//! Invariant: parts of a name take effect in their order. If one is repeated, all later ones of its name are.
//! Test: `later_parts_of_a_name_are_repeated_with_the_first`.
//!
//! Invariant: the first part of a value of several parts, which deletes the name, is not repeated if it may take
//! effect later: it could delete the parts after it.
//! Test: `a_first_part_of_unknown_outcome_is_not_repeated`.

use super::endpoint::{Database, Endpoint};
use super::part::{SourceValue, ValuePart};
use super::report::{Cause, ImportReport};
use super::unix_ms;
use bytes::Bytes;
use std::collections::{HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;
use stele_load::resp::{RespConnection, RespReply};
use stele_types::{Error, Result};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Bytes of all parts that are on their way; one value of maximum length fits.
const BUDGET_BYTES: u64 = 96 << 20;
/// Parts in the queue of a lane.
const QUEUE_PARTS: usize = 1024;
/// Time in which a target that answers nothing, or has no leader, may recover.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Time to wait for a reply.
pub(super) const REPLY_WITHIN: Duration = Duration::from_secs(60);
/// Values that a lane remembers as failed: more than the parts of a batch.
const FAILED_MAX: usize = 256;
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Result of the requests of one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PartOutcome {
    Done,
    /// They had no effect. They may have one later.
    NoEffect(String),
    /// They had no effect for want of memory.
    NoMemory(String),
    /// They may have had an effect, now or later.
    Unknown(String),
    Refused(String),
    /// The target has another value, or none.
    Differs(String),
}

/// What a lane does with parts.
pub(super) trait Work: Clone + Send + 'static {
    /// Parts that are sent at once.
    const PARTS_MAX: usize;
    /// Bytes of their requests, unless it is one part.
    const REQUEST_BYTES_MAX: u64;

    /// Returns the requests of a part.
    fn requests(&self, part: &ValuePart) -> Vec<Vec<Bytes>>;
    /// Returns about the bytes of these requests.
    fn request_bytes(&self, part: &ValuePart) -> u64;
    /// Judges the replies to the requests of a part.
    fn outcome(&self, part: &ValuePart, replies: &[RespReply]) -> PartOutcome;
    /// Whether a part may be repeated if its effect is unknown.
    fn may_repeat(&self, part: &ValuePart) -> bool;
}

/// ValuePart with the memory that it takes.
struct Queued {
    part: ValuePart,
    _memory: OwnedSemaphorePermit,
}

/// Queues of all lanes.
pub(super) struct Lanes {
    queues: Vec<Sender<Queued>>,
    budget: Arc<Semaphore>,
}

impl Lanes {
    /// Starts `count` lanes in `tasks`. Each fails if the target cannot be reached in time.
    pub(super) fn start<W: Work>(
        count: u64,
        target: &RedisTarget,
        work: &W,
        report: &Arc<ImportReport>,
        tasks: &mut JoinSet<Result<()>>,
    ) -> Self {
        let mut queues = Vec::new();
        for _ in 0..count.max(1) {
            let (queue, parts) = channel(QUEUE_PARTS);
            let lane = Lane {
                target: target.clone(),
                work: work.clone(),
                report: report.clone(),
                connection: None,
                selected: None,
                failed: VecDeque::new(),
            };
            tasks.spawn(lane.run(parts));
            queues.push(queue);
        }
        let budget = usize::try_from(BUDGET_BYTES).unwrap_or(Semaphore::MAX_PERMITS);
        Self { queues, budget: Arc::new(Semaphore::new(budget)) }
    }

    /// Adds a part to the queue of its name; waits while there is no memory for it.
    pub(super) async fn send(&self, part: ValuePart) -> Result<()> {
        let stopped = || Error::Busy("the import has stopped".into());
        let bytes = u32::try_from(part.bytes().min(BUDGET_BYTES)).unwrap_or(u32::MAX);
        let memory = self.budget.clone().acquire_many_owned(bytes).await;
        let memory = memory.map_err(|_| stopped())?;
        let mut hasher = DefaultHasher::new();
        (part.value.database, &part.value.name).hash(&mut hasher);
        let lane = hasher.finish() % self.queues.len().max(1) as u64;
        let queue = self.queues.get(lane as usize).ok_or_else(stopped)?;
        queue.send(Queued { part, _memory: memory }).await.map_err(|_| stopped())
    }
}

/// Server to write to.
#[derive(Clone, Debug)]
pub(super) struct RedisTarget {
    pub endpoint: Endpoint,
    /// Database for all values; `None` for the number that each has in the source.
    pub database: Option<Database>,
}

impl RedisTarget {
    pub(super) fn database(&self, source: Database) -> Database {
        self.database.unwrap_or(source)
    }
}

struct Lane<W> {
    target: RedisTarget,
    work: W,
    report: Arc<ImportReport>,
    connection: Option<RespConnection>,
    selected: Option<Database>,
    /// Last values of which a part failed: their later parts are dropped.
    failed: VecDeque<Arc<SourceValue>>,
}

impl<W: Work> Lane<W> {
    async fn run(mut self, mut parts: Receiver<Queued>) -> Result<()> {
        let mut held = None;
        loop {
            let first = match held.take() {
                Some(first) => first,
                None => match parts.recv().await {
                    Some(first) => first,
                    None => return Ok(()),
                },
            };
            let mut bytes = self.work.request_bytes(&first.part);
            let mut batch = vec![first];
            while batch.len() < W::PARTS_MAX
                && let Ok(next) = parts.try_recv()
            {
                bytes += self.work.request_bytes(&next.part);
                if bytes > W::REQUEST_BYTES_MAX {
                    held = Some(next);
                    break;
                }
                batch.push(next);
            }
            self.complete(batch).await?;
        }
    }

    /// Sends parts until each is done or refused.
    async fn complete(&mut self, batch: Vec<Queued>) -> Result<()> {
        let (mut batch, until) = (batch, Instant::now() + PATIENCE);
        let mut pause = PAUSE_FIRST;
        loop {
            batch.retain(|queued| !self.has_failed(&queued.part));
            let outcomes = self.exchange(&batch).await?;
            let mut repeated = HashSet::new();
            let mut reason = String::new();
            let is_late = Instant::now() >= until;
            batch = batch
                .into_iter()
                .zip(outcomes)
                .filter_map(|(queued, outcome)| {
                    let name = (queued.part.value.database, queued.part.value.name.clone());
                    // bug cli.import_repeats_out_of_order: never
                    if repeated.contains(&name) {
                        return Some(queued);
                    }
                    let again = self.settle(&queued.part, outcome, is_late)?;
                    reason = again;
                    repeated.insert(name);
                    Some(queued)
                })
                .collect();
            if batch.is_empty() {
                return Ok(());
            }
            if is_late {
                let address = &self.target.endpoint;
                return Err(Error::Unavailable(format!("{address}: {reason}")));
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    fn has_failed(&self, part: &ValuePart) -> bool {
        self.failed.iter().any(|failed| Arc::ptr_eq(failed, &part.value))
    }

    /// Reports the outcome of a part. Returns the reason for which it must be sent again.
    fn settle(&mut self, part: &ValuePart, outcome: PartOutcome, is_late: bool) -> Option<String> {
        if self.has_failed(part) {
            return None;
        }
        let value = &part.value;
        let mut problem = |cause, detail: &str| {
            if !part.is_last() {
                self.failed.truncate(FAILED_MAX - 1);
                self.failed.push_front(value.clone());
            }
            self.report.problem(cause, value.database, &value.name, detail);
        };
        match outcome {
            PartOutcome::Done => self.report.done(part.content_bytes(), part.is_last()),
            // It expired between its reading and the comparison.
            PartOutcome::Differs(_)
                if value.expires_at_ms.is_some_and(|at_ms| at_ms <= unix_ms()) =>
            {
                self.report.expired();
            }
            PartOutcome::Differs(detail) => {
                self.report.done(part.content_bytes(), true);
                problem(Cause::Differs, &detail);
            }
            PartOutcome::Refused(detail) => problem(Cause::Refused, &detail),
            PartOutcome::NoMemory(detail) if is_late => problem(Cause::Refused, &detail),
            PartOutcome::NoEffect(reason) | PartOutcome::NoMemory(reason) => return Some(reason),
            PartOutcome::Unknown(reason) => {
                // bug cli.import_repeats_a_first_part: always
                if self.work.may_repeat(part) {
                    return Some(reason);
                }
                let detail = format!("stored in part: {reason}; import it again");
                problem(Cause::Refused, &detail);
            }
        }
        None
    }

    /// Sends the requests of parts and returns what became of each. Fails if the target refuses the
    /// connection.
    async fn exchange(&mut self, batch: &[Queued]) -> Result<Vec<PartOutcome>> {
        let mut outcomes = Vec::with_capacity(batch.len());
        if batch.is_empty() {
            return Ok(outcomes);
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                self.selected = None;
                match timeout(REPLY_WITHIN, self.target.endpoint.connect()).await {
                    Ok(Ok(connection)) => connection,
                    Ok(Err(Error::Unavailable(reason))) => {
                        return Ok(vec![PartOutcome::NoEffect(reason); batch.len()]);
                    }
                    Ok(Err(error)) => return Err(error),
                    Err(_) => {
                        let reason = "it does not answer".to_owned();
                        return Ok(vec![PartOutcome::NoEffect(reason); batch.len()]);
                    }
                }
            }
        };
        let ended = timeout(PATIENCE, self.pipeline(&mut connection, batch, &mut outcomes)).await;
        let reason = match ended {
            Ok(Ok(())) => {
                self.connection = Some(connection);
                return Ok(outcomes);
            }
            Ok(Err(Error::Unavailable(reason))) => reason,
            Ok(Err(error)) => return Err(error),
            Err(_) => "it does not answer".to_owned(),
        };
        outcomes.resize(batch.len(), PartOutcome::Unknown(reason));
        Ok(outcomes)
    }

    async fn pipeline(
        &mut self,
        connection: &mut RespConnection,
        batch: &[Queued],
        outcomes: &mut Vec<PartOutcome>,
    ) -> Result<()> {
        let mut sent = Vec::with_capacity(batch.len());
        for Queued { part, .. } in batch {
            let database = self.target.database(part.value.database);
            let selects = self.selected.replace(database) != Some(database);
            if selects {
                connection.send(&["SELECT", &database.to_string()]).await?;
            }
            let requests = self.work.requests(part);
            for request in &requests {
                connection.send(request).await?;
            }
            sent.push((selects, requests.len()));
        }
        connection.flush().await?;
        for (Queued { part, .. }, (selects, requests)) in batch.iter().zip(sent) {
            if selects && let RespReply::Error(text) = connection.receive().await? {
                return Err(Error::Refused(format!("{}: SELECT: {text}", self.target.endpoint)));
            }
            let mut replies = Vec::with_capacity(requests);
            for _ in 0..requests {
                replies.push(connection.receive().await?);
            }
            outcomes.push(self.work.outcome(part, &replies));
        }
        Ok(())
    }
}

/// Returns the outcome that the error of a target stands for.
pub(super) fn outcome_of_error(text: &str) -> PartOutcome {
    let code = text.split(' ').next().unwrap_or_default();
    let text = text.to_owned();
    match code {
        "TRYAGAIN" | "LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN" => {
            PartOutcome::NoEffect(text)
        }
        "OOM" => PartOutcome::NoMemory(text),
        "UNDETERMINED" => PartOutcome::Unknown(text),
        _ => PartOutcome::Refused(text),
    }
}
