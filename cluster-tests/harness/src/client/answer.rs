//! Answers of the server other than success, and what each proves about the operation.

use super::Outcome;
use serde::{Serialize, Serializer};
use std::error::Error as _;
use std::fmt::{self, Display};
use stele_proto::errorpb;
use tonic::{Code, Status};

/// Word with which the text of an unknown outcome begins or which it contains.
const UNDETERMINED: &str = "undetermined";

macro_rules! kinds {
    ($($kind:ident $name:literal)*) => {
        /// Kind of an answer.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum AnswerKind {
            /// Success.
            #[default]
            Done,
            $(#[doc = $name] $kind,)*
        }

        impl AnswerKind {
            /// Returns the name, as in the protocol.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    Self::Done => "done",
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

kinds! {
    StaleCommand "stale_command"
    UndeterminedResult "undetermined_result"
    UndeterminedText "error_undetermined"
    NoResponse "no_response"
    NotLeader "not_leader"
    RegionNotFound "region_not_found"
    KeyNotInRegion "key_not_in_region"
    EpochNotMatch "epoch_not_match"
    ServerIsBusy "server_is_busy"
    StoreNotMatch "store_not_match"
    RaftEntryTooLarge "raft_entry_too_large"
    ReadIndexNotReady "read_index_not_ready"
    ProposalInMergingMode "proposal_in_merging_mode"
    RegionNotInitialized "region_not_initialized"
    DiskFull "disk_full"
    MismatchPeerId "mismatch_peer_id"
    RegionText "region_error_text"
    ErrorText "error_text"
    InvalidArgument "invalid_argument"
    NotConnected "not_connected"
    NoRoute "no_route"
}

impl AnswerKind {
    /// Returns whether the operation may have taken effect, or may still do so.
    ///
    /// Invariant: every other answer than these and [`AnswerKind::Done`] proves that the operation
    /// had no effect and will have none.
    pub(crate) fn is_unknown(self) -> bool {
        use AnswerKind::{NoResponse, StaleCommand, UndeterminedResult, UndeterminedText};
        matches!(self, StaleCommand | UndeterminedResult | UndeterminedText | NoResponse)
    }

    /// Returns whether the operation certainly had no effect.
    pub(crate) fn is_refusal(self) -> bool {
        self != Self::Done && !self.is_unknown()
    }

    fn of_region_error(error: &errorpb::Error) -> Self {
        // The answer that ends a call in all clients: its text tells whether the outcome is known.
        let is_final = error.raft_entry_too_large.is_some();
        let variants = [
            (is_final && error.message.starts_with(UNDETERMINED), Self::UndeterminedText),
            (error.stale_command.is_some(), Self::StaleCommand),
            (error.undetermined_result.is_some(), Self::UndeterminedResult),
            (error.not_leader.is_some(), Self::NotLeader),
            (error.region_not_found.is_some(), Self::RegionNotFound),
            (error.key_not_in_region.is_some(), Self::KeyNotInRegion),
            (error.epoch_not_match.is_some(), Self::EpochNotMatch),
            (error.server_is_busy.is_some(), Self::ServerIsBusy),
            (error.store_not_match.is_some(), Self::StoreNotMatch),
            (error.raft_entry_too_large.is_some(), Self::RaftEntryTooLarge),
            (error.read_index_not_ready.is_some(), Self::ReadIndexNotReady),
            (error.proposal_in_merging_mode.is_some(), Self::ProposalInMergingMode),
            (error.region_not_initialized.is_some(), Self::RegionNotInitialized),
            (error.disk_full.is_some(), Self::DiskFull),
            (error.mismatch_peer_id.is_some(), Self::MismatchPeerId),
        ];
        let found = variants.into_iter().find_map(|(is_set, kind)| is_set.then_some(kind));
        found.unwrap_or_else(|| Self::of_text(&error.message, Self::RegionText))
    }

    fn of_text(text: &str, otherwise: Self) -> Self {
        if text.contains(UNDETERMINED) { Self::UndeterminedText } else { otherwise }
    }

    fn of_status(status: &Status) -> Self {
        match status.code() {
            _ if is_refused_connection(status) => Self::NotConnected,
            Code::InvalidArgument => Self::InvalidArgument,
            _ => Self::NoResponse,
        }
    }
}

impl Serialize for AnswerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedAnswer {
    pub kind: AnswerKind,
    pub text: String,
}

impl FailedAnswer {
    /// The client found no peer to which it can send the operation.
    pub(crate) fn no_route(reason: impl Display) -> Self {
        Self { kind: AnswerKind::NoRoute, text: reason.to_string() }
    }

    /// Reads the errors of a response; `None` for success.
    pub(crate) fn of_response(region_error: Option<&errorpb::Error>, error: &str) -> Option<Self> {
        match region_error {
            Some(region_error) => Some(Self {
                kind: AnswerKind::of_region_error(region_error),
                text: format!("{region_error:?}"),
            }),
            None if error.is_empty() => None,
            None => Some(Self {
                kind: AnswerKind::of_text(error, AnswerKind::ErrorText),
                text: error.to_owned(),
            }),
        }
    }

    /// Reads the status of a call without a response.
    pub(crate) fn of_status(status: &Status) -> Self {
        Self { kind: AnswerKind::of_status(status), text: format!("{status:?}") }
    }

    /// Returns whether a device has no room: a leader may still move, or the answer is final.
    pub(crate) fn is_of_full_disk(&self) -> bool {
        let is_final = self.kind == AnswerKind::RaftEntryTooLarge;
        self.kind == AnswerKind::DiskFull || is_final && self.text.contains("disk full")
    }

    pub(crate) fn into_outcome<T>(self) -> Outcome<T> {
        if self.kind.is_unknown() { Outcome::Ambiguous(self) } else { Outcome::Refused(self) }
    }
}

impl Display for FailedAnswer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.kind.name(), self.text)
    }
}

/// Returns whether no connection was made, so that the request was never sent.
fn is_refused_connection(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        let connecting = error.to_string().contains("tcp connect error");
        let refused = error
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        if connecting || refused {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(set: impl FnOnce(&mut errorpb::Error)) -> AnswerKind {
        let mut error = errorpb::Error { message: "a text".to_owned(), ..Default::default() };
        set(&mut error);
        FailedAnswer::of_response(Some(&error), "").unwrap().kind
    }

    fn text(text: &str) -> AnswerKind {
        FailedAnswer::of_response(None, text).unwrap().kind
    }

    #[test]
    fn only_four_kinds_of_answer_leave_the_outcome_unknown() {
        let unknown = [
            region(|error| error.stale_command = Some(errorpb::StaleCommand {})),
            region(|error| error.undetermined_result = Some(Default::default())),
            region(|error| error.message = "undetermined: the leader has changed".to_owned()),
            text("undetermined: the write may or may not have taken effect"),
            region(|error| {
                error.message = "undetermined: the write may or may not".to_owned();
                error.raft_entry_too_large = Some(Default::default());
            }),
            FailedAnswer::of_status(&Status::deadline_exceeded("Timeout expired")).kind,
            FailedAnswer::of_status(&Status::unavailable("the connection is lost")).kind,
        ];
        for kind in unknown {
            assert!(kind.is_unknown() && !kind.is_refusal(), "{kind:?}");
        }
        let refusals = [
            region(|error| error.not_leader = Some(Default::default())),
            region(|error| error.epoch_not_match = Some(Default::default())),
            region(|error| error.region_not_found = Some(Default::default())),
            region(|error| error.server_is_busy = Some(Default::default())),
            region(|error| error.mismatch_peer_id = Some(Default::default())),
            region(|error| error.read_index_not_ready = Some(Default::default())),
            region(|error| error.disk_full = Some(Default::default())),
            region(|error| error.raft_entry_too_large = Some(Default::default())),
            region(|_| {}),
            text("the key is too long"),
            FailedAnswer::of_status(&Status::invalid_argument("no key")).kind,
            FailedAnswer::no_route("no leader").kind,
        ];
        for kind in refusals {
            assert!(kind.is_refusal() && !kind.is_unknown(), "{kind:?}");
        }
        let full = |set: fn(&mut errorpb::Error)| {
            let mut error =
                errorpb::Error { message: "disk full at store 1".into(), ..Default::default() };
            set(&mut error);
            FailedAnswer::of_response(Some(&error), "").unwrap().is_of_full_disk()
        };
        assert!(full(|error| error.disk_full = Some(Default::default())));
        assert!(full(|error| error.raft_entry_too_large = Some(Default::default())));
        assert!(!full(|error| error.not_leader = Some(Default::default())));
        assert!(!AnswerKind::Done.is_refusal() && !AnswerKind::Done.is_unknown());
        assert_eq!(FailedAnswer::of_response(None, ""), None);
    }

    #[tokio::test]
    async fn a_refused_connection_proves_that_nothing_was_sent() {
        let channel = tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let mut client = stele_proto::tikvpb::tikv_client::TikvClient::new(channel);
        let status = client.raw_put(stele_proto::kvrpcpb::RawPutRequest::default()).await;
        assert_eq!(FailedAnswer::of_status(&status.unwrap_err()).kind, AnswerKind::NotConnected);
    }
}
