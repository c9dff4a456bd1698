//! Failures of requests, in the terms by which clients retry.

use crate::convert;
use stele_proto::errorpb;
use stele_raftstore::Refusal;
use stele_types::{Error, RegionId, StoreId};

/// Reason why a request was not served.
#[derive(Debug)]
pub enum Failure {
    /// Clients retry it: at another peer, in another region, or later.
    Region(Box<errorpb::Error>),
    /// Clients return it to their caller.
    Final(String),
    /// The data cannot be read here until it is repaired from another replica.
    Damaged(String),
}

impl Failure {
    /// Creates a region error with one variant set.
    pub fn region(message: impl Into<String>, set: impl FnOnce(&mut errorpb::Error)) -> Self {
        let mut error = errorpb::Error { message: message.into(), ..errorpb::Error::default() };
        set(&mut error);
        Self::Region(Box::new(error))
    }

    /// Converts the store's refusal of a request for `region`.
    pub fn refused(refusal: Refusal, region: RegionId, store: StoreId) -> Self {
        let region_id = region.0;
        match refusal {
            Refusal::NotLeader { leader } => not_leader(region, leader.as_ref()),
            Refusal::RegionNotFound => region_not_found(region),
            Refusal::EpochNotMatch { current } => {
                let current_regions = current.iter().map(convert::region).collect();
                Self::region(format!("epoch of region {region} does not match"), |error| {
                    error.epoch_not_match = Some(errorpb::EpochNotMatch { current_regions });
                })
            }
            Refusal::StaleCommand => Self::region("stale command", |error| {
                error.stale_command = Some(errorpb::StaleCommand {});
            }),
            Refusal::MismatchPeer { asked, actual } => Self::region("mismatch peer id", |error| {
                let (request_peer_id, store_peer_id) = (asked.0, actual.0);
                let mismatch = errorpb::MismatchPeerId { request_peer_id, store_peer_id };
                error.mismatch_peer_id = Some(mismatch);
            }),
            Refusal::Busy { reason } => server_is_busy(reason),
            Refusal::TooLarge { bytes, bytes_max } => {
                let text = format!("entry of {bytes} bytes; the limit is {bytes_max}");
                Self::region(text, |error| {
                    let too_large = errorpb::RaftEntryTooLarge { region_id, entry_size: bytes };
                    error.raft_entry_too_large = Some(too_large);
                })
            }
            Refusal::DiskFull => disk_full(store),
            Refusal::ReadIndexNotReady => Self::region("read index not ready", |error| {
                let reason = "no leader confirmed the read".to_owned();
                error.read_index_not_ready = Some(errorpb::ReadIndexNotReady { reason, region_id });
            }),
            Refusal::Merging => Self::region(format!("region {region} is merging"), |error| {
                let merging = errorpb::ProposalInMergingMode { region_id };
                error.proposal_in_merging_mode = Some(merging);
            }),
            Refusal::NotInitialized => {
                Self::region(format!("region {region} has no data yet"), |error| {
                    let not_ready = errorpb::RegionNotInitialized { region_id };
                    error.region_not_initialized = Some(not_ready);
                })
            }
            Refusal::Undetermined => Self::Final(UNDETERMINED.to_owned()),
            Refusal::Invalid(detail) => Self::Final(detail),
        }
    }

    /// Converts the engine's failure of a read. Device failures are returned to the caller: a retry
    /// here would fail again.
    pub fn engine(error: &Error, store: StoreId) -> Self {
        match error {
            Error::NoSpace(_) => disk_full(store),
            Error::Busy(_) => server_is_busy("the store is busy"),
            error if error.is_damage() => Self::Damaged(error.to_string()),
            other => Self::Final(other.to_string()),
        }
    }
}

/// Outcome of a proposed compare-and-swap that is unknown: sent again, it could apply twice.
const UNDETERMINED: &str = "undetermined: the compare-and-swap may or may not have taken effect; \
                            read the key before trying again";

/// Creates the error of a store that does not lead the region.
pub fn not_leader(region: RegionId, leader: Option<&stele_types::Peer>) -> Failure {
    Failure::region(format!("peer is not leader of region {region}"), |error| {
        let leader = leader.map(convert::peer);
        error.not_leader = Some(errorpb::NotLeader { region_id: region.0, leader });
    })
}

/// Creates the error of a node without a replica of the region.
pub fn region_not_found(region: RegionId) -> Failure {
    Failure::region(format!("region {region} not found"), |error| {
        error.region_not_found = Some(errorpb::RegionNotFound { region_id: region.0 });
    })
}

/// Creates the error of an overloaded store; clients pause for seconds.
pub fn server_is_busy(reason: &str) -> Failure {
    Failure::region("server is busy", |error| {
        let reason = reason.to_owned();
        let busy = errorpb::ServerIsBusy { reason, ..errorpb::ServerIsBusy::default() };
        error.server_is_busy = Some(busy);
    })
}

fn disk_full(store: StoreId) -> Failure {
    Failure::region(format!("disk of store {store} is full"), |error| {
        let reason = "puts are refused until space is freed; deletes and reads continue".to_owned();
        error.disk_full = Some(errorpb::DiskFull { store_id: vec![store.0], reason });
    })
}
