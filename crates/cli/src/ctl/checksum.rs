//! The replicas of a region, compared by the sums of what they hold.

use crate::Outcome;
use crate::table::{self, Cell, figure, number, words};
use std::time::Duration;
use stele_client::Control;
use stele_client::messages::LocalChecksumResponse;
use stele_types::{Error, RegionId, Result};

/// Rounds until all replicas are summed at the same index: writes move them on.
const ROUNDS_MAX: usize = 20;
const ROUND_PAUSE: Duration = Duration::from_millis(100);

pub async fn run(control: &Control, id: RegionId, json: bool) -> Result<Outcome> {
    let mut sums = Vec::new();
    for _ in 0..ROUNDS_MAX {
        sums = round(control, id, &sums).await?;
        if same(&sums, |sum| sum.applied_index) {
            break;
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    let is_settled = same(&sums, |sum| sum.applied_index);
    let is_same = same(&sums, |sum| (sum.checksum, sum.pairs, sum.bytes));
    let verdict = match (is_settled, is_same) {
        (true, true) => "identical",
        (true, false) => "DIFFERENT",
        (false, _) => "moving",
    };
    let rows: Vec<Vec<Cell>> = sums.iter().map(|sum| row(sum, verdict)).collect();
    table::print(&rows, json, "no replicas")?;
    match verdict {
        "identical" => Ok(Outcome::Done),
        "moving" => Err(Error::Busy(format!("writes to region {id} go on: no common index"))),
        _ => Ok(Outcome::Failed),
    }
}

/// Sums each replica once more, not before it is as far as the furthest was.
async fn round(
    control: &Control,
    id: RegionId,
    before: &[LocalChecksumResponse],
) -> Result<Vec<LocalChecksumResponse>> {
    let region = control.region(id).await?.region;
    let index = before.iter().map(|sum| sum.applied_index).max().unwrap_or(0);
    let mut sums = Vec::new();
    for peer in &region.peers {
        sums.push(control.local_checksum(id, peer.store, index).await?);
    }
    Ok(sums)
}

fn same<T: PartialEq>(
    sums: &[LocalChecksumResponse],
    of: impl Fn(&LocalChecksumResponse) -> T,
) -> bool {
    sums.windows(2).all(|pair| matches!(pair, [a, b] if of(a) == of(b)))
}

fn row(sum: &LocalChecksumResponse, verdict: &'static str) -> Vec<Cell> {
    vec![
        number("store", sum.store_id),
        number("peer", sum.peer_id),
        number("applied", sum.applied_index),
        figure("checksum", format!("{:016x}", sum.checksum), format!("{:016x}", sum.checksum)),
        number("pairs", sum.pairs),
        number("bytes", sum.bytes),
        words("replicas", verdict),
    ]
}
