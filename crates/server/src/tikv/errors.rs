//! Failures of requests, in the terms by which clients retry, and refusals of the commands of a
//! batch that are not raw key-value calls.

use crate::memory::{Exceeded, RequestMemory};
use crate::port::RAW_CALLS_ONLY;
use stele_proto::tikvpb::batch_commands_request::request::Cmd;
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::{
    BatchCommandsEmptyResponse, UnsupportedCoprocessorResponse, UnsupportedResponse,
};
use stele_proto::{INVALID, errorpb};
use stele_replica::{Busy, Refusal, Reply};
use stele_types::{Error, RegionId, StoreId};

/// Reason why a request was not served.
#[derive(Debug)]
pub enum Failure {
    /// Clients retry it: at another peer, in another region, or later.
    Region(Box<errorpb::Error>),
    /// The request can never succeed in this form. Clients return it to their caller.
    Invalid(String),
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

    /// Converts the store's answer to a request that was not executed.
    pub(crate) fn of_reply(
        reply: Reply,
        region: RegionId,
        store: StoreId,
        unknown: OnUnknown,
    ) -> Self {
        match reply {
            Reply::Refused(refusal) => Self::refused(refusal, region),
            Reply::Busy(busy) => Self::busy(&busy, region, store),
            Reply::Unknown(_) => Self::unknown(region, unknown),
            Reply::Done(done) => Self::Final(format!("unexpected answer: {done:?}")),
        }
    }

    /// Converts a refusal. Invariant: none of these answers is `stale_command` or
    /// `undetermined_result`, because the request certainly had no effect.
    pub fn refused(refusal: Refusal, region: RegionId) -> Self {
        match refusal {
            Refusal::NotLeader { leader }
            | Refusal::StaleTerm { leader }
            | Refusal::Superseded { leader } => not_leader(region, leader.as_ref()),
            Refusal::StoreStopped => not_leader(region, None),
            Refusal::RegionNotFound => region_not_found(region),
            Refusal::EpochNotMatch { current } => {
                let current_regions = current.iter().map(Into::into).collect();
                Self::region(format!("epoch of region {region} does not match"), |error| {
                    error.epoch_not_match = Some(errorpb::EpochNotMatch { current_regions });
                })
            }
            Refusal::MismatchPeer { asked, actual } => Self::region("mismatch peer id", |error| {
                let (request_peer_id, store_peer_id) = (asked.0, actual.0);
                let mismatch = errorpb::MismatchPeerId { request_peer_id, store_peer_id };
                error.mismatch_peer_id = Some(mismatch);
            }),
            Refusal::TooLarge { bytes, bytes_max } => {
                let text = format!("entry of {bytes} bytes; the limit is {bytes_max}");
                Self::Region(Box::new(too_large(text, region, bytes)))
            }
            Refusal::SessionDeadline { cluster_s } => Self::Final(format!(
                "the deadline of the session's request does not allow it at {cluster_s} s of the cluster's time"
            )),
            Refusal::Invalid(detail) => Self::Invalid(detail),
        }
    }

    /// Converts the refusal of memory for a request or its answer: nothing was changed.
    ///
    /// Invariant: the client gets an error and never a part of the answer. Most clients return
    /// `raft_entry_too_large` to their caller at once; they wait after `server_is_busy`.
    pub fn exceeded(exceeded: Exceeded, region: RegionId) -> Self {
        match exceeded {
            Exceeded::Request { bytes, .. } => {
                Self::Region(Box::new(too_large(exceeded.to_string(), region, bytes)))
            }
            Exceeded::Shared | Exceeded::Abandoned | Exceeded::Limit => {
                server_is_busy(&exceeded.to_string())
            }
        }
    }

    /// Returns the error of the answer.
    ///
    /// Invariant: what no retry can change is `raft_entry_too_large` without a size, and never the
    /// `error` text of an answer. It is the one error that every client returns to its caller at once.
    /// client-java sends a request that was answered by a text again, also a compare-and-swap. Missing rights
    /// alone have a text.
    pub fn into_error(self) -> errorpb::Error {
        match self {
            Self::Region(error) => *error,
            Self::Invalid(text) => too_large(format!("{INVALID}{text}"), RegionId(0), 0),
            Self::Final(text) | Self::Damaged(text) => too_large(text, RegionId(0), 0),
        }
    }

    /// Returns the answer to a write for which a device has no room, and no leader can move to where
    /// there is room.
    pub fn no_room(store: StoreId) -> Self {
        Self::Final(format!("{}: {NO_ROOM}", full(store)))
    }

    fn busy(busy: &Busy, region: RegionId, store: StoreId) -> Self {
        let region_id = region.0;
        match busy {
            Busy::Wait { reason } => server_is_busy(reason),
            // Some clients end a call at `server_is_busy`, which is for overload.
            Busy::DeadlinePassed => not_leader(region, None),
            Busy::DiskFull => disk_full(store),
            Busy::ReadIndexNotReady => Self::region("read index not ready", |error| {
                let reason = "no leader confirmed the read".to_owned();
                error.read_index_not_ready = Some(errorpb::ReadIndexNotReady { reason, region_id });
            }),
            Busy::Merging => Self::region(format!("region {region} is merging"), |error| {
                let merging = errorpb::ProposalInMergingMode { region_id };
                error.proposal_in_merging_mode = Some(merging);
            }),
        }
    }

    pub(super) fn unknown(region: RegionId, unknown: OnUnknown) -> Self {
        match unknown {
            OnUnknown::Read => not_leader(region, None),
            OnUnknown::Fail => Self::Final(UNDETERMINED.to_owned()),
            OnUnknown::Repeat => Self::region("stale command", |error| {
                error.stale_command = Some(errorpb::StaleCommand {});
            }),
            OnUnknown::Report => Self::region(UNDETERMINED, |error| {
                let message = UNDETERMINED.to_owned();
                error.undetermined_result = Some(errorpb::UndeterminedResult { message });
            }),
        }
    }

    /// Returns whether it says that the outcome is unknown.
    pub(super) fn is_undetermined(&self) -> bool {
        match self {
            Self::Region(error) => error.undetermined_result.is_some(),
            Self::Final(text) => text == UNDETERMINED,
            Self::Invalid(_) | Self::Damaged(_) => false,
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

pub(super) fn charge(memory: &RequestMemory, bytes: u64, region: RegionId) -> Result<(), Failure> {
    memory.charge(bytes).map_err(|exceeded| Failure::exceeded(exceeded, region))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnUnknown {
    /// The request changes nothing: clients repeat it at another peer.
    Read,
    /// Clients repeat it, as with TiKV. A repeated put may overwrite what another client wrote in
    /// between.
    Repeat,
    /// Clients return the error to their caller and repeat nothing.
    Fail,
    /// The client understands `undetermined_result`.
    Report,
}

/// Text of an unknown outcome. Programs match its first word.
const UNDETERMINED: &str = "undetermined: the write may or may not have taken effect; \
                            read the key before trying again";

const NO_ROOM: &str =
    "puts are refused until pairs are deleted or space is added; deletes and reads go on";

pub(super) fn not_leader(region: RegionId, leader: Option<&stele_types::Peer>) -> Failure {
    Failure::region(format!("peer is not leader of region {region}"), |error| {
        let leader = leader.map(Into::into);
        error.not_leader = Some(errorpb::NotLeader { region_id: region.0, leader });
    })
}

pub(super) fn region_not_found(region: RegionId) -> Failure {
    Failure::region(format!("region {region} not found"), |error| {
        error.region_not_found = Some(errorpb::RegionNotFound { region_id: region.0 });
    })
}

/// Creates the error of an overloaded store; clients pause for seconds.
pub(super) fn server_is_busy(reason: &str) -> Failure {
    Failure::region("server is busy", |error| {
        let reason = reason.to_owned();
        let busy = errorpb::ServerIsBusy { reason, ..errorpb::ServerIsBusy::default() };
        error.server_is_busy = Some(busy);
    })
}

/// Creates the error that clients return to their caller at once; `entry_size` 0 for another reason
/// than a size.
fn too_large(message: String, region: RegionId, entry_size: u64) -> errorpb::Error {
    let too_large = errorpb::RaftEntryTooLarge { region_id: region.0, entry_size };
    errorpb::Error { message, raft_entry_too_large: Some(too_large), ..errorpb::Error::default() }
}

fn full(store: StoreId) -> String {
    format!("disk full at store {store} or at its followers")
}

fn disk_full(store: StoreId) -> Failure {
    Failure::region(full(store), |error| {
        let reason = NO_ROOM.to_owned();
        error.disk_full = Some(errorpb::DiskFull { store_id: vec![store.0], reason });
    })
}

/// Returns the response of the command's own type: clients fail on one of another type.
pub(super) fn refusal(command: &Cmd) -> Done {
    macro_rules! refusal {
        ($($name:ident)*) => {
            match command {
                $(Cmd::$name(_) => Done::$name(UnsupportedResponse { region_error: error() }),)*
                Cmd::Coprocessor(_) => {
                    Done::Coprocessor(UnsupportedCoprocessorResponse { region_error: error() })
                }
                // All others are executed.
                _ => Done::Empty(BatchCommandsEmptyResponse::default()),
            }
        };
    }
    refusal! {
        Get Scan Prewrite Commit Import Cleanup BatchGet BatchRollback ScanLock ResolveLock Gc
        DeleteRange PessimisticLock PessimisticRollback CheckTxnStatus TxnHeartBeat
        CheckSecondaryLocks RawCoprocessor FlashbackToVersion PrepareFlashbackToVersion Flush
        BufferBatchGet
    }
}

/// Returns the one region error that clients of TiKV return to their caller at once. They repeat the
/// command for all others.
fn error() -> Option<errorpb::Error> {
    let too_large = Some(errorpb::RaftEntryTooLarge::default());
    let message = RAW_CALLS_ONLY.to_owned();
    Some(errorpb::Error { message, raft_entry_too_large: too_large, ..errorpb::Error::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_replica::Unknown;
    use stele_types::PeerId;

    const REGION: RegionId = RegionId(2);

    fn failure(reply: Reply, unknown: OnUnknown) -> Failure {
        Failure::of_reply(reply, REGION, StoreId(1), unknown)
    }

    #[test]
    fn a_request_that_was_certainly_not_executed_is_never_answered_as_unknown() {
        let (asked, actual) = (PeerId(1), PeerId(2));
        let refusals = [
            Refusal::NotLeader { leader: None },
            Refusal::StaleTerm { leader: None },
            Refusal::Superseded { leader: None },
            Refusal::StoreStopped,
            Refusal::RegionNotFound,
            Refusal::EpochNotMatch { current: Vec::new() },
            Refusal::MismatchPeer { asked, actual },
            Refusal::TooLarge { bytes: 2, bytes_max: 1 },
            Refusal::Invalid("no key".to_owned()),
        ];
        let busy = [
            Busy::Wait { reason: "a limit" },
            Busy::DeadlinePassed,
            Busy::DiskFull,
            Busy::ReadIndexNotReady,
            Busy::Merging,
        ];
        let replies = refusals.map(Reply::Refused).into_iter().chain(busy.map(Reply::Busy));
        for reply in replies {
            match failure(reply.clone(), OnUnknown::Repeat) {
                Failure::Region(error) => {
                    let is_unknown =
                        error.stale_command.is_some() || error.undetermined_result.is_some();
                    let bare = errorpb::Error {
                        message: error.message.clone(),
                        ..errorpb::Error::default()
                    };
                    assert!(!is_unknown && *error != bare, "{reply:?}: {error:?}");
                }
                Failure::Invalid(text) => assert!(!text.contains("undetermined"), "{reply:?}"),
                Failure::Final(text) | Failure::Damaged(text) => panic!("{reply:?}: {text}"),
            }
        }
    }

    fn is_final(error: &errorpb::Error) -> bool {
        error.raft_entry_too_large.is_some_and(|large| large.entry_size == 0)
    }

    #[test]
    fn what_no_retry_can_change_is_answered_by_the_error_that_every_client_returns_at_once() {
        let no_key = failure(Reply::Refused(Refusal::Invalid("no key".into())), OnUnknown::Repeat);
        let ends = [
            (no_key, "invalid request: no key"),
            (Failure::Final("the read panicked".to_owned()), "the read panicked"),
            (Failure::Damaged("block 7".to_owned()), "block 7"),
            (Failure::no_room(StoreId(3)), "disk full at store 3"),
        ];
        for (failure, text) in ends {
            let error = failure.into_error();
            assert!(is_final(&error) && error.message.starts_with(text), "{error:?}");
        }
        let full = failure(Reply::Busy(Busy::DiskFull), OnUnknown::Repeat).into_error();
        assert!(full.disk_full.is_some() && !is_final(&full), "a leader may move: {full:?}");
    }

    #[test]
    fn an_unknown_outcome_is_answered_as_the_client_or_the_cluster_wants_it() {
        let answer = |on| failure(Reply::Unknown(Unknown::StoreStopped), on);
        let repeats = answer(OnUnknown::Repeat);
        assert!(matches!(repeats, Failure::Region(error) if error.stale_command.is_some()));
        let fails = answer(OnUnknown::Fail);
        assert!(matches!(fails, Failure::Final(text) if text.starts_with("undetermined")));
        let reports = answer(OnUnknown::Report);
        assert!(matches!(reports, Failure::Region(error) if error.undetermined_result.is_some()));
        let error = answer(OnUnknown::Fail).into_error();
        assert!(error.message.starts_with("undetermined") && is_final(&error), "{error:?}");
        let reads = answer(OnUnknown::Read);
        assert!(matches!(reads, Failure::Region(error) if error.not_leader.is_some()));
    }
}
