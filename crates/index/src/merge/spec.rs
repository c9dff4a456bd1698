//! Description of a merge.

use bytes::Bytes;
use stele_types::{Cause, RunId};

/// The runs a merge replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeInputs {
    /// Whole tiers, adjacent in age. They become one tier with the age of the newest one.
    Tiers(Vec<u64>),
    /// Some runs of one tier, rewritten at the same age (relocation, sorting).
    Runs {
        /// Age of the tier.
        age: u64,
        /// Runs of that tier.
        runs: Vec<RunId>,
    },
}

/// Inputs and cause of a merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeSpec {
    /// Runs to replace.
    pub inputs: MergeInputs,
    /// Cause of the merge: `Merge`, `Relocate` or `Sort`. Written bytes are counted under it.
    pub cause: Cause,
}

/// A merge interrupted by the end of the process: its finished outputs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeProgress {
    /// Inputs and cause of the merge.
    pub spec: MergeSpec,
    /// Job number, as in the footers of its outputs.
    pub job: u64,
    /// Finished outputs, ascending.
    pub outputs: Vec<RunId>,
    /// Last key of the last output: the merge continues after it.
    pub last_key: Bytes,
}
