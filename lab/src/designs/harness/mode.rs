//! Mode of a group: when it answers writes and serves reads, and the delay of its links.

use std::time::Duration;

/// When a group answers writes and serves reads (BUC-Raft).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Whether the loop applies to an engine behind a queue ([`crate::designs::queued::Queued`]).
    pub apply_queue: bool,
    /// Whether writes are answered when they are committed, before they are applied.
    pub commit_return: bool,
    /// Whether reads see committed entries that are not applied. Otherwise they wait.
    pub read_acceleration: bool,
    /// Whether scans that see deletes follow the paper's cost model ([`crate::designs::buc`]). Otherwise they
    /// merge as the product does.
    pub costed_scans: bool,
}

impl Mode {
    /// Mode of the product.
    pub const PRODUCT: Self = Self {
        apply_queue: false,
        commit_return: true,
        read_acceleration: true,
        costed_scans: false,
    };
    /// `Raft` of the BUC-Raft paper: writes are answered when they are applied, and reads wait until
    /// all that is committed is applied.
    pub const RAFT: Self = Self {
        apply_queue: true,
        commit_return: false,
        read_acceleration: false,
        costed_scans: false,
    };
    /// `CR` of the paper: commit return alone.
    pub const CR: Self = Self { commit_return: true, ..Self::RAFT };
    /// `BUC-Raft` of the paper: commit return and read acceleration.
    pub const BUC: Self = Self { read_acceleration: true, costed_scans: true, ..Self::CR };
}

/// Settings of a group.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Ticks of 50 ms without a leader before an election, at least.
    pub election_ticks: u64,
    /// When writes are answered and reads served.
    pub mode: Mode,
    /// Time after which a message of a store is delivered to another one.
    pub delay: Duration,
}
