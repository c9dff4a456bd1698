//! Why connections end.

use std::fmt;
use std::io;
use stele_types::StoreId;

/// Why a node did not want a connection. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// It belongs to another cluster.
    OtherCluster = 1,
    /// The stores that are asked for are not at this address.
    StoreElsewhere = 2,
    /// The caller's stores were removed from the cluster.
    StoreRemoved = 3,
    /// It speaks no version of the protocol that the caller speaks.
    OtherVersion = 4,
    /// It has too many connections.
    TooMany = 5,
}

impl RejectReason {
    const ALL: [Self; 5] = [
        Self::OtherCluster,
        Self::StoreElsewhere,
        Self::StoreRemoved,
        Self::OtherVersion,
        Self::TooMany,
    ];

    pub(super) fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u8 == number)
    }

    fn label(self) -> &'static str {
        match self {
            Self::OtherCluster => "other_cluster",
            Self::StoreElsewhere => "store_elsewhere",
            Self::StoreRemoved => "store_removed",
            Self::OtherVersion => "other_version",
            Self::TooMany => "too_many",
        }
    }
}

/// Why a connection ended, or never began.
#[derive(Debug)]
pub enum CloseReason {
    /// The address could not be reached.
    Dial(io::Error),
    /// Nobody knows an address of the store.
    NoAddress(StoreId),
    /// Reading or writing failed.
    Io(io::Error),
    /// The other side ended it.
    Ended,
    /// Nothing came for too long: the other side is dead or cut off.
    Silent,
    /// Nothing could be written for too long.
    Stalled,
    /// The other side does not keep to the protocol.
    Malformed(&'static str),
    /// The other side sent a message that cannot be one.
    Unreadable(stele_types::Error),
    /// The connection is not wanted, and why in words.
    Refused(RejectReason, String),
    /// A snapshot is not wanted, or was not taken.
    Declined(String),
    /// A test cut it.
    Cut,
}

impl CloseReason {
    /// All labels, in the order of their numbers.
    pub const LABELS: [&'static str; 14] = [
        "dial",
        "no_address",
        "io",
        "ended",
        "silent",
        "stalled",
        "malformed",
        "other_cluster",
        "store_elsewhere",
        "store_removed",
        "other_version",
        "too_many",
        "declined",
        "cut",
    ];

    /// A word for metrics.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Dial(_) => "dial",
            Self::NoAddress(_) => "no_address",
            Self::Io(_) => "io",
            Self::Ended => "ended",
            Self::Silent => "silent",
            Self::Stalled => "stalled",
            Self::Malformed(_) | Self::Unreadable(_) => "malformed",
            Self::Refused(reason, _) => reason.label(),
            Self::Declined(_) => "declined",
            Self::Cut => "cut",
        }
    }

    /// The label's place in [`Closed::LABELS`].
    pub(super) fn number(&self) -> usize {
        let label = self.label();
        Self::LABELS.iter().position(|known| *known == label).unwrap_or(0)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dial(error) => write!(f, "cannot connect: {error}"),
            Self::NoAddress(store) => write!(f, "no address of store {store} is known"),
            Self::Io(error) => write!(f, "connection failed: {error}"),
            Self::Ended => f.write_str("closed by the other side"),
            Self::Silent => f.write_str("no sign of life from the other side"),
            Self::Stalled => f.write_str("the other side takes no bytes"),
            Self::Malformed(what) => write!(f, "protocol error: {what}"),
            Self::Unreadable(error) => write!(f, "protocol error: {error}"),
            Self::Refused(_, why) => write!(f, "refused: {why}"),
            Self::Declined(why) => write!(f, "snapshot not taken: {why}"),
            Self::Cut => f.write_str("cut by a test"),
        }
    }
}

impl std::error::Error for CloseReason {}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
