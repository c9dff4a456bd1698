//! What the leader of the placement group holds in memory, and its regular work.

use super::PlacementService;
use std::collections::HashMap;
use std::sync::Arc;
use stele_placement::schedule::round;
use stele_placement::{Cluster, Millis, Operator, OperatorId, Operators, PairChange};
use stele_types::{Result, Term};
use tonic::Status;

/// See the module.
pub(super) struct Led {
    pub term: Term,
    pub cluster: Cluster,
    pub operators: Operators,
    /// The last report of each node: when it started, and which report of that life.
    pub reports: HashMap<String, (u64, u64)>,
    /// Something changed that schedulers should look at soon.
    pub is_news: bool,
    scheduled: Millis,
}

/// Between two rounds of the schedulers when nothing changed.
const ROUND_MILLIS: u64 = 1000;
/// Descriptors written behind in one proposal.
const BEHIND_BYTES_MAX: usize = 256 << 10;
/// Numbers kept at hand, so that splits and moves need no commit of their own.
const IDS_AT_HAND: u64 = 64;

impl Led {
    pub fn new(term: Term, cluster: Cluster) -> Self {
        let (operators, reports) = (Operators::default(), HashMap::new());
        Self { term, cluster, operators, reports, is_news: true, scheduled: Millis(0) }
    }

    pub fn apply(&mut self, changes: &[PairChange]) -> Result<()> {
        self.is_news = true;
        self.cluster.apply(changes)
    }

    fn schedule(&mut self, now: Millis) {
        if !self.is_news && now.since(self.scheduled) < ROUND_MILLIS {
            return;
        }
        (self.is_news, self.scheduled) = (false, now);
        self.cluster.note_drains(now);
        round(&mut self.cluster, &mut self.operators, now);
    }
}

impl PlacementService {
    /// Persists what is due, and lets the schedulers look.
    pub(super) async fn housekeep(self: &Arc<Self>) -> Result<(), Status> {
        let behind = self.touch(|led| led.cluster.take_region_changes(BEHIND_BYTES_MAX)).await?;
        let unix_seconds = self.clock.unix_seconds();
        self.decide(move |cluster, now| {
            let mut changes = behind;
            changes.extend(cluster.plan_burials(now));
            changes.extend(cluster.plan_silences(now, unix_seconds));
            if cluster.ids_reserved() < IDS_AT_HAND {
                changes.extend(cluster.plan_ids(IDS_AT_HAND).map_err(super::refused)?);
            }
            Ok(((), changes))
        })
        .await?;
        let now = self.now();
        self.touch(|led| led.schedule(now)).await
    }

    /// The first of `count` numbers for regions and peers that nobody else has or had.
    pub async fn alloc_ids(self: &Arc<Self>, count: u32) -> Result<u64, Status> {
        let request = stele_proto::stele::control::v1::AllocIdsRequest { header: None, count };
        Ok(self.alloc_ids_of(request).await?.first)
    }

    pub(super) async fn take_ids(self: &Arc<Self>, count: u64) -> Result<u64, Status> {
        loop {
            if let Some(ids) = self.touch(|led| led.cluster.take_ids(count)).await? {
                return Ok(ids.start);
            }
            self.reserve_ids(count).await?;
        }
    }

    async fn reserve_ids(self: &Arc<Self>, count: u64) -> Result<(), Status> {
        let plan = move |cluster: &Cluster, _| {
            let changes = cluster.plan_ids(count);
            Ok(((), changes.map_err(|error| Status::invalid_argument(error.to_string()))?))
        };
        self.decide(plan).await
    }

    /// Starts an operator that a person ordered. `plan` makes it of the state.
    pub(super) async fn order(
        self: &Arc<Self>,
        plan: impl Fn(&Led) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let ordered = self.order_now(plan).await;
        self.or_ask_again(ordered).await
    }

    async fn order_now(
        self: &Arc<Self>,
        plan: impl Fn(&Led) -> Result<Operator, Status>,
    ) -> Result<OperatorId, Status> {
        let wanted = |led: &Led| {
            let operator = plan(led)?;
            let region = led.cluster.regions().get(operator.region);
            Ok::<u64, Status>(operator.ids_wanted(region.map_or(0, |info| info.region.peers.len())))
        };
        let count = self.look(wanted).await??;
        if count > self.look(|led| led.cluster.ids_reserved()).await? {
            self.reserve_ids(count).await?;
        }
        let now = self.now();
        self.touch(|led| {
            led.operators.advance(&led.cluster, now);
            let operator = plan(led)?;
            let admitted = led.operators.admit(&mut led.cluster, operator, now);
            admitted.map_err(super::operators::not_admitted)
        })
        .await?
    }
}
