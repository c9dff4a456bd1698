//! Regions of this node that have lost their majority, and the stores that this node does not reach: for
//! the log, for `/healthz`, and for an operator while no leader of the placement group can answer.

use crate::members::Members;
use crate::placement::LostQuorum;
use crate::stores::Stores;
use crate::transport::Transport;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_placement::SYSTEM_REGION;
use stele_proto::stele::control::v1::{ListStoresResponse, StoreInfo, StoreStats};
use stele_replica::Reader;
use stele_types::{ClusterId, Region, RegionId, StoreId};

const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks at all regions while all known stores are reached and nothing was lost: then only
/// a region with voters on unknown stores may have lost its majority.
const INTERVAL_WITHOUT_LOSS: Duration = Duration::from_secs(10);
/// Time for which a loss must stay as it is before it is logged: an election ends within it.
const STABLE_AFTER: Duration = Duration::from_secs(3);
/// Regions that a message names; the others are counted.
const REGIONS_NAMED_MAX: usize = 10;

/// Regions without a majority, and the stores that are missing in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Loss {
    regions: BTreeSet<RegionId>,
    missing: BTreeSet<StoreId>,
}

#[derive(Debug, Default)]
struct Watch {
    seen: Loss,
    since: Option<Instant>,
    logged: Loss,
    looked: Option<Instant>,
}

impl Watch {
    /// Whether all regions must be looked at now. Records that they are.
    fn takes_a_look(&mut self, now: Instant, is_all_reached: bool) -> bool {
        let is_quiet = is_all_reached && self.seen == Loss::default() && self.logged == self.seen;
        let is_recent =
            self.looked.is_some_and(|at| now.duration_since(at) < INTERVAL_WITHOUT_LOSS);
        if is_quiet && is_recent {
            return false;
        }
        self.looked = Some(now);
        true
    }

    /// Notes the loss at a moment. Returns whether the log must name it.
    ///
    /// Invariant: a loss is logged once, and again only when it has changed.
    fn note(&mut self, now: Instant, loss: Loss) -> bool {
        if loss != self.seen || self.since.is_none() {
            (self.seen, self.since) = (loss, Some(now));
        }
        let is_stable = self.since.is_some_and(|since| now.duration_since(since) >= STABLE_AFTER);
        if !is_stable || self.logged == self.seen {
            return false;
        }
        // bug server.loss_logged_again: skip
        self.logged.clone_from(&self.seen);
        true
    }
}

/// What this node knows of majorities and of other stores.
pub struct Majorities {
    cluster: ClusterId,
    address: String,
    stores: Arc<Stores>,
    members: Arc<Members>,
    transport: Transport,
    watch: Mutex<Watch>,
    /// Time at which each store of another node was reached last.
    heard: Mutex<BTreeMap<StoreId, Instant>>,
}

impl Majorities {
    /// Creates the state of the node at `address`.
    pub fn new(
        cluster: ClusterId,
        address: String,
        stores: Arc<Stores>,
        members: Arc<Members>,
        transport: Transport,
    ) -> Self {
        let (watch, heard) = (Mutex::default(), Mutex::default());
        Self { cluster, address, stores, members, transport, watch, heard }
    }

    /// Checks in an interval, and logs what has been lost and what is back. Never returns.
    pub async fn run(self: Arc<Self>) {
        loop {
            self.check(Instant::now());
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Returns the line about regions that have lost their majority; `None` if there are none.
    pub(crate) fn degraded(&self) -> Option<String> {
        let logged = self.watch.lock().logged.clone();
        (!logged.regions.is_empty()).then(|| self.describe(&logged))
    }

    /// Returns the stores as this node knows them: the address of each, and the time since it was
    /// reached.
    pub fn known_stores(&self, ids: &[u64]) -> ListStoresResponse {
        let mut wanted = self.members.stores();
        wanted.retain(|store| ids.is_empty() || ids.contains(&store.0));
        let now = Instant::now();
        let stores = wanted.into_iter().filter_map(|store| self.known_store(store, now)).collect();
        let no_leader = self.system_lost().map(|lost| lost.to_string()).unwrap_or_default();
        ListStoresResponse { cluster_id: self.cluster.0, stores, known_here: true, no_leader }
    }

    fn known_store(&self, store: StoreId, now: Instant) -> Option<StoreInfo> {
        let member = self.members.get(store)?;
        let mut heard = self.heard.lock();
        if self.is_up(store) {
            heard.insert(store, now);
        }
        let heard = heard.get(&store).copied();
        let age_ms = heard.map(|at| now.saturating_duration_since(at).as_millis());
        Some(StoreInfo {
            stats: Some(StoreStats { id: store.0, ..StoreStats::default() }),
            address: member.known.address,
            client_address: member.client_address,
            heartbeat_age_ms: age_ms.map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX)),
            ..StoreInfo::default()
        })
    }

    fn system_lost(&self) -> Option<LostQuorum> {
        let reader = self.stores.holding(SYSTEM_REGION)?.readers().get(SYSTEM_REGION)?;
        self.lost(&reader)
    }

    fn is_own(&self, store: StoreId) -> bool {
        self.stores.get(store).is_some_and(|store| store.is_running())
    }

    fn is_up(&self, store: StoreId) -> bool {
        self.is_own(store) || self.transport.is_reachable(store)
    }

    /// Returns the voters of a region if they are too few. A follower connects to other followers only
    /// when it looks for a leader: with one it knows nothing of them.
    fn lost(&self, reader: &Reader) -> Option<LostQuorum> {
        match reader.leader() {
            Some(_) => None,
            None => LostQuorum::of(&reader.region(), |store| self.is_up(store)),
        }
    }

    fn check(&self, now: Instant) {
        let mut is_all_reached = true;
        for store in self.members.stores() {
            match self.transport.is_reachable(store) {
                true => _ = self.heard.lock().insert(store, now),
                false => is_all_reached &= self.is_own(store),
            }
        }
        if !self.watch.lock().takes_a_look(now, is_all_reached) {
            return;
        }
        let loss = self.loss();
        let is_due = self.watch.lock().note(now, loss.clone());
        match (is_due, loss.regions.is_empty()) {
            (false, _) => {}
            (true, false) => tracing::warn!("{}", self.describe(&loss)),
            (true, true) => tracing::info!("every region of this node has a majority again"),
        }
    }

    fn loss(&self) -> Loss {
        let mut loss = Loss::default();
        for store in self.stores.all().into_iter().filter(|store| store.is_running()) {
            for region in store.readers().all() {
                let reader = store.readers().get(region.id);
                if reader.is_some_and(|reader| self.lost(&reader).is_some()) {
                    loss.regions.insert(region.id);
                    loss.missing.extend(self.missing(&region));
                }
            }
        }
        loss
    }

    fn missing(&self, region: &Region) -> impl Iterator<Item = StoreId> {
        region.peers.iter().map(|peer| peer.store).filter(|store| !self.is_up(*store))
    }

    fn describe(&self, loss: &Loss) -> String {
        let address = |store: &StoreId| self.members.get(*store).map(|it| it.known.address);
        describe(loss, &self.address, address)
    }
}

/// Formats a loss: what no longer serves, what is missing, and what to do.
fn describe(loss: &Loss, own: &str, address: impl Fn(&StoreId) -> Option<String>) -> String {
    let named: Vec<String> =
        loss.regions.iter().take(REGIONS_NAMED_MAX).map(ToString::to_string).collect();
    let more = loss.regions.len().saturating_sub(named.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let (word, verb) = match loss.regions.len() {
        1 => ("region", "has lost its majority: it takes"),
        _ => ("regions", "have lost their majority: they take"),
    };
    let missing: Vec<String> = loss
        .missing
        .iter()
        .map(|store| match address(store) {
            Some(address) => format!("store {store} ({address})"),
            None => format!("store {store}"),
        })
        .collect();
    let ids: Vec<String> = loss.missing.iter().map(ToString::to_string).collect();
    format!(
        "{word} {}{more} {verb} no reads and no writes; not reached: {}. Start their nodes again; of \
         those that are lost permanently, `stele ctl --cluster {own} recover --lost {}` says how to go on",
        named.join(", "),
        missing.join(", "),
        ids.join(","),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(regions: &[u64], missing: &[u64]) -> Loss {
        Loss {
            regions: regions.iter().copied().map(RegionId).collect(),
            missing: missing.iter().copied().map(StoreId).collect(),
        }
    }

    #[test]
    fn a_lost_majority_is_logged_once_and_again_only_when_it_changes() {
        let began = Instant::now();
        let mut watch = Watch::default();
        let mut note = |second: u64, loss| watch.note(began + Duration::from_secs(second), loss);
        assert!(!note(0, loss(&[], &[])) && !note(9, loss(&[], &[])), "nothing is lost");
        assert!(!note(10, loss(&[1, 2], &[3])) && !note(12, loss(&[1, 2], &[3])), "an election");
        assert!(note(13, loss(&[1, 2], &[3])));
        assert!((14..100).all(|second| !note(second, loss(&[1, 2], &[3]))), "it was logged");
        assert!(!note(100, loss(&[1, 2], &[3, 4])));
        assert!(note(103, loss(&[1, 2], &[3, 4])), "another node is missing");
        assert!(!note(104, loss(&[], &[])) && !note(105, loss(&[1, 2], &[3, 4])));
        assert!((106..120).all(|second| !note(second, loss(&[1, 2], &[3, 4]))), "it is the same");
        assert!(!note(120, loss(&[], &[])) && note(123, loss(&[], &[])), "all are back");
        assert!(!note(124, loss(&[], &[])));
    }

    #[test]
    fn all_regions_are_looked_at_each_second_only_while_a_store_is_missing_or_a_majority() {
        let began = Instant::now();
        let mut watch = Watch::default();
        let at = |second: u64| began + Duration::from_secs(second);
        assert!(watch.takes_a_look(at(0), true) && !watch.takes_a_look(at(9), true));
        assert!(watch.takes_a_look(at(10), true) && !watch.takes_a_look(at(11), true));
        assert!(watch.takes_a_look(at(11), false) && watch.takes_a_look(at(12), false));
        watch.note(at(12), loss(&[1], &[3]));
        assert!(watch.takes_a_look(at(13), true) && watch.takes_a_look(at(14), true));
        watch.note(at(14), loss(&[1], &[3]));
        watch.note(at(15), loss(&[1], &[3]));
        watch.note(at(16), loss(&[], &[]));
        assert!(watch.takes_a_look(at(17), true), "the log does not say yet that it is back");
        watch.note(at(19), loss(&[], &[]));
        assert!(!watch.takes_a_look(at(20), true));
    }

    #[test]
    fn the_message_names_regions_missing_nodes_and_the_remedy() {
        let address = |store: &StoreId| (store.0 != 4).then(|| format!("h{store}:1"));
        let text = describe(&loss(&[1, 2], &[3, 4]), "h1:1", address);
        assert_eq!(
            text,
            "regions 1, 2 have lost their majority: they take no reads and no writes; not reached: \
             store 3 (h3:1), store 4. Start their nodes again; of those that are lost permanently, \
             `stele ctl --cluster h1:1 recover --lost 3,4` says how to go on"
        );
        let many: Vec<u64> = (1..=12).collect();
        let text = describe(&loss(&many, &[3]), "h1:1", address);
        assert!(text.contains("9, 10 and 2 more have lost"), "{text}");
        assert!(describe(&loss(&[7], &[3]), "h1:1", address).starts_with("region 7 has lost its"));
    }
}
