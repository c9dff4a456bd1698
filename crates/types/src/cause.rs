//! Why bytes are written: the names used by the byte meter, by statistics and by reports.

/// The reason for a write to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cause {
    /// A batch of records: the only foreground write.
    Log,
    /// A sealed segment's sidecar.
    Sidecar,
    /// A frozen memtable becoming a run.
    Flush,
    /// Runs becoming a run.
    Merge,
    /// Live values leaving a victim file.
    Relocate,
    /// Values rewritten in key order.
    Sort,
    /// The manifest and the store's identity.
    Manifest,
    /// A region's snapshot, export or install.
    Snapshot,
}

impl Cause {
    /// All causes, in the order of their discriminants.
    pub const ALL: [Self; 8] = [
        Self::Log,
        Self::Sidecar,
        Self::Flush,
        Self::Merge,
        Self::Relocate,
        Self::Sort,
        Self::Manifest,
        Self::Snapshot,
    ];

    /// The name in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Sidecar => "sidecar",
            Self::Flush => "flush",
            Self::Merge => "merge",
            Self::Relocate => "relocate",
            Self::Sort => "sort",
            Self::Manifest => "manifest",
            Self::Snapshot => "snapshot",
        }
    }
}
