//! Pause and seal of the regions that stores of this node lead, for a moment.

use crate::store::{Caller, StoreHandle};
use crate::stores::Stores;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stele_proto::stele::control::v1::{
    MomentPart, NodeClock, PauseResponse, RegionTerm, SealResponse,
};
use stele_replica::{
    Busy, Done, Header, MomentCall, MomentStep, PAUSE_NANOS, Refusal, Reply, Submission,
};
use stele_types::{MomentId, RegionId, RegionKind};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout_at};

/// Time in which regions answer to *pause*. What is left of the pauses is for the seals.
const PAUSED_WITHIN: Duration = Duration::from_nanos(PAUSE_NANOS / 4 * 3);
/// Time in which regions are sealed: a round of a leader without a lease may wait for a heartbeat.
const SEALED_WITHIN: Duration = Duration::from_millis(400);

type Replies = UnboundedReceiver<(RegionId, Reply)>;

/// Pauses the data regions that stores of this node lead. Returns the answers of those that answer in time.
///
/// The requests are bounded by the queues of the stores, which refuse the others as busy.
pub(super) async fn pause(stores: &Stores, moment: MomentId) -> PauseResponse {
    let led = |store: &Arc<StoreHandle>| {
        let all = store.readers().all().into_iter();
        let led = all.filter(|it| it.kind == RegionKind::Data && store.leads(it.id));
        led.map(|region| region.id).collect()
    };
    let mut response = PauseResponse { moment: moment.0, ..PauseResponse::default() };
    let mut note = |region: RegionId, reason: String| {
        if response.not_paused == 0 {
            (response.not_paused, response.reason) = (region.0, reason);
        }
    };
    let mut parts = Vec::new();
    let (mut waiting, mut replies) = begin(stores, led, moment, MomentStep::Pause);
    let until = Instant::now() + PAUSED_WITHIN;
    while let Ok(Some((region, reply))) = timeout_at(until, replies.recv()).await {
        waiting.remove(&region);
        match reply {
            Reply::Done(Done::Paused { range, last, term }) => parts.push(MomentPart {
                region_id: region.0,
                start_key: range.start,
                end_key: range.end,
                term: term.0,
                last_index: last.0,
            }),
            // Another node answers.
            Reply::Refused(Refusal::NotLeader { .. } | Refusal::RegionNotFound) => {}
            other => note(region, reason(other)),
        }
    }
    if let Some(region) = waiting.first() {
        note(*region, "what was proposed is not committed in time".to_owned());
    }
    PauseResponse { parts, clock: clock(stores), ..response }
}

/// Reads the node's wall clock, after its regions were paused: what they acknowledged before is in the moment.
fn clock(stores: &Stores) -> Option<NodeClock> {
    let store_id = stores.all().iter().map(|store| store.id().0).min()?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(NodeClock { store_id, unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX) })
}

/// Seals regions that stores of this node lead. Returns those of which a leader is confirmed in time.
pub(super) async fn seal(
    stores: &Stores,
    moment: MomentId,
    regions: &[RegionTerm],
) -> SealResponse {
    let wanted: BTreeSet<RegionId> = regions.iter().map(|it| RegionId(it.region_id)).collect();
    let led = |store: &Arc<StoreHandle>| {
        wanted.iter().copied().filter(|region| store.leads(*region)).collect()
    };
    let mut response = SealResponse { moment: moment.0, ..SealResponse::default() };
    let (mut missing, mut failure) = (wanted.clone(), None);
    let (_, mut replies) = begin(stores, led, moment, MomentStep::Seal);
    let until = Instant::now() + SEALED_WITHIN;
    while let Ok(Some((region, reply))) = timeout_at(until, replies.recv()).await {
        match reply {
            Reply::Done(Done::Sealed { term, paused_nanos }) => {
                response.sealed.push(RegionTerm { region_id: region.0, term: term.0 });
                response.longest_pause_nanos = response.longest_pause_nanos.max(paused_nanos);
                missing.remove(&region);
            }
            other => _ = failure.get_or_insert((region, reason(other))),
        }
    }
    let late = missing.first().map(|region| (*region, "its leader is not confirmed".to_owned()));
    if let Some((region, reason)) = failure.or(late) {
        (response.not_sealed, response.reason) = (region.0, reason);
    }
    response
}

/// Sends the step to the regions that `led` names of each store. Returns them, and the replies.
fn begin(
    stores: &Stores,
    led: impl Fn(&Arc<StoreHandle>) -> Vec<RegionId>,
    moment: MomentId,
    step: MomentStep,
) -> (BTreeSet<RegionId>, Replies) {
    let (sender, replies) = unbounded_channel();
    let mut all = BTreeSet::new();
    for store in stores.all() {
        let regions = led(&store);
        let submissions = regions.iter().map(|region| {
            let (sender, region) = (sender.clone(), *region);
            let header = Header { region, ..Header::default() };
            let answer = move |reply| {
                // The caller may have gone.
                let _ = sender.send((region, reply));
            };
            let caller = Caller::new(answer);
            let request = MomentCall { header, moment, step }.into();
            Submission { request, caller, memory: None }
        });
        store.begin(submissions.collect());
        all.extend(regions);
    }
    (all, replies)
}

fn reason(reply: Reply) -> String {
    match reply {
        Reply::Refused(Refusal::Invalid(text)) => text,
        Reply::Refused(Refusal::NotLeader { .. }) => "another node leads it".to_owned(),
        Reply::Busy(Busy::Wait { reason }) => reason.to_owned(),
        other => format!("{other:?}"),
    }
}
