//! Last run of each store, across changes of the placement leader. It is persisted at the first
//! report of a run, together with the address of its node.

use super::Cluster;
use crate::pairs::{self, PairChange};
use crate::store::{NodeReport, StoreReport};
use stele_types::{Boot, BootOrder, Error, Result, StoreId, mutant};

impl Cluster {
    /// Returns the last run of a store, in which it had its address; unknown for a store of a node of
    /// an earlier version.
    pub fn boot(&self, store: StoreId) -> Boot {
        self.boots.get(&store).copied().unwrap_or_default()
    }

    /// Plans the record of a new run of a store.
    pub(super) fn plan_boot(&self, store: StoreId, boot: Boot) -> Option<PairChange> {
        let known = self.boot(store);
        let is_new = boot.is_known()
            && matches!(boot.relative_to(&known), BootOrder::After | BootOrder::Unknown);
        is_new.then(|| pairs::boot(store, boot))
    }

    /// Whether a report comes from a process that ended since, or from an older copy of the store's
    /// directory.
    pub(super) fn is_of_earlier_boot(&self, node: &NodeReport, report: &StoreReport) -> bool {
        node.boot(report).relative_to(&self.boot(report.id)) == BootOrder::Before
            && !mutant::active("placement.earlier_boot_heard")
    }

    /// Fails if one of the reported stores runs on another node from another copy of its directory.
    ///
    /// Invariant: of two runs of one store only the first one that reported is heard.
    pub(super) fn check_copies(&self, node: &NodeReport, reports: &[StoreReport]) -> Result<()> {
        let is_copy = |report: &&StoreReport| {
            node.boot(report).relative_to(&self.boot(report.id)) == BootOrder::Copy
                && !mutant::active("placement.copied_store_reports")
        };
        let Some(report) = reports.iter().filter(|report| !report.has_failed).find(is_copy) else {
            return Ok(());
        };
        let known = self.store(report.id).map(|store| store.address.clone()).unwrap_or_default();
        Err(Error::invalid(format!(
            "store {} runs at {known}, and {} runs a copy of its directory: stop one of the two nodes \
             and empty its directory",
            report.id, node.address
        )))
    }

    /// Whether a node's report comes from a process that ended since: each of its stores has reported
    /// in a later run.
    pub(crate) fn are_of_earlier_boots(&self, node: &NodeReport, reports: &[StoreReport]) -> bool {
        let mut serving = reports.iter().filter(|report| !report.has_failed).peekable();
        serving.peek().is_some() && serving.all(|report| self.is_of_earlier_boot(node, report))
    }
}
