//! Requests that every owner forwards to its placement leader: reports and joins.

use super::{NotDecided, PlacementLeader};
use crate::report::{Report, ReportAnswer, StalePeer};
use stele_placement::{
    Cluster, JoinRefusal, JoiningNode, LeaderState, Liveness, Millis, NewStore,
    Report as LeaderReport, StaleReport, Store,
};
use stele_replica::Slowdowns;
use stele_types::{Error, StoreId};

/// Report that was accepted.
pub struct Accepted<'a> {
    /// Answer to the node.
    pub answer: ReportAnswer,
    /// Regions that are known in a later state than they were reported.
    pub rejected: Vec<StaleReport>,
    /// State that the answer was made from.
    pub state: &'a mut LeaderState,
}

impl<T: 'static> PlacementLeader<T> {
    /// Accepts a node's report after the changes that it needs are committed. A report without
    /// such changes does not wait for other decisions. The state admits only reports of members.
    pub fn report(
        &mut self,
        report: Report,
        now: Millis,
        answer: impl FnOnce(Result<Accepted<'_>, NotDecided<Error>>) -> T + Send + Sync + 'static,
    ) {
        let state = self.term().and_then(|term| self.state_mut(term));
        let needed = state.map(|state| {
            let changes = state.cluster.plan_heartbeat(&report.node, &report.stores);
            changes.map(|changes| (changes, state))
        });
        let ended = match needed {
            Some(Ok((changes, state))) if changes.is_empty() => {
                answer(Ok(accept(state, report, now)))
            }
            Some(Err(refusal)) => answer(Err(NotDecided::Refused(refusal))),
            _ => return self.decide_report(report, now, answer),
        };
        self.answers.push(ended);
    }

    fn decide_report(
        &mut self,
        report: Report,
        now: Millis,
        answer: impl FnOnce(Result<Accepted<'_>, NotDecided<Error>>) -> T + Send + Sync + 'static,
    ) {
        let (node, stores) = (report.node.clone(), report.stores.clone());
        self.decide(
            move |cluster, _| Ok(((), cluster.plan_heartbeat(&node, &stores)?)),
            move |decided| answer(decided.map(|((), state)| accept(state, report, now))),
        );
    }

    /// Adds stores of a node to the cluster. The same tokens always get the same ids. `node` is set over
    /// TLS: then the node must be allowed to join.
    pub fn join(
        &mut self,
        (address, node): (String, Option<JoiningNode>),
        stores: Vec<NewStore>,
        now: Millis,
        answer: impl FnOnce(Result<(Vec<StoreId>, &mut LeaderState), NotDecided<JoinRefusal>>) -> T
        + Send
        + Sync
        + 'static,
    ) {
        let plan = move |cluster: &Cluster, _| match &node {
            Some(node) => cluster.plan_join_of(&address, &stores, node),
            None => cluster.plan_join(&address, &stores).map_err(JoinRefusal::from),
        };
        self.decide(plan, move |decided: Result<(Vec<StoreId>, &mut LeaderState), _>| {
            answer(decided.map(|(ids, state)| {
                state.cluster.record_join(&ids, now);
                (ids, state)
            }))
        });
    }
}

fn accept(state: &mut LeaderState, report: Report, now: Millis) -> Accepted<'_> {
    let Report { node, sequence, mut stores, mut regions, is_full, refusals, mut stale_peers } =
        report;
    // Invariant: a report changes nothing of the stores of another node.
    let is_own = |id: StoreId| !state.cluster.is_foreign(id, node.name.as_deref());
    stores.retain(|store| is_own(store.id));
    // bug node.foreign_regions_reported: skip
    regions.retain(|region| is_own(region.leader.store));
    stale_peers.retain(|peer| is_own(peer.store));
    let (node, stores) = (&node, &stores[..]);
    let rejected = state
        .accept_report(LeaderReport { node, sequence, stores, regions, is_full, refusals }, now);
    let ids: Vec<StoreId> = stores.iter().map(|store| store.id).collect();
    let reply = state.reply_to(&node.address, &ids, now);
    let removed = |peer: StalePeer| {
        let epoch = state.cluster.left_behind(peer.region, peer.peer, peer.epoch)?;
        Some(StalePeer { epoch, ..peer })
    };
    let answer = ReportAnswer {
        term: state.term,
        sequence,
        steps: reply.due,
        is_busy: reply.is_busy,
        all_wanted: reply.all_wanted,
        leases: Some(reply.leases),
        undetermined_writes_fail: Some(reply.undetermined_writes_fail),
        removed: stale_peers.into_iter().filter_map(removed).collect(),
        unix_s: reply.unix_s,
        measured: reply.measured,
        slowdowns: slowdowns(&state.cluster, now),
        followed: reply.followed,
    };
    Accepted { answer, rejected, state }
}

/// Returns the stores that slow their writers.
///
/// Invariant: the last report of a store that is silent does not count. It would slow the leaders of its
/// regions permanently.
fn slowdowns(cluster: &Cluster, now: Millis) -> Slowdowns {
    let lags = |store: &&Store| {
        let report = &store.report;
        // bug node.silent_store_slows_writers: `store.liveness(cluster.config(), now)` is `Liveness::Live`
        report.slowdown_nanos_per_kib > 0 && store.liveness(cluster.config(), now) == Liveness::Live
    };
    let slowdown = |store: &Store| (store.id, store.report.slowdown_nanos_per_kib);
    cluster.stores().filter(lags).map(slowdown).collect()
}
