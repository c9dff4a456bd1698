//! Reasons for writes, as named by the byte meter, statistics and reports.

/// The reason for a write to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Cause {
    /// A batch of records: the only foreground write.
    Log,
    /// A sealed segment's sidecar.
    Sidecar,
    /// A frozen memtable written as a run.
    Flush,
    /// Runs merged into one run.
    Merge,
    /// Live values moved out of a victim file.
    Relocate,
    /// Values rewritten in key order.
    Sort,
    /// The manifest and the store's identity.
    Manifest,
    /// A region's snapshot, exported or installed.
    Snapshot,
    /// The probe of the device at a store's first start.
    Probe,
}

impl Cause {
    /// All causes, in the order of their discriminants.
    pub const ALL: [Self; 9] = [
        Self::Log,
        Self::Sidecar,
        Self::Flush,
        Self::Merge,
        Self::Relocate,
        Self::Sort,
        Self::Manifest,
        Self::Snapshot,
        Self::Probe,
    ];

    /// Returns the name in metrics and reports.
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
            Self::Probe => "probe",
        }
    }
}
