//! Reasons why connections end.

use crate::access::Denied;
use std::fmt;
use std::io;
use stele_node::succession::Refusal;
use stele_types::StoreId;

const OTHER_NODE: &str = "other_node";

/// Reason why a node rejected a connection. The numbers are the wire's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The node belongs to another cluster.
    OtherCluster = 1,
    /// The requested stores are not at this address.
    StoreElsewhere = 2,
    /// The caller's stores were removed from the cluster.
    StoreRemoved = 3,
    /// The node supports no version of the protocol that the caller supports.
    OtherVersion = 4,
    /// The node has too many connections.
    TooMany = 5,
    /// Leases and vote holds of the two nodes do not fit.
    OtherTick = 6,
    /// A store of the caller runs elsewhere, from another copy of its directory.
    CopiedDirectory = 7,
    /// The caller's stores are those of another node, by its certificate.
    OtherNode = 8,
    /// No list of members has named the caller's stores yet.
    NotListed = 9,
    /// Another listener of the node serves nodes.
    OtherListener = 10,
}

impl RejectReason {
    const ALL: [Self; 10] = [
        Self::OtherCluster,
        Self::StoreElsewhere,
        Self::StoreRemoved,
        Self::OtherVersion,
        Self::TooMany,
        Self::OtherTick,
        Self::CopiedDirectory,
        Self::OtherNode,
        Self::NotListed,
        Self::OtherListener,
    ];

    /// Returns the reason to reject a node of which no store is heard.
    pub(super) fn of_stores(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OtherNode => Self::OtherNode,
            Refusal::NotListed => Self::NotListed,
            _ => Self::CopiedDirectory,
        }
    }

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
            Self::OtherTick => "other_tick",
            Self::CopiedDirectory => "copied_directory",
            Self::OtherNode => OTHER_NODE,
            Self::NotListed => "not_listed",
            Self::OtherListener => "other_listener",
        }
    }
}

/// Reason why a connection ended, or was not made.
#[derive(Debug)]
pub enum CloseReason {
    /// The address could not be reached.
    Dial(io::Error),
    /// No address of the store is known.
    NoAddress(StoreId),
    /// Reading or writing failed.
    Io(io::Error),
    /// The other side closed it.
    Ended,
    /// Nothing was received for too long: the other side is down or unreachable.
    Silent,
    /// Nothing could be written for too long.
    Stalled,
    /// The other side violated the protocol.
    Malformed(&'static str),
    /// The other side sent a message that does not decode.
    Unreadable(stele_types::Error),
    /// The connection was rejected, with a text.
    Refused(RejectReason, String),
    /// A snapshot was refused or not installed.
    Declined(String),
    /// A store of the other side runs elsewhere now, or must not be heard.
    Displaced,
    /// The other side is no node of the cluster.
    Denied(Denied),
    /// The certificate of the other side is not that of this store's node.
    NotOwner(StoreId),
}

impl CloseReason {
    /// Whether only the connection ended: a snapshot on it may go on on another one.
    pub(crate) fn is_break(&self) -> bool {
        matches!(self, Self::Dial(_) | Self::Io(_) | Self::Ended | Self::Silent | Self::Stalled)
    }

    /// All labels, in the order of their numbers.
    pub(crate) const LABELS: [&'static str; 20] = [
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
        "other_tick",
        "copied_directory",
        "displaced",
        "denied",
        OTHER_NODE,
        "not_listed",
        "other_listener",
    ];

    /// Returns the label in metrics.
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
            Self::Displaced => "displaced",
            Self::Denied(_) => "denied",
            Self::NotOwner(_) => OTHER_NODE,
        }
    }

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
            Self::Denied(denied) => denied.fmt(f),
            Self::NotOwner(store) => {
                write!(
                    f,
                    "the certificate of the other side is not that of the node of store {store}"
                )
            }
            Self::Displaced => f.write_str("another run of its store is heard now"),
            Self::Ended => f.write_str("closed by the other side"),
            Self::Silent => f.write_str("nothing received from the other side for too long"),
            Self::Stalled => f.write_str("the other side accepts no bytes"),
            Self::Malformed(what) => write!(f, "protocol error: {what}"),
            Self::Unreadable(error) => write!(f, "protocol error: {error}"),
            Self::Refused(_, reason) => write!(f, "refused: {reason}"),
            Self::Declined(reason) => write!(f, "snapshot declined: {reason}"),
        }
    }
}

impl std::error::Error for CloseReason {}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}
