//! Orderly end of a node: its leaders are handed over before its port closes.

use crate::store::StoreHandle;
use crate::stores::Stores;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_node::hand_over::{HandOver, Transfer};
use stele_node::report::steps;
use stele_replica::{Admin, RegionReport};
use stele_types::StoreId;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Time for the hand-over of all leaders.
const LIMIT: Duration = Duration::from_secs(5);
/// Transfers at the same time: each ends with the syncs of two logs, which others would delay.
const AT_ONCE: usize = 16;

pub(super) async fn hand_over(stores: &Stores) {
    let started = Instant::now();
    let stores = stores.all();
    let mut handed_over = 0;
    // At the limit the transfers under way go on; the port closes.
    let in_time = timeout(LIMIT, rounds(&stores, &mut handed_over)).await.is_ok();
    let kept = reports(&stores).await.iter().filter(|(_, report)| report.is_leading).count();
    let took_ms = started.elapsed().as_millis();
    tracing::info!("handed {handed_over} leaders over in {took_ms} ms; {kept} stay");
    if !in_time {
        tracing::warn!("the leaders that stay were not handed over within {} s", LIMIT.as_secs());
    }
}

async fn rounds(stores: &[Arc<StoreHandle>], handed_over: &mut u64) {
    let mut state = HandOver::new(stores.iter().map(|store| store.id()));
    loop {
        let transfers = state.next(&reports(stores).await);
        if transfers.is_empty() {
            return;
        }
        for some in transfers.chunks(AT_ONCE) {
            let mut under_way = JoinSet::new();
            for transfer in some {
                let store = stores.iter().find(|store| store.id() == transfer.from).cloned();
                let (store, transfer) = (store, transfer.clone());
                under_way.spawn(async move { (carry_out(store, &transfer).await, transfer) });
            }
            // A task fails only by a panic, which has been logged: its region is tried again.
            while let Some(ended) = under_way.join_next().await {
                match ended {
                    Ok((true, _)) => *handed_over += 1,
                    Ok((false, transfer)) => state.note_failed(&transfer),
                    Err(_) => {}
                }
            }
        }
    }
}

/// Transfers a leadership; returns whether the target leads.
async fn carry_out(store: Option<Arc<StoreHandle>>, transfer: &Transfer) -> bool {
    let Some(store) = store else { return false };
    let call = steps::request(&transfer.region, Admin::TransferLeader(transfer.to.id));
    let outcome = steps::outcome(store.submit(call, None).await);
    if let Err(obstacle) = &outcome {
        tracing::info!("region {}: {}", transfer.region.id, obstacle.reason);
    }
    matches!(outcome, Ok(None))
}

async fn reports(stores: &[Arc<StoreHandle>]) -> Vec<(StoreId, RegionReport)> {
    let mut all = Vec::new();
    for store in stores {
        let regions = store.regions().await.unwrap_or_default();
        all.extend(regions.into_iter().map(|report| (store.id(), report)));
    }
    all
}
