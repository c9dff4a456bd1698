//! The placement group's service: whoever leads region 1 answers, everybody else passes calls on.
//!
//! The leader of a term loads the state from region 1 once and then changes it by proposals made in
//! that very term, one after the other; a decision is answered, and seen by others, only after its
//! proposal is committed. When a proposal fails, what is in memory is dropped and loaded again.

mod forward;
mod heartbeat;
mod leader;
mod lookup;
mod members;
mod operators;
mod regions;
mod settings;
mod stores;
mod wire;

#[cfg(test)]
mod tests;

use crate::transport::BoxFuture;
use bytes::Bytes;
use forward::Forward;
use parking_lot::RwLock;
use std::sync::Arc;
use stele_placement::{Bootstrap, Cluster, LeaderState, Millis, PairChange};
use stele_types::{Clock, ClusterId, Error, Result, Term, mutant};
use stele_vfs::SystemClock;
use tonic::{Code, Status};

/// What reads bytes from outside, for fuzz targets.
pub(crate) mod fuzzing {
    use stele_proto::stele::control::v1::RegionReport;

    /// Reads what a leader reports of its region, and writes what is then known of it.
    pub fn region_report(report: &RegionReport) -> Option<RegionReport> {
        super::wire::info_of(report).map(|info| super::wire::report(&info))
    }
}

/// The placement region, as this node sees it.
pub trait System: Send + Sync + 'static {
    /// The term in which a store of this node leads it; `None` if none does.
    fn leader_term(&self) -> Option<Term>;
    /// All its pairs, at a moment after leadership in that term was confirmed.
    fn load(&self, term: Term) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>>>;
    /// Changes pairs, all or none. Success only if that is committed, and was proposed, in exactly
    /// that term. After a failure the change may still come to pass.
    fn propose(&self, term: Term, changes: Vec<PairChange>) -> BoxFuture<'static, Result<()>>;
    /// `host:port` of the node whose store leads, as far as known.
    fn leader_address(&self) -> Option<String>;
    /// `host:port` of this node.
    fn own_address(&self) -> String;
    /// `host:port` of every node that is known.
    fn nodes(&self) -> Vec<String>;
}

/// See the module.
pub struct PlacementService {
    cluster: ClusterId,
    system: Arc<dyn System>,
    birth: Option<Bootstrap>,
    clock: Arc<dyn Clock>,
    led: RwLock<Option<LeaderState>>,
    /// Held by whoever changes the state: one proposal at a time.
    writer: tokio::sync::Mutex<()>,
    forward: Forward,
}

impl PlacementService {
    /// The service of a node. With `birth`, the node founded the cluster: it puts the first pairs.
    pub fn new(cluster: ClusterId, system: Arc<dyn System>, birth: Option<Bootstrap>) -> Arc<Self> {
        Self::with_clock(cluster, system, birth, Arc::new(SystemClock::new()))
    }

    /// The same with a clock of the caller's.
    pub fn with_clock(
        cluster: ClusterId,
        system: Arc<dyn System>,
        birth: Option<Bootstrap>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            system,
            birth,
            clock,
            led: RwLock::new(None),
            writer: tokio::sync::Mutex::new(()),
            forward: Forward::default(),
        })
    }

    /// Whether this node leads the placement group.
    pub fn leads(&self) -> bool {
        self.system.leader_term().is_some()
    }

    /// The cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    fn now(&self) -> Millis {
        Millis(self.clock.monotonic_nanos() / 1_000_000)
    }

    /// Makes sure that the state of the current term is in memory. Fails when this node does not
    /// lead.
    async fn lead(&self) -> Result<Term, Status> {
        let term = self.leader_term()?;
        if self.led.read().as_ref().is_some_and(|led| led.term == term) {
            return Ok(term);
        }
        let _writer = self.writer.lock().await;
        let term = self.leader_term()?;
        if self.led.read().as_ref().is_some_and(|led| led.term == term) {
            return Ok(term);
        }
        let cluster = self.load(term).await.map_err(|error| unavailable(&error))?;
        *self.led.write() = Some(LeaderState::new(term, cluster));
        tracing::info!("leads the placement group in term {term}");
        Ok(term)
    }

    fn leader_term(&self) -> Result<Term, Status> {
        self.system.leader_term().ok_or_else(|| self.not_leader())
    }

    async fn load(&self, term: Term) -> Result<Cluster> {
        let pairs = self.system.load(term).await?;
        let mut found = Cluster::load(pairs, self.now(), self.clock.unix_seconds())?;
        if let (None, Some(birth)) = (&found, &self.birth) {
            let first = birth.pairs();
            self.system.propose(term, first.clone()).await?;
            let pairs = first.into_iter().filter_map(|pair| Some((pair.key, pair.value?)));
            found = Cluster::load(pairs, self.now(), self.clock.unix_seconds())?;
        }
        match found {
            Some(found) if found.id() == self.cluster => Ok(found),
            Some(found) => Err(Error::invalid(format!(
                "the placement state belongs to cluster {}, this node to {}",
                found.id(),
                self.cluster
            ))),
            None => Err(Error::Busy("the placement group has no state yet".into())),
        }
    }

    /// Looks at the state of the term this node leads in.
    async fn read_state<T>(&self, look: impl FnOnce(&LeaderState) -> T) -> Result<T, Status> {
        let term = self.lead().await?;
        let led = self.led.read();
        let led = led.as_ref().filter(|led| led.term == term);
        led.map(look).ok_or_else(|| self.not_leader())
    }

    /// Changes what is in memory only: reports and operators.
    async fn update_state<T>(
        &self,
        touch: impl FnOnce(&mut LeaderState) -> T,
    ) -> Result<T, Status> {
        let term = self.lead().await?;
        let mut led = self.led.write();
        let led = led.as_mut().filter(|led| led.term == term);
        led.map(touch).ok_or_else(|| self.not_leader())
    }

    /// Makes a decision: `plan` says what to change and what to answer then. It is made to the end
    /// even if the caller goes away: else nobody would know what is persisted.
    async fn commit_decision<T: Send + 'static>(
        self: &Arc<Self>,
        plan: impl FnOnce(&Cluster, Millis) -> Result<(T, Vec<PairChange>), Status> + Send + 'static,
    ) -> Result<T, Status> {
        let this = self.clone();
        let decided = tokio::spawn(async move { this.decide_here(plan).await });
        decided.await.map_err(|_| Status::unavailable("the server is stopping"))?
    }

    async fn decide_here<T>(
        &self,
        plan: impl FnOnce(&Cluster, Millis) -> Result<(T, Vec<PairChange>), Status>,
    ) -> Result<T, Status> {
        let term = self.lead().await?;
        let _writer = self.writer.lock().await;
        let (answer, changes) = {
            let led = self.led.read();
            let led = led.as_ref().filter(|led| led.term == term);
            plan(&led.ok_or_else(|| self.not_leader())?.cluster, self.now())?
        };
        if !changes.is_empty() {
            self.commit(term, changes).await?;
        }
        Ok(answer)
    }

    /// Persists changes, then takes them over. The caller holds `writer`.
    async fn commit(&self, term: Term, changes: Vec<PairChange>) -> Result<(), Status> {
        let proposed = self.system.propose(term, changes.clone()).await;
        let proposed = proposed.or_else(|error| {
            if mutant::active("server.keep_lost_decision") { Ok(()) } else { Err(error) }
        });
        let mut led = self.led.write();
        let outcome = match (proposed, led.as_mut().filter(|led| led.term == term)) {
            (Ok(()), Some(led)) => led.apply(&changes),
            (Ok(()), None) => return Ok(()),
            (Err(error), _) => Err(error),
        };
        // What is persisted is not known any more, or not understood: start over from there.
        outcome.map_err(|error| {
            *led = None;
            unavailable(&error)
        })
    }

    /// What has to be done now and then; called about ten times a second on every node.
    pub async fn tick(self: &Arc<Self>) {
        if !self.leads() {
            *self.led.write() = None;
            return;
        }
        if let Err(status) = self.housekeep().await {
            tracing::debug!("placement: {}", status.message());
        }
    }

    /// What a leader that is new refuses may be possible once it has heard of every store: the
    /// caller is told to ask again.
    async fn or_ask_again<T>(&self, answer: Result<T, Status>) -> Result<T, Status> {
        let Err(status) = answer else { return answer };
        let may_change = [Code::FailedPrecondition, Code::NotFound].contains(&status.code());
        let now = self.now();
        if !may_change || self.read_state(|led| led.cluster.is_settled(now)).await? {
            return Err(status);
        }
        Err(forward::ask_again(&status))
    }

    fn not_leader(&self) -> Status {
        match self.system.leader_address() {
            Some(address) => self.forward.not_leader(&address),
            None => Status::unavailable("no leader"),
        }
    }
}

/// The caller should ask again, here or elsewhere.
fn unavailable(error: &Error) -> Status {
    Status::unavailable(format!("not leader: {error}"))
}

/// Refused as things are.
fn refused(error: Error) -> Status {
    match error {
        Error::Busy(text) => Status::unavailable(text),
        Error::Invalid(text) => Status::failed_precondition(text),
        other => Status::internal(other.to_string()),
    }
}
