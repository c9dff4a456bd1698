//! Safety rules for operators, also for those that an administrator orders. Checked when an
//! operator is admitted, and again before each step that changes the voters.

use super::{Operator, Step, settled};
use crate::cluster::Cluster;
use crate::region_info::RegionInfo;
use crate::schedule::ClusterView;
use stele_types::{Peer, PeerRole, StoreId};

/// Checks that `operator` is safe. The error is the reason why it must not run.
pub fn guard(view: &ClusterView<'_>, operator: &Operator) -> Result<(), String> {
    let Some(info) = view.cluster.regions().get(operator.region) else {
        return Err(format!("there is no region {}", operator.region));
    };
    can_act(view, info)?;
    let last = operator.final_peers(&info.region);
    if last == info.region.peers {
        return Ok(());
    }
    check_domains(view.cluster, info, &last)?;
    for store in operator.receivers() {
        if !view.cluster.is_serving(store, view.now) {
            return Err(format!("store {store} takes no replicas now"));
        }
    }
    let coming: Vec<StoreId> = operator.receivers().collect();
    check_votes(view, info, &last, &coming)
}

/// Checks that a region has a leader and a majority of live voters. Without them a proposal waits,
/// and may be applied long after its reason has ceased to hold.
pub(crate) fn can_act(view: &ClusterView<'_>, info: &RegionInfo) -> Result<(), String> {
    let is_heard = |store| view.cluster.is_heard(store, view.now);
    can_act_on(info, is_heard, |peer| view.is_reachable(info, peer))
}

pub(crate) fn can_act_on(
    info: &RegionInfo,
    is_heard: impl Fn(StoreId) -> bool,
    is_reachable: impl Fn(&Peer) -> bool,
) -> Result<(), String> {
    // bug placement.act_without_quorum: return Ok(());
    let region = info.region.id;
    if info.reported.is_none() || !info.leader.is_some_and(|leader| is_heard(leader.store)) {
        return Err(format!("region {region} has no known leader"));
    }
    // Without a joint configuration both majorities are the same.
    for outgoing in [true, false].into_iter().skip(usize::from(!info.region.is_joint())) {
        let voters = || info.region.peers.iter().filter(|peer| votes(peer.role, outgoing));
        let count = voters().count();
        let live = voters().filter(|peer| is_reachable(peer)).count();
        if live < count / 2 + 1 {
            return Err(format!("only {live} of {count} voters of region {region} respond"));
        }
    }
    Ok(())
}

/// Whether a role votes in the old (`outgoing`) or the new configuration.
fn votes(role: PeerRole, outgoing: bool) -> bool {
    match role {
        PeerRole::Voter => true,
        PeerRole::Learner => false,
        PeerRole::DemotingVoter => outgoing,
        PeerRole::IncomingVoter => !outgoing,
    }
}

/// Checks that no two voters share a failure domain, unless they did before.
fn check_domains(cluster: &Cluster, info: &RegionInfo, last: &[Peer]) -> Result<(), String> {
    let shared = |peers: &[Peer]| {
        let voters: Vec<&Peer> =
            peers.iter().filter(|p| settled(p.role) == PeerRole::Voter).collect();
        let pair = |(at, a): (usize, &&Peer)| {
            voters.iter().skip(at + 1).filter(|b| cluster.share_domain(a.store, b.store)).count()
        };
        voters.iter().enumerate().map(pair).sum::<usize>()
    };
    match shared(last) > shared(&info.region.peers) {
        false => Ok(()),
        true => {
            let what = cluster
                .domain_label()
                .map_or("node".to_owned(), |it| format!("value of the label `{it}`"));
            Err(format!("two replicas of region {} would share a {what}", info.region.id))
        }
    }
}

/// Checks that a majority of the voters in `last`, the configuration after the change, responds.
/// `coming`: stores of new replicas that do not exist yet; these stores need only be live.
fn check_votes(
    view: &ClusterView<'_>,
    info: &RegionInfo,
    last: &[Peer],
    coming: &[StoreId],
) -> Result<(), String> {
    // bug placement.break_quorum: return Ok(());
    let voters: Vec<&Peer> =
        last.iter().filter(|peer| settled(peer.role) == PeerRole::Voter).collect();
    let answers = |peer: &&&Peer| match coming.contains(&peer.store) {
        true => view.is_live(peer.store),
        false => view.is_reachable(info, peer) && info.is_caught_up(peer.id),
    };
    let live = voters.iter().filter(answers).count();
    match live > voters.len() / 2 {
        true => Ok(()),
        false => Err(format!(
            "only {live} of {} voters of region {} would respond afterwards",
            voters.len(),
            info.region.id
        )),
    }
}

pub(crate) fn may_step(
    view: &ClusterView<'_>,
    info: &RegionInfo,
    step: &Step,
) -> Result<(), String> {
    can_act(view, info)?;
    let mut peers = info.region.peers.clone();
    match step {
        Step::Enter { promote, demote } => {
            super::set_roles(&mut peers, promote, PeerRole::Voter);
            super::set_roles(&mut peers, demote, PeerRole::Learner);
        }
        Step::Leave => {}
        _ => return Ok(()),
    }
    check_votes(view, info, &peers, &[])
}

/// Whether a replica can lead: it votes, has caught up, and its store accepts leaders.
pub(crate) fn can_lead(view: &ClusterView<'_>, info: &RegionInfo, peer: &Peer) -> bool {
    settled(peer.role) == PeerRole::Voter
        && info.is_caught_up(peer.id)
        && view.is_serving(peer.store)
}
