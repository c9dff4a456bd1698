//! What a merge reads.

use bytes::Bytes;
use stele_types::{Cause, RunId};

/// The runs a merge replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeInputs {
    /// Whole tiers, next to each other in age, which become one tier of the newest one's age.
    Tiers(Vec<u64>),
    /// Some runs of one tier, rewritten at the same age (relocation, sorting).
    Runs {
        /// The tier.
        age: u64,
        /// The runs, all of that tier.
        runs: Vec<RunId>,
    },
}

/// What a merge does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeSpec {
    /// The runs it replaces.
    pub inputs: MergeInputs,
    /// Why: `Merge`, `Relocate` or `Sort`; the bytes are counted under it.
    pub cause: Cause,
}

/// A merge cut short by the end of the process: its finished outputs are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeProgress {
    /// What the merge does.
    pub spec: MergeSpec,
    /// Its number, in the footers of its outputs.
    pub job: u64,
    /// Finished outputs, ascending.
    pub outputs: Vec<RunId>,
    /// The last key of the last output: the merge goes on after it.
    pub last_key: Bytes,
}
