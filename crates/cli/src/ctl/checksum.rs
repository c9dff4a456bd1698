//! `stele ctl checksum`: compares the replicas of a region by their checksums.

use crate::Outcome;
use crate::table::{self, Cell, formatted, number, words};
use std::time::Duration;
use stele_client::Control;
use stele_client::messages::LocalChecksumResponse;
use stele_types::{Error, RegionId, Result};

/// Maximum number of rounds until all checksums are of the same index; writes advance it.
const ROUNDS_MAX: usize = 20;
const ROUND_PAUSE: Duration = Duration::from_millis(100);

pub async fn run(control: &Control, id: RegionId, json: bool) -> Result<Outcome> {
    let mut checksums = Vec::new();
    for _ in 0..ROUNDS_MAX {
        checksums = round(control, id, &checksums).await?;
        if same(&checksums, |replica| replica.applied_index) {
            break;
        }
        tokio::time::sleep(ROUND_PAUSE).await;
    }
    let has_common_index = same(&checksums, |replica| replica.applied_index);
    let is_same = same(&checksums, |replica| (replica.checksum, replica.pairs, replica.bytes));
    let verdict = match (has_common_index, is_same) {
        (true, true) => "identical",
        (true, false) => "DIFFERENT",
        (false, _) => "moving",
    };
    let rows: Vec<Vec<Cell>> = checksums.iter().map(|replica| row(replica, verdict)).collect();
    table::print(&rows, json, "no replicas")?;
    match verdict {
        "identical" => Ok(Outcome::Done),
        "moving" => Err(Error::Busy(format!(
            "no common index of the replicas of region {id}: writes continue; try again"
        ))),
        _ => Ok(Outcome::Failed),
    }
}

/// Computes the checksum of each replica, once it has reached the highest index of the round
/// before.
async fn round(
    control: &Control,
    id: RegionId,
    before: &[LocalChecksumResponse],
) -> Result<Vec<LocalChecksumResponse>> {
    let region = control.region(id).await?.region;
    let index = before.iter().map(|replica| replica.applied_index).max().unwrap_or(0);
    let mut checksums = Vec::new();
    for peer in &region.peers {
        checksums.push(control.local_checksum(id, peer.store, index).await?);
    }
    Ok(checksums)
}

fn same<T: PartialEq>(
    checksums: &[LocalChecksumResponse],
    of: impl Fn(&LocalChecksumResponse) -> T,
) -> bool {
    checksums.windows(2).all(|pair| matches!(pair, [a, b] if of(a) == of(b)))
}

fn row(replica: &LocalChecksumResponse, verdict: &'static str) -> Vec<Cell> {
    vec![
        number("store", replica.store_id),
        number("peer", replica.peer_id),
        number("applied", replica.applied_index),
        formatted(
            "checksum",
            format!("{:016x}", replica.checksum),
            format!("{:016x}", replica.checksum),
        ),
        number("pairs", replica.pairs),
        number("bytes", replica.bytes),
        words("replicas", verdict),
    ]
}
