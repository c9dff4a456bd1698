//! Runs of this node's stores, for the operator's choice between two of them.

use crate::transport::BoxFuture;
use stele_node::succession::RunSummary;
use stele_proto::stele::control::v1 as wire;
use stele_types::{Boot, Lineage, LogIndex, RegionId, Result, StoreId, StoreRun, Term};

/// The operator's choice between two runs of a store that stopped beside each other.
pub trait KeepRun: Send + Sync {
    /// Makes the store of this node go on; returns its new run. Fails with `Invalid` if it was not
    /// stopped so.
    fn keep_run(self: std::sync::Arc<Self>, store: StoreId)
    -> BoxFuture<'static, Result<StoreRun>>;

    /// Describes the directory of a store of this node. Fails with `Invalid` for another store.
    fn describe_run(&self, store: StoreId) -> Result<RunSummary>;
}

/// Encodes the description of a directory.
pub(super) fn described(summary: RunSummary) -> wire::DescribeRunResponse {
    let Boot { count, nonce } = summary.run.boot;
    let starts = summary.run.lineage.to_bytes().into();
    let last_entry = |(region, (term, index)): (RegionId, (Term, LogIndex))| wire::LastEntry {
        region_id: region.0,
        term: term.0,
        index: index.0,
    };
    wire::DescribeRunResponse {
        directory: summary.directory,
        address: summary.address,
        boot: Some(wire::Boot { count, nonce, starts }),
        last_write_s: summary.last_write_s,
        regions: summary.regions.into_iter().map(last_entry).collect(),
    }
}

/// Decodes the description of a directory.
pub fn summary_of(answer: wire::DescribeRunResponse) -> RunSummary {
    let boot = answer.boot.unwrap_or_default();
    let last = |it: wire::LastEntry| (RegionId(it.region_id), (Term(it.term), LogIndex(it.index)));
    RunSummary {
        directory: answer.directory,
        address: answer.address,
        run: StoreRun {
            boot: Boot { count: boot.count, nonce: boot.nonce },
            lineage: Lineage::from_bytes(&boot.starts).unwrap_or_default(),
        },
        last_write_s: answer.last_write_s,
        regions: answer.regions.into_iter().map(last).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::StartId;

    #[test]
    fn a_description_survives_the_round_trip() {
        let summary = RunSummary {
            directory: "/data/3".to_owned(),
            address: "c:1".to_owned(),
            run: StoreRun {
                boot: Boot { count: 9, nonce: 7 },
                lineage: Lineage::new([StartId(5), StartId(u128::MAX)]),
            },
            last_write_s: 1_700_000_000,
            regions: [(RegionId(2), (Term(3), LogIndex(4)))].into(),
        };
        assert_eq!(summary_of(described(summary.clone())), summary);
        assert_eq!(summary_of(wire::DescribeRunResponse::default()), RunSummary::default());
    }
}
