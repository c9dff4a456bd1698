//! `stele ctl checksum`: compares the replicas of a region by their checksums.

use crate::Outcome;
use crate::table::{self, Cell, formatted, number, words};
use stele_client::messages::LocalChecksumResponse;
use stele_client::{Control, Verdict};
use stele_types::{Error, RegionId, Result};

/// Maximum number of rounds until all checksums are of the same index; writes advance it.
const ROUNDS_MAX: usize = 20;

pub(super) async fn run(control: &Control, id: RegionId, json: bool) -> Result<Outcome> {
    let compared = control.compare_replicas(id, ROUNDS_MAX).await?;
    let verdict = match compared.verdict {
        Verdict::Identical => "identical",
        Verdict::Different => "DIFFERENT",
        Verdict::Moving => "moving",
    };
    let rows: Vec<Vec<Cell>> =
        compared.replicas.iter().map(|replica| row(replica, verdict)).collect();
    table::print(&rows, json, "no replicas")?;
    match compared.verdict {
        Verdict::Identical => Ok(Outcome::Done),
        Verdict::Different => Ok(Outcome::Failed),
        Verdict::Moving => Err(Error::Busy(format!(
            "no common index of the replicas of region {id}: writes continue; try again"
        ))),
    }
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
