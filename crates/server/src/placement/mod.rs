//! Service of the placement group: the leader of region 1 answers, other nodes forward calls to it.
//! Nodes report, and get steps in reply.
//!
//! [`PlacementLeader`] decides when the state is loaded and when a decision is answered. The service
//! gives it the term and the calls, does its reads and proposals, and waits for its answers.

mod access;
mod answers;
mod events;
mod explain;
mod forward;
mod levels;
mod lookup;
mod members;
mod moment;
mod operators;
mod settings;
mod stores;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use access::decode as grants_of;
pub(crate) use forward::named_leader;
pub(crate) use levels::is_below_level;
pub(crate) use members::warning_of_two;
pub(crate) use wire::{answer_of, labels_of, request as heartbeat_request, times_of, wire_times};

use crate::access::Access;
use crate::transport::{BoxFuture, RefusedStore};
use answers::KnownLeaders;
use bytes::Bytes;
use forward::{Forward, leader_calls};
use members::members_of;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use stele_node::placement::{Accepted, NotDecided, PlacementLeader, Work};
use stele_node::report::Report;
use stele_placement::{
    Bootstrap, Cluster, LeaderState, Levels, Millis, PairChange, SYSTEM_REGION, other_node,
};
use stele_proto::stele::control::v1::{HeartbeatRequest, HeartbeatResponse};
use stele_replica::LeaseTimes;
use stele_types::{
    Clock, ClusterId, Error, Level, LogIndex, Peer, PeerRole, Region, Result, StoreId, StoreRun,
    Term,
};
use stele_vfs::SystemClock;
use tokio::sync::oneshot;
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
    /// Reads its log from an entry on; `None`: the last thousand entries, as far as they are there.
    fn read_log(&self, _from: Option<LogIndex>) -> BoxFuture<'static, Result<SystemLog>> {
        Box::pin(async { Err(Error::Busy("no log is here".to_owned())) })
    }
    /// Succeeds if no other node led it in a later term before the call.
    fn confirm(&self, term: Term) -> BoxFuture<'static, Result<()>>;
    /// Returns `host:port` of the node with the leader, as far as known.
    fn leader_address(&self) -> Option<String>;
    /// Returns `host:port` of this node.
    fn own_address(&self) -> String;
    /// Returns the address for clients of the node at `address`.
    fn client_address_of(&self, address: &str) -> String {
        address.to_owned()
    }
    /// Returns the address of this node for administrators.
    fn own_admin_address(&self) -> String {
        self.client_address_of(&self.own_address())
    }
    /// Returns how this node connects to others.
    fn access(&self) -> Access {
        Access::default()
    }
    /// Returns the stores with a replica of the placement region, as this node sees it; empty without a replica.
    fn placement_stores(&self) -> Vec<StoreId> {
        Vec::new()
    }
    /// Returns the name of the node that a store is bound to; `None` if it is not bound.
    fn owner(&self, _store: StoreId) -> Option<String> {
        None
    }
    /// Returns `host:port` of every known node.
    fn nodes(&self) -> Vec<String>;
    /// Judges the runs of the stores that another node reports from this address; returns the refusal of
    /// each that is not heard.
    fn judge(
        &self,
        _address: String,
        _runs: Vec<(StoreId, StoreRun)>,
    ) -> BoxFuture<'static, Vec<RefusedStore>> {
        Box::pin(async { Vec::new() })
    }
    /// Returns the voters of the placement region if this node reaches too few of them for a leader;
    /// `None` also without a replica on this node.
    fn lost_quorum(&self) -> Option<LostQuorum>;
}

/// Part of the placement region's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemLog {
    /// Changed pairs with the index of their entry, in order; `None` deletes.
    pub changes: Vec<(LogIndex, PairChange)>,
    /// Index of the next entry.
    pub next: LogIndex,
    /// The wanted entry is no longer there: these are the last ones.
    pub has_missed: bool,
    /// More entries are applied.
    pub has_more: bool,
}

/// Voters of the placement region that are too few for a leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostQuorum {
    /// Voters that this node reaches, or has.
    pub up: usize,
    /// All voters.
    pub voters: usize,
}

impl LostQuorum {
    /// Counts the voters of a region of which `is_up` tells whether they are reached. `None` if they
    /// are enough for a leader: a majority of them, in a joint configuration of the old and of the new
    /// ones.
    pub fn of(region: &Region, is_up: impl Fn(StoreId) -> bool) -> Option<Self> {
        let votes_now =
            |peer: &&Peer| matches!(peer.role, PeerRole::Voter | PeerRole::DemotingVoter);
        let votes_next = |peer: &&Peer| peer.role.votes_next();
        let count = |votes: &dyn Fn(&&Peer) -> bool| {
            let voters = region.peers.iter().filter(votes);
            Self {
                up: voters.clone().filter(|peer| is_up(peer.store)).count(),
                voters: voters.count(),
            }
        };
        let has_none = |it: &Self| it.up < it.voters / 2 + 1;
        [count(&votes_now), count(&votes_next)].into_iter().find(has_none)
    }
}

impl fmt::Display for LostQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { up, voters } = self;
        let verb = if *up == 1 { "is" } else { "are" };
        write!(f, "{up} of {voters} voters of region {SYSTEM_REGION} {verb} up: no quorum")
    }
}

/// Placement service of one node.
pub struct PlacementService {
    cluster: ClusterId,
    times: LeaseTimes,
    system: Arc<dyn System>,
    clock: Arc<dyn Clock>,
    leader: RwLock<PlacementLeader<()>>,
    /// Held while regions are persisted for an answer: one proposal serves all answers that wait.
    saving: tokio::sync::Mutex<()>,
    /// Held while a moment is taken.
    taking: tokio::sync::Mutex<()>,
    forward: Forward,
    /// What the last answer to a report stated.
    leaders: Mutex<KnownLeaders>,
}

type Decided<T, E> = oneshot::Receiver<Result<T, NotDecided<E>>>;

impl PlacementService {
    /// Creates the service of a node with the times of its leases. `bootstrap` is set if the node
    /// bootstrapped the cluster: it writes the first pairs, with the level that its stores recorded.
    pub fn new(
        cluster: ClusterId,
        times: LeaseTimes,
        system: Arc<dyn System>,
        bootstrap: Option<(Bootstrap, Level)>,
    ) -> Arc<Self> {
        Self::with_clock(cluster, times, system, bootstrap, Arc::new(SystemClock::new()))
    }

    pub(crate) fn with_clock(
        cluster: ClusterId,
        times: LeaseTimes,
        system: Arc<dyn System>,
        bootstrap: Option<(Bootstrap, Level)>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            times,
            system,
            clock,
            leader: RwLock::new(PlacementLeader::new(cluster, bootstrap.map(levels::first_pairs))),
            saving: tokio::sync::Mutex::default(),
            taking: tokio::sync::Mutex::default(),
            forward: Forward::default(),
            leaders: Mutex::default(),
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
        // bug server.join_with_any_tick: `found` is `None`
        match found {
            Some(text) => Err(Status::failed_precondition(text)),
            None => Ok(()),
        }
    }

    fn now(&self) -> Millis {
        Millis(self.clock.monotonic_nanos() / 1_000_000)
    }

    fn leader_term(&self) -> Result<Term, Status> {
        self.system.leader_term().ok_or_else(|| self.not_leader())
    }

    /// Gives the leader an input, and starts the work that follows. The work goes on when the
    /// caller goes away: otherwise the persisted state would be unknown.
    fn input<T>(self: &Arc<Self>, input: impl FnOnce(&mut PlacementLeader<()>) -> T) -> T {
        let (out, work) = self.step(input);
        if let Some(work) = work {
            tokio::spawn(self.clone().run(work));
        }
        out
    }

    fn step<T>(&self, input: impl FnOnce(&mut PlacementLeader<()>) -> T) -> (T, Option<Work>) {
        let mut leader = self.leader.write();
        leader.lead(self.system.leader_term());
        let out = input(&mut leader);
        let work = leader.poll(self.now());
        (out, work)
    }

    async fn run(self: Arc<Self>, first: Work) {
        let mut next = Some(first);
        while let Some(work) = next.take() {
            let ((), work) = match work {
                Work::Load(term) => {
                    let pairs = self.system.load(term).await;
                    let (now, unix_seconds) = (self.now(), self.clock.unix_seconds());
                    self.step(|leader| leader.loaded(term, pairs, now, unix_seconds))
                }
                Work::Propose(term, changes) => {
                    let outcome = self.system.propose(term, changes).await;
                    self.step(|leader| leader.proposed(term, outcome, self.now()))
                }
            };
            next = work;
        }
    }

    /// Waits until the state of the term that this node leads is in memory.
    async fn ensure_state(self: &Arc<Self>) -> Result<Term, Status> {
        let term = self.leader_term()?;
        if self.leader.read().state(term).is_none() {
            self.commit_decision(|_, _| Ok(((), Vec::new())), |(), _| ()).await?;
        }
        Ok(term)
    }

    async fn read_state<T>(
        self: &Arc<Self>,
        read: impl FnOnce(&LeaderState) -> T,
    ) -> Result<T, Status> {
        let term = self.ensure_state().await?;
        self.leader.read().state(term).map(read).ok_or_else(|| self.not_leader())
    }

    /// Changes only what is in memory: operators and reserved ids.
    async fn update_state<T>(
        self: &Arc<Self>,
        update: impl FnOnce(&mut LeaderState) -> T,
    ) -> Result<T, Status> {
        let term = self.ensure_state().await?;
        self.leader.write().state_mut(term).map(update).ok_or_else(|| self.not_leader())
    }

    /// Commits a decision: `plan` returns a value and the changes, and `answer` makes the answer
    /// of the value and the changed state.
    async fn commit_decision<A: Send + Sync + 'static, T: Send + 'static>(
        self: &Arc<Self>,
        plan: impl FnOnce(&Cluster, Millis) -> Result<(A, Vec<PairChange>), Status>
        + Send
        + Sync
        + 'static,
        answer: impl FnOnce(A, &mut LeaderState) -> T + Send + Sync + 'static,
    ) -> Result<T, Status> {
        let (sender, decided) = oneshot::channel();
        self.input(|leader| {
            leader.decide(plan, move |decided: Result<(A, &mut LeaderState), _>| {
                // The caller may be gone.
                let _ = sender.send(decided.map(|(value, state)| answer(value, state)));
            });
        });
        self.decided(decided, |status| status).await
    }

    async fn decided<T, E>(
        &self,
        decided: Decided<T, E>,
        refused: impl FnOnce(E) -> Status,
    ) -> Result<T, Status> {
        let decided = decided.await.map_err(|_| Status::unavailable("the server is stopping"))?;
        decided.map_err(|failure| match failure {
            NotDecided::NotLeader => self.not_leader(),
            NotDecided::Refused(error) => refused(error),
            // The caller asks again, here or elsewhere.
            NotDecided::Retry(text) => Status::unavailable(format!("not leader: {text}")),
        })
    }

    /// Runs the periodic work of the leader; called about ten times a second on every node.
    pub async fn tick(self: &Arc<Self>) {
        let unix_seconds = self.clock.unix_seconds();
        self.input(|leader| leader.tick(unix_seconds));
        if self.leads()
            && let Err(status) = self.commit_decision(|_, _| Ok(((), Vec::new())), |(), _| ()).await
        {
            tracing::debug!("placement: {}", status.message());
        }
    }

    /// Turns a refusal of a new leader into a retry: with reports of all stores the call may
    /// succeed.
    async fn or_retry_later<T>(self: &Arc<Self>, answer: Result<T, Status>) -> Result<T, Status> {
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
            Some(address) => self.not_leader_but(&address),
            None => self.no_leader("no leader"),
        }
    }

    /// Creates the refusal of a call for which no leader is known. If this node knows why there is
    /// none, it says so instead of `text`.
    fn no_leader(&self, text: &str) -> Status {
        let lost = self.system.lost_quorum();
        // bug server.lost_quorum_unnamed: `lost` is `None`
        match lost {
            Some(lost) => Status::unavailable(format!("no leader: {lost}")),
            None => Status::unavailable(text),
        }
    }
}

fn refused(error: Error) -> Status {
    match error {
        Error::Busy(text) => Status::unavailable(text),
        Error::Invalid(text) => Status::failed_precondition(text),
        other => Status::internal(other.to_string()),
    }
}

leader_calls! {
    /// Accepts a node's report, and replies with the next steps of its leaders.
    heartbeat, heartbeat(HeartbeatRequest) -> HeartbeatResponse = heartbeat_here;
}

impl PlacementService {
    async fn heartbeat_here(
        self: &Arc<Self>,
        request: HeartbeatRequest,
    ) -> Result<HeartbeatResponse, Status> {
        self.check_times(request.lease_times.as_ref(), &request.address)?;
        self.check_level(request.level, &request.address).await?;
        let (cluster, own) = (self.cluster, self.system.own_address());
        let placement_stores = self.system.placement_stores().iter().map(|store| store.0).collect();
        let (sender, decided) = oneshot::channel();
        let (mut report, now) = (wire::report_of(&request), self.now());
        report.node.name = self.sender();
        self.drop_foreign(&mut report).await?;
        self.drop_refused(&mut report).await?;
        self.input(|leader| {
            leader.report(report, now, move |accepted| {
                let response =
                    accepted.map(|accepted| response((cluster, &own), &request, accepted));
                // The caller may be gone.
                let _ = sender.send(response);
            });
        });
        let response = self.decided(decided, refused).await?;
        Ok(HeartbeatResponse { placement_stores, ..response })
    }
}

impl PlacementService {
    /// Drops the stores of a report that are bound to other nodes. Fails if none is left.
    ///
    /// Invariant: the placement group and its leader learn nothing of a store from another node.
    /// Test: `each_attack_of_a_node_on_the_stores_of_another_one_is_refused`.
    async fn drop_foreign(self: &Arc<Self>, report: &mut Report) -> Result<(), Status> {
        let Some(name) = report.node.name.clone() else { return Ok(()) };
        let stores: Vec<StoreId> = report.stores.iter().map(|store| store.id).collect();
        let foreign: BTreeMap<StoreId, String> = self
            .read_state(|state| {
                let cluster = &state.cluster;
                let foreign = stores.iter().filter(|id| cluster.is_foreign(**id, Some(&name)));
                foreign.filter_map(|id| Some((*id, cluster.owner(*id)?.to_owned()))).collect()
            })
            .await?;
        let Some((first, owner)) = foreign.first_key_value() else { return Ok(()) };
        let refused = self.denied(&name, "heartbeat", other_node(*first, owner, &name));
        report.stores.retain(|store| !foreign.contains_key(&store.id));
        report.regions.retain(|region| !foreign.contains_key(&region.leader.store));
        // bug server.foreign_report_taken: never
        if report.stores.is_empty() {
            return Err(refused);
        }
        Ok(())
    }

    /// Drops the stores of a report that this node does not hear, with the regions that they lead. Fails
    /// if none is left.
    ///
    /// Invariant: the placement group takes no address and no region from a run that its leader does not
    /// hear.
    async fn drop_refused(&self, report: &mut Report) -> Result<(), Status> {
        let serving = report.stores.iter().filter(|store| !store.has_failed);
        let runs = serving.map(|store| (store.id, report.node.run_of(store))).collect();
        let refused = self.system.judge(report.node.address.clone(), runs).await;
        let Some(first) = refused.first() else { return Ok(()) };
        let is_heard = |id: StoreId| !refused.iter().any(|it| it.store == id);
        if !report.stores.iter().any(|store| !store.has_failed && is_heard(store.id)) {
            return Err(Status::invalid_argument(first.text.clone()));
        }
        report.stores.retain(|store| is_heard(store.id));
        report.regions.retain(|region| is_heard(region.leader.store));
        Ok(())
    }
}

fn response(
    (cluster, own): (ClusterId, &str),
    request: &HeartbeatRequest,
    accepted: Accepted<'_>,
) -> HeartbeatResponse {
    let Accepted { answer, rejected, state } = accepted;
    for rejected in rejected {
        tracing::debug!("report of {}: {rejected}", request.address);
    }
    let members_version = state.cluster.members_version();
    let is_known = request.members_version == members_version;
    let grants = state.cluster.grants();
    let Levels { recorded, in_use } = state.cluster.levels();
    let lacks_grants = request.access_version.is_some_and(|known| known != grants.version);
    HeartbeatResponse {
        cluster_id: cluster.0,
        members_version,
        members: if is_known { Vec::new() } else { members_of(&state.cluster, own) },
        access: lacks_grants.then(|| access::encode(grants)),
        level: recorded.get(),
        level_in_use: in_use.get(),
        ..wire::response(&answer)
    }
}
