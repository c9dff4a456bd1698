//! Service of the placement group: the leader of region 1 answers, other nodes forward calls to it.
//!
//! The leader of a term loads the state from region 1 once and then changes it by proposals made in
//! that term, one after the other. Invariant: a decision is answered, and visible to others, only
//! after its proposal is committed. When a proposal fails, the state in memory is dropped and
//! loaded again.

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

pub(crate) use wire::{leases_of, undetermined_writes_fail_of, wire_times};

#[cfg(test)]
mod tests;

use crate::transport::BoxFuture;
use bytes::Bytes;
use forward::Forward;
use parking_lot::RwLock;
use std::sync::Arc;
use stele_placement::{Bootstrap, Cluster, LeaderState, Millis, PairChange};
use stele_raftstore::LeaseTimes;
use stele_types::{Clock, ClusterId, Error, Result, Term, mutant};
use stele_vfs::SystemClock;
use tonic::{Code, Status};

/// Decoders of bytes from outside, for fuzz targets.
pub(crate) mod fuzzing {
    use stele_proto::stele::control::v1::RegionReport;

    /// Decodes a leader's report of its region, and encodes the resulting state.
    pub fn region_report(report: &RegionReport) -> Option<RegionReport> {
        super::wire::info_of(report).map(|info| super::wire::report(&info))
    }
}

/// The placement region, as this node sees it.
pub trait System: Send + Sync + 'static {
    /// Returns the term in which a store of this node leads it; `None` if none does.
    fn leader_term(&self) -> Option<Term>;
    /// Returns all its pairs, at a moment after leadership in that term was confirmed.
    fn load(&self, term: Term) -> BoxFuture<'static, Result<Vec<(Bytes, Bytes)>>>;
    /// Changes pairs, all or none. Succeeds only if the change was proposed in exactly that term
    /// and is committed. After a failure the change may still be committed.
    fn propose(&self, term: Term, changes: Vec<PairChange>) -> BoxFuture<'static, Result<()>>;
    /// Returns `host:port` of the node with the leader, as far as known.
    fn leader_address(&self) -> Option<String>;
    /// Returns `host:port` of this node.
    fn own_address(&self) -> String;
    /// Returns `host:port` of every known node.
    fn nodes(&self) -> Vec<String>;
}

/// Placement service of one node.
pub struct PlacementService {
    cluster: ClusterId,
    times: LeaseTimes,
    system: Arc<dyn System>,
    bootstrap: Option<Bootstrap>,
    clock: Arc<dyn Clock>,
    state: RwLock<Option<LeaderState>>,
    /// Held while the state is changed: one proposal at a time.
    writer: tokio::sync::Mutex<()>,
    forward: Forward,
}

impl PlacementService {
    /// Creates the service of a node with the times of its leases. `bootstrap` is set if the node
    /// bootstrapped the cluster: it writes the first pairs.
    pub fn new(
        cluster: ClusterId,
        times: LeaseTimes,
        system: Arc<dyn System>,
        bootstrap: Option<Bootstrap>,
    ) -> Arc<Self> {
        Self::with_clock(cluster, times, system, bootstrap, Arc::new(SystemClock::new()))
    }

    /// Creates the service with the caller's clock.
    pub fn with_clock(
        cluster: ClusterId,
        times: LeaseTimes,
        system: Arc<dyn System>,
        bootstrap: Option<Bootstrap>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            times,
            system,
            bootstrap,
            clock,
            state: RwLock::new(None),
            writer: tokio::sync::Mutex::new(()),
            forward: Forward::default(),
        })
    }

    /// Returns whether this node leads the placement group.
    pub fn leads(&self) -> bool {
        self.system.leader_term().is_some()
    }

    /// Returns the cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Refuses the node at `address` if its leases and those of this node, the leader, do not fit. A
    /// node of an earlier version does not state its times.
    fn check_times(
        &self,
        times: Option<&stele_proto::stele::control::v1::LeaseTimes>,
        address: &str,
    ) -> Result<(), Status> {
        let own = self.system.own_address();
        let found = times.and_then(|it| self.times.mismatch(&wire::times_of(it), [&own, address]));
        match found.filter(|_| !mutant::active("server.join_with_any_tick")) {
            Some(text) => Err(Status::failed_precondition(text)),
            None => Ok(()),
        }
    }

    fn now(&self) -> Millis {
        Millis(self.clock.monotonic_nanos() / 1_000_000)
    }

    /// Loads the state of the current term unless it is in memory. Fails when this node does not
    /// lead.
    async fn ensure_state(&self) -> Result<Term, Status> {
        let term = self.leader_term()?;
        if self.state.read().as_ref().is_some_and(|state| state.term == term) {
            return Ok(term);
        }
        let _writer = self.writer.lock().await;
        let term = self.leader_term()?;
        if self.state.read().as_ref().is_some_and(|state| state.term == term) {
            return Ok(term);
        }
        let cluster = self.load(term).await.map_err(|error| unavailable(&error))?;
        *self.state.write() = Some(LeaderState::new(term, cluster));
        tracing::info!("leads the placement group in term {term}");
        Ok(term)
    }

    fn leader_term(&self) -> Result<Term, Status> {
        self.system.leader_term().ok_or_else(|| self.not_leader())
    }

    async fn load(&self, term: Term) -> Result<Cluster> {
        let pairs = self.system.load(term).await?;
        let mut found = Cluster::load(pairs, self.now(), self.clock.unix_seconds())?;
        if let (None, Some(bootstrap)) = (&found, &self.bootstrap) {
            let first = bootstrap.pairs();
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

    /// Reads the state of the term that this node leads.
    async fn read_state<T>(&self, read: impl FnOnce(&LeaderState) -> T) -> Result<T, Status> {
        let term = self.ensure_state().await?;
        let state = self.state.read();
        let state = state.as_ref().filter(|state| state.term == term);
        state.map(read).ok_or_else(|| self.not_leader())
    }

    /// Changes only what is in memory: reports and operators.
    async fn update_state<T>(
        &self,
        update: impl FnOnce(&mut LeaderState) -> T,
    ) -> Result<T, Status> {
        let term = self.ensure_state().await?;
        let mut state = self.state.write();
        let state = state.as_mut().filter(|state| state.term == term);
        state.map(update).ok_or_else(|| self.not_leader())
    }

    /// Commits a decision: `plan` returns the answer and the changes. The decision completes even
    /// if the caller goes away: otherwise the persisted state would be unknown.
    async fn commit_decision<T: Send + 'static>(
        self: &Arc<Self>,
        plan: impl FnOnce(&Cluster, Millis) -> Result<(T, Vec<PairChange>), Status> + Send + 'static,
    ) -> Result<T, Status> {
        let this = self.clone();
        let decided = tokio::spawn(async move { this.commit_decision_here(plan).await });
        decided.await.map_err(|_| Status::unavailable("the server is stopping"))?
    }

    async fn commit_decision_here<T>(
        &self,
        plan: impl FnOnce(&Cluster, Millis) -> Result<(T, Vec<PairChange>), Status>,
    ) -> Result<T, Status> {
        let term = self.ensure_state().await?;
        let _writer = self.writer.lock().await;
        let (answer, changes) = {
            let state = self.state.read();
            let state = state.as_ref().filter(|state| state.term == term);
            plan(&state.ok_or_else(|| self.not_leader())?.cluster, self.now())?
        };
        if !changes.is_empty() {
            self.commit(term, changes).await?;
        }
        Ok(answer)
    }

    /// Persists changes, then applies them in memory. The caller holds `writer`.
    async fn commit(&self, term: Term, changes: Vec<PairChange>) -> Result<(), Status> {
        let proposed = self.system.propose(term, changes.clone()).await;
        let proposed = proposed.or_else(|error| {
            if mutant::active("server.keep_lost_decision") { Ok(()) } else { Err(error) }
        });
        let mut state = self.state.write();
        let outcome = match (proposed, state.as_mut().filter(|state| state.term == term)) {
            (Ok(()), Some(state)) => state.apply(&changes),
            (Ok(()), None) => return Ok(()),
            (Err(error), _) => Err(error),
        };
        // The persisted state is unknown or not understood: it is loaded again.
        outcome.map_err(|error| {
            *state = None;
            unavailable(&error)
        })
    }

    /// Runs the periodic work; called about ten times a second on every node.
    pub async fn tick(self: &Arc<Self>) {
        if !self.leads() {
            *self.state.write() = None;
            return;
        }
        if let Err(status) = self.run_periodic().await {
            tracing::debug!("placement: {}", status.message());
        }
    }

    /// Turns a refusal of a new leader into a retry: with reports of all stores the call may
    /// succeed.
    async fn or_retry_later<T>(&self, answer: Result<T, Status>) -> Result<T, Status> {
        let Err(status) = answer else { return answer };
        let may_change = [Code::FailedPrecondition, Code::NotFound].contains(&status.code());
        let now = self.now();
        if !may_change || self.read_state(|state| state.cluster.is_settled(now)).await? {
            return Err(status);
        }
        Err(forward::retry_later(&status))
    }

    fn not_leader(&self) -> Status {
        match self.system.leader_address() {
            Some(address) => self.forward.not_leader(&address),
            None => Status::unavailable("no leader"),
        }
    }
}

/// Creates a status that makes the caller retry, here or elsewhere.
fn unavailable(error: &Error) -> Status {
    Status::unavailable(format!("not leader: {error}"))
}

/// Converts a refusal by the present state.
fn refused(error: Error) -> Status {
    match error {
        Error::Busy(text) => Status::unavailable(text),
        Error::Invalid(text) => Status::failed_precondition(text),
        other => Status::internal(other.to_string()),
    }
}
