//! `stele ctl recover`: continues regions of which the majority is lost permanently. Without `--yes`
//! it only shows what would happen.

mod offline;
mod online;
mod replica_survey;

pub(super) use offline::run as offline;
pub(super) use online::{run as online, without_quorum};

use crate::table::{self, Cell, number, words};
use crate::text::printable;
use std::collections::BTreeSet;
use stele_server::recover::{Planned, RegionOutcome, SurvivingReplica, uncovered};
use stele_types::{KeyRange, Result, StoreId};

const DRY_RUN: &str = "nothing was changed. Entries that only lost stores hold are lost permanently. If they \
                       may come back, wait for them. Add `--yes` to carry this out\n";

fn lost_stores(numbers: &[u64]) -> BTreeSet<StoreId> {
    numbers.iter().copied().map(StoreId).collect()
}

/// Prints each replica that is left of the wanted regions with what becomes of its region, and the
/// keys without a replica.
fn show(planned: &[Planned], is_wanted: fn(&Planned) -> bool, is_dry: bool) -> Result<()> {
    let wanted = planned.iter().filter(|it| is_wanted(it));
    let rows: Vec<Vec<Cell>> = wanted.flat_map(rows).collect();
    table::print(&rows, false, "no regions")?;
    for range in uncovered(planned) {
        crate::terminal::print(&format!("keys {}: no replica is left\n", keys(&range)));
    }
    if is_dry {
        crate::terminal::print(DRY_RUN);
    }
    Ok(())
}

fn rows(planned: &Planned) -> Vec<Vec<Cell>> {
    let Planned { region, replicas, verdict } = planned;
    let row = |replica: Option<&SurvivingReplica>| {
        let number = |name, of: fn(&SurvivingReplica) -> u64| table::maybe(name, replica.map(of));
        vec![
            self::number("region", region.id.0),
            words("keys", keys(&region.range)),
            number("store", |it| it.store.0),
            number("term", |it| it.term.0),
            number("last", |it| it.last.0.0),
            number("last_term", |it| it.last.1.0),
            number("commit", |it| it.committed.0),
            words("result", text(verdict)),
        ]
    };
    match replicas.is_empty() {
        true => vec![row(None)],
        false => replicas.iter().map(|replica| row(Some(replica))).collect(),
    }
}

fn text(verdict: &RegionOutcome) -> String {
    match verdict {
        RegionOutcome::HasMajority => "has a majority".to_owned(),
        RegionOutcome::GoesOn { source, stores, .. } => {
            format!("goes on with {}, from the log of store {source}", list(stores))
        }
        RegionOutcome::Unseen(stores) => {
            format!("cannot go on: {} may hold more and is not shown", list(stores))
        }
        RegionOutcome::Lost => "LOST: no replica is left".to_owned(),
    }
}

fn list(stores: &[StoreId]) -> String {
    let names: Vec<String> = stores.iter().map(ToString::to_string).collect();
    format!("{} {}", if names.len() == 1 { "store" } else { "stores" }, names.join(", "))
}

fn keys(range: &KeyRange) -> String {
    let bound = |key: &[u8], none: &str| {
        if key.is_empty() { none.to_owned() } else { printable(key) }
    };
    format!("[{}, {})", bound(&range.start, "-∞"), bound(&range.end, "+∞"))
}
