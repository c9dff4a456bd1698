//! The process of a backup: it reads a cluster, and writes log objects, bases and moments.
//!
//! 1. A *run* has all writes of the cluster from its beginning on, in log objects without a gap. A process that was
//!    killed continues its run at the token in the last one. If no node has the next writes any longer, a new run
//!    begins.
//! 2. A *base* is copied beside the log, region after region ([`base`]). What is written meanwhile is in the log too:
//!    a record is a state, so that it does no harm to write it once more.
//! 3. For a *moment* the process stops to take writes, and asks the cluster for a cut. What it has taken was committed
//!    before, and is in the cut. Then it takes exactly the rest of the cut, and ends its log object there.
//!    So the state at a moment is a base with all log objects up to that one, whatever regions split or merged.
//!
//! Bounds: a log object, a response for each region that is read, and a few chunks.

mod bandwidth;
mod base;
mod log;

use crate::format::{BaseSeq, Cut as MomentCut, LogSeq, Moment, RunId};
use crate::{BaseSummary, Notice, Repository};
use bandwidth::Bandwidth;
use base::{Copier, Made};
use log::Log;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_client::messages::TakeMomentResponse;
use stele_client::{Client, Cut, LoggedEvent, Token, WatchFrom};
use stele_types::size::format_bytes as readable;
use stele_types::{Error, LogIndex, MomentId, Result, Term};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

/// Time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Pause before something is tried again that the cluster does not do now.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a backup that does not follow gives up, while the cluster does not answer.
const PATIENCE: Duration = Duration::from_secs(600);

/// How a backup runs.
#[derive(Clone)]
pub struct PullOptions {
    /// Whether it goes on after the first moment.
    pub follow: bool,
    /// Time between two moments.
    pub every: Duration,
    /// Age at which a base is replaced: the log since then must be replayed at a restore.
    pub base_every: Duration,
    /// Most bytes that are read and sent in a second, together; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// Version of the program.
    pub program: String,
    /// Receiver of lines about the progress.
    pub notice: Notice,
}

/// What a backup has done.
#[derive(Clone, Copy, Debug)]
pub struct Pulled {
    /// The last run.
    pub run: RunId,
    /// The last moment; `None` if it was stopped before.
    pub moment: Option<MomentId>,
    /// Bytes of pairs and writes that were read.
    pub read_bytes: u64,
    /// Bytes of objects that were sent.
    pub sent_bytes: u64,
}

/// What the parts of a backup share.
struct Shared {
    /// Client of the copies, with connections of its own: what is not taken of them delays no write.
    copier: Client,
    repository: Repository,
    options: PullOptions,
    bandwidth: Bandwidth,
    read_bytes: AtomicU64,
    /// Bytes of objects that the bandwidth has counted.
    counted_bytes: AtomicU64,
}

impl Shared {
    fn report(&self, line: &str) {
        (self.options.notice)(line);
    }

    /// Counts bytes that were read, and those of objects that were sent since, and waits for the bandwidth.
    async fn pace(&self, read_bytes: u64) {
        self.read_bytes.fetch_add(read_bytes, Relaxed);
        let sent = self.repository.sent_bytes();
        let counted = self.counted_bytes.fetch_max(sent, Relaxed);
        self.bandwidth.take(read_bytes + sent.saturating_sub(counted)).await;
    }

    /// Waits before a repetition. Returns the error if the backup does not follow and has waited for long.
    async fn wait(&self, since: &mut Option<Instant>, error: Error) -> Result<()> {
        let since = *since.get_or_insert_with(|| {
            self.report(&format!("{error}; trying again"));
            Instant::now()
        });
        if !self.options.follow && since.elapsed() >= PATIENCE {
            return Err(error);
        }
        sleep(RETRY_PAUSE).await;
        Ok(())
    }
}

/// Backs a cluster up until `stop` is true or its sender is gone, or until the first moment if the options say so. `copier` is another client
/// of the same cluster. Fails as the clients and the repository do; another call continues the run.
pub async fn pull(
    client: Client,
    copier: Client,
    repository: Repository,
    options: PullOptions,
    stop: watch::Receiver<bool>,
) -> Result<Pulled> {
    let bandwidth = Bandwidth::new(options.bytes_per_second);
    let (read_bytes, counted_bytes) = Default::default();
    let shared = Shared { copier, repository, options, bandwidth, read_bytes, counted_bytes };
    let mut pull = Pull { client, shared: Arc::new(shared), stop, last: None };
    let mut begun = pull.last_run().await?;
    loop {
        match pull.run(begun.take()).await {
            // Invariant: writes that no store has any longer are in no run: another one begins, with a base of its own.
            // Test: `a_backup_that_was_away_for_too_long_begins_a_new_run_and_both_are_restored`.
            // bug backup.no_new_run: never
            Err(Error::TooOld(reason)) => {
                pull.shared.report(&format!("a new run begins, with a new base: {reason}"));
            }
            ended => return ended,
        }
    }
}

struct Pull {
    client: Client,
    shared: Arc<Shared>,
    stop: watch::Receiver<bool>,
    last: Option<MomentId>,
}

/// Where a run goes on.
struct Begun {
    run: RunId,
    next: LogSeq,
    token: Token,
    base: Option<BaseSummary>,
}

/// Bases of a run.
struct Bases {
    next: BaseSeq,
    /// When the last one was complete; `None`: there is none.
    made: Option<Instant>,
    making: JoinSet<Result<Made>>,
    /// First log object with records that the base may lack that is being made.
    log_from: LogSeq,
}

impl Pull {
    /// Finds the run that goes on.
    async fn last_run(&self) -> Result<Option<Begun>> {
        let repository = &self.shared.repository;
        let Some(run) = repository.runs().await?.pop() else { return Ok(None) };
        let Some(last) = repository.last_log(run).await? else { return Ok(None) };
        let object = repository.log(run, last).await?;
        let text = std::str::from_utf8(&object.token_after);
        let damaged = |_| {
            Error::damaged_backup(
                format!("log object {last} of run {run}"),
                "its token is not a text",
            )
        };
        let token: Token = text.map_err(damaged)?.parse()?;
        let base = repository.bases(run).await?.pop();
        Ok(Some(Begun { run, next: last.next(), token, base }))
    }

    /// Begins a run, or goes on with one. Ends with `TooOld` if another one must begin.
    async fn run(&mut self, begun: Option<Begun>) -> Result<Pulled> {
        let (mut log, mut bases) = match begun {
            Some(begun) => self.go_on(begun).await?,
            None => self.begin().await?,
        };
        let run = log.run();
        let mut next_moment = Instant::now();
        let mut progress = interval(PROGRESS);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        progress.tick().await;
        let mut stop = self.stop.clone();
        loop {
            let is_due =
                bases.made.is_none_or(|made| made.elapsed() >= self.shared.options.base_every);
            if is_due && bases.making.is_empty() {
                self.begin_base(&mut bases, &log);
            }
            // A moment before the first base could not be restored. One that does not follow has the newest base.
            let may_take =
                bases.made.is_some() && (self.shared.options.follow || bases.making.is_empty());
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {
                    log.end(None).await?;
                    return Ok(self.pulled(run));
                }
                Some(made) = bases.making.join_next() => {
                    let failed = |_| Error::Unavailable("the copy of the base was stopped".into());
                    self.put_base(&mut bases, &log, made.map_err(failed)??).await?;
                    next_moment = Instant::now();
                }
                () = sleep_until(next_moment), if may_take => {
                    next_moment = Instant::now() + self.shared.options.every;
                    let taken = self.moment(&mut log).await?;
                    if taken && !self.shared.options.follow {
                        return Ok(self.pulled(run));
                    }
                    if !taken && !self.shared.options.follow {
                        next_moment = Instant::now() + RETRY_PAUSE;
                    }
                }
                _ = progress.tick() => self.report(&log, &bases),
                event = log.next(&self.client) => log.take(event?).await?,
            }
        }
    }

    async fn begin(&self) -> Result<(Log, Bases)> {
        let run = self.shared.repository.new_run().await?;
        let writes = self.client.writes(WatchFrom::Now).await?;
        let mut log = Log::new(self.shared.clone(), writes, run, LogSeq(0));
        // From here on a process that was killed continues the run.
        log.end(None).await?;
        self.shared.report(&format!("run {} begins", run.0));
        let (next, log_from) = (BaseSeq(0), log.seq());
        Ok((log, Bases { next, made: None, making: JoinSet::new(), log_from }))
    }

    async fn go_on(&self, begun: Begun) -> Result<(Log, Bases)> {
        let Begun { run, next, token, base } = begun;
        let writes = self.client.writes(WatchFrom::Token(token)).await?;
        let log = Log::new(self.shared.clone(), writes, run, next);
        self.shared.report(&format!("run {} goes on with log object {}", run.0, next.0));
        let made = match &base {
            Some(base) => Some(self.made_at(base).await?),
            None => None,
        };
        let next = base.map_or(BaseSeq(0), |base| BaseSeq(base.name.seq.0 + 1));
        let log_from = log.seq();
        Ok((log, Bases { next, made, making: JoinSet::new(), log_from }))
    }

    /// Returns about when a base was complete: at the first moment that it serves. Without one it counts as new.
    async fn made_at(&self, base: &BaseSummary) -> Result<Instant> {
        let moments = self.shared.repository.moments_of_run(base.name.run).await?;
        let (mut low, mut high, mut first) = (0, moments.len(), None);
        while low < high {
            let middle = usize::midpoint(low, high);
            let Some(number) = moments.get(middle) else { break };
            let moment = self.shared.repository.moment(base.name.run, *number).await?;
            match moment.last_log >= base.log_complete {
                true => (high, first) = (middle, moment.clocks_between_unix_ms()),
                false => low = middle + 1,
            }
        }
        let now_unix_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let made_unix_ms = first.map_or(u64::MAX, |(_, latest)| latest);
        let age_ms = u64::try_from(now_unix_ms).unwrap_or_default().saturating_sub(made_unix_ms);
        let now = Instant::now();
        Ok(now.checked_sub(Duration::from_millis(age_ms)).unwrap_or(now))
    }

    /// Begins a base beside the log.
    ///
    /// Invariant: what was taken before the copy begins is in it: it was committed, and the copy has everything that
    /// is committed when it begins. So only the open log object and later ones are missing.
    /// Test: `a_backup_is_killed_and_continued_and_its_moments_are_restored`.
    fn begin_base(&self, bases: &mut Bases, log: &Log) {
        // bug backup.log_from_late: `log.seq()` is `log.seq().next()`
        bases.log_from = log.seq();
        let copier = Copier::new(self.shared.clone(), log.run(), bases.next);
        bases.next = BaseSeq(bases.next.0 + 1);
        bases.making.spawn(copier.make());
    }

    /// Writes a base.
    ///
    /// Invariant: the base is complete before the next moment is asked for. So the cut of that moment has
    /// everything that any part of the base has, and its log object is the open one or a later one.
    /// Test: `a_backup_is_killed_and_continued_and_its_moments_are_restored`.
    async fn put_base(&self, bases: &mut Bases, log: &Log, made: Made) -> Result<()> {
        let (parts, bytes) = (made.base.parts.len(), made.bytes);
        let mut base = made.base;
        (base.log_from, base.log_complete) = (bases.log_from, log.seq());
        self.shared.repository.put_base(made.begun, &base).await?;
        let sent = readable(made.sent_bytes);
        let line = format!(
            "base {} is complete: {parts} parts, {}, {sent} sent",
            base.seq.0,
            readable(bytes)
        );
        self.shared.report(&line);
        bases.made = Some(Instant::now());
        Ok(())
    }

    /// Takes a moment, and ends the log object there. Returns false if the cluster takes none now, or at a stop.
    ///
    /// Invariant: nothing is taken between the last record and the call that takes the moment: what was taken
    /// is in the cut.
    async fn moment(&mut self, log: &mut Log) -> Result<bool> {
        let taken = match self.client.control().take_moment(0).await {
            Ok(taken) => taken,
            Err(error @ (Error::Refused(_) | Error::Unavailable(_) | Error::Busy(_))) => {
                self.shared.report(&format!("no moment now: {error}"));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        log.hold_at(Cut::of_moment(taken.parts.clone())?)?;
        let mut stop = self.stop.clone();
        loop {
            let event = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {
                    log.let_go();
                    return Ok(false);
                }
                event = log.next(&self.client) => event?,
            };
            match event {
                LoggedEvent::Resolved => break,
                write => log.take(write).await?,
            }
        }
        let (number, last_log) = (MomentId(taken.moment), log.seq());
        log.end(Some(number)).await?;
        let moment = self.of_cluster(taken, log.run(), last_log)?;
        self.shared.repository.put_moment(&moment).await?;
        self.shared.pace(0).await;
        log.let_go();
        if self.last.is_none() || !self.shared.options.follow {
            self.shared.report(&format!("moment {} can be restored", number.0));
        }
        self.last = Some(number);
        Ok(true)
    }

    fn of_cluster(
        &self,
        taken: TakeMomentResponse,
        run: RunId,
        last_log: LogSeq,
    ) -> Result<Moment> {
        let cut = Cut::of_moment(taken.parts)?;
        let vector = cut.parts().iter().map(|part| MomentCut {
            range: part.range.clone(),
            region: part.region,
            term: Term(part.term),
            index: LogIndex(part.index),
        });
        let clocks = taken.clocks.iter().map(|clock| (clock.store_id, clock.unix_ms));
        Ok(Moment {
            number: MomentId(taken.moment),
            run,
            last_log,
            vector: vector.collect(),
            clocks_unix_ms: clocks.collect(),
            program: self.shared.options.program.clone(),
            level: taken.level_in_use,
        })
    }

    fn report(&self, log: &Log, bases: &Bases) {
        let read = readable(self.shared.read_bytes.load(Relaxed));
        let sent = readable(self.shared.repository.sent_bytes());
        let base = if bases.making.is_empty() { "" } else { ", a base is being copied" };
        let moment =
            self.last.map_or(String::new(), |moment| format!(", last moment {}", moment.0));
        let object = log.seq().0;
        self.shared.report(&format!("{read} read, {sent} sent, log object {object}{moment}{base}"));
    }

    fn pulled(&self, run: RunId) -> Pulled {
        let read_bytes = self.shared.read_bytes.load(Relaxed);
        Pulled {
            run,
            moment: self.last,
            read_bytes,
            sent_bytes: self.shared.repository.sent_bytes(),
        }
    }
}
