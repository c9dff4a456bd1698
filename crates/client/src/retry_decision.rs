//! Decisions how to retry after a region error, and after a call without a response. Pure.

use crate::backoff::Pause;
use crate::delivery::{Delivery, Failure, is_from_node};
use std::time::Duration;
use stele_proto::{INVALID, UNDETERMINED, errorpb};
use stele_types::{Error, Peer, Region};
use tonic::Code;

#[derive(Debug)]
pub(crate) enum Step {
    /// No change: call the same peer.
    Stay,
    Follow(Peer),
    NextPeer,
    /// Look the store's address up again, and call the next peer of the region.
    NextNode,
    /// Replace the cached region by these regions.
    Install(Vec<Region>),
    Reload,
    /// Look the region and the store's address up again.
    ReloadStore,
    /// No change: call the same peer. At its deadline the call fails with this error.
    StayOrFail(Error),
    /// Fail the call: what it sends or wants is too long for one message or entry.
    TooLong(Error),
    Fail(Error),
}

#[derive(Debug)]
pub(crate) struct RetryDecision {
    pub step: Step,
    pub pause: Pause,
    /// Whether a write may have taken effect although it failed.
    pub is_ambiguous: bool,
}

/// Decides how to retry after `error`. All errors except the stale command, the undetermined result
/// and an error without a variant are detected before a write is proposed, so the write had no
/// effect.
pub(crate) fn decide_retry(error: &errorpb::Error) -> RetryDecision {
    let certain = |step, pause| RetryDecision { step, pause, is_ambiguous: false };
    if let Some(not_leader) = &error.not_leader {
        return match not_leader.leader.as_ref().filter(|leader| leader.store_id != 0) {
            Some(leader) => certain(Step::Follow(leader.into()), Pause::None),
            None => certain(Step::NextPeer, Pause::Region),
        };
    }
    if let Some(epoch) = &error.epoch_not_match {
        if epoch.current_regions.is_empty() {
            return certain(Step::Reload, Pause::Region);
        }
        let regions = epoch.current_regions.iter().map(Into::into).collect();
        return certain(Step::Install(regions), Pause::None);
    }
    if let Some(busy) = &error.server_is_busy {
        let requested_ms = busy.backoff_ms.max(u64::from(busy.estimated_wait_ms));
        return certain(Step::Stay, Pause::Busy(Duration::from_millis(requested_ms.min(10_000))));
    }
    if let Some(large) = &error.raft_entry_too_large {
        let step = match large.entry_size {
            0 => Step::Fail(final_error(text(error))),
            bytes => {
                let detail = format!("{bytes} bytes are too many: {}", text(error));
                Step::TooLong(Error::Invalid(detail))
            }
        };
        return certain(step, Pause::None);
    }
    if error.disk_full.is_some() {
        // The leader may move to a store that has room.
        let pause = Pause::Busy(Duration::ZERO);
        return certain(Step::StayOrFail(Error::Refused(text(error))), pause);
    }
    if error.store_not_match.is_some() {
        return certain(Step::ReloadStore, Pause::Region);
    }
    if error.region_not_found.is_some()
        || error.key_not_in_region.is_some()
        || error.mismatch_peer_id.is_some()
    {
        return certain(Step::Reload, Pause::Region);
    }
    if error.read_index_not_ready.is_some() || error.proposal_in_merging_mode.is_some() {
        return certain(Step::Stay, Pause::Region);
    }
    if error.region_not_initialized.is_some() {
        return certain(Step::NextPeer, Pause::Region);
    }
    let step = match error.stale_command.is_some() || error.undetermined_result.is_some() {
        true => Step::Stay,
        false => Step::NextPeer,
    };
    RetryDecision { step, pause: Pause::Region, is_ambiguous: true }
}

/// Decides how to retry after a call without a response, for a `reason`. A write is ambiguous unless
/// it was not sent or the node itself refuses the call: then it had no effect.
pub(crate) fn decide_after_failure(failure: &Failure, reason: &str) -> RetryDecision {
    let certain = |step, pause| RetryDecision { step, pause, is_ambiguous: false };
    match failure.status.code() {
        _ if !is_from_node(&failure.status) => {}
        Code::InvalidArgument
        | Code::FailedPrecondition
        | Code::Unimplemented
        | Code::PermissionDenied
        | Code::Unauthenticated => {
            return certain(Step::Fail(Error::Refused(reason.to_owned())), Pause::None);
        }
        // A request exceeds the maximum length of one side; a retry would too. So does a response,
        // but none to a write is long.
        Code::OutOfRange => {
            return certain(Step::TooLong(Error::Invalid(reason.to_owned())), Pause::None);
        }
        Code::ResourceExhausted => return certain(Step::Stay, Pause::Busy(Duration::ZERO)),
        _ => {}
    }
    let is_ambiguous = failure.delivery == Delivery::MaybeSent;
    RetryDecision { step: Step::NextNode, pause: Pause::Region, is_ambiguous }
}

/// Returns the error of a final answer, of which the text states the kind.
pub(crate) fn final_error(text: String) -> Error {
    match text.strip_prefix(INVALID) {
        Some(detail) => Error::Invalid(detail.to_owned()),
        None if text.starts_with(UNDETERMINED) => Error::Undetermined(text),
        None => Error::Refused(text),
    }
}

pub(crate) fn text(error: &errorpb::Error) -> String {
    let undetermined = error.undetermined_result.as_ref().map(|result| result.message.as_str());
    let busy = error.server_is_busy.as_ref().map(|busy| busy.reason.as_str());
    let disk = error.disk_full.as_ref().map(|disk| disk.reason.as_str());
    let detail = undetermined.or(busy).or(disk).filter(|detail| !detail.is_empty());
    match (error.message.is_empty(), detail) {
        (true, None) => "the store gave no reason".to_owned(),
        (true, Some(detail)) => detail.to_owned(),
        (false, None) => error.message.clone(),
        (false, Some(detail)) if error.message.contains(detail) => error.message.clone(),
        (false, Some(detail)) => format!("{}: {detail}", error.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_proto::metapb;
    use tonic::Status;

    fn with(set: impl FnOnce(&mut errorpb::Error)) -> RetryDecision {
        let mut error = errorpb::Error::default();
        set(&mut error);
        decide_retry(&error)
    }

    #[test]
    fn every_variant_has_its_reaction() {
        let leader = metapb::Peer { id: 5, store_id: 2, ..metapb::Peer::default() };
        let led = |leader| Some(errorpb::NotLeader { region_id: 1, leader });
        let decision = with(|e| e.not_leader = led(Some(leader)));
        assert!(matches!(decision.step, Step::Follow(peer) if peer.store.0 == 2));
        assert_eq!(decision.pause, Pause::None);
        assert!(matches!(with(|e| e.not_leader = led(None)).step, Step::NextPeer));
        let empty = with(|e| e.epoch_not_match = Some(errorpb::EpochNotMatch::default()));
        assert!(matches!(empty.step, Step::Reload));
        let regions = vec![metapb::Region::default(); 2];
        let given = errorpb::EpochNotMatch { current_regions: regions };
        let given = with(|e| e.epoch_not_match = Some(given));
        assert!(matches!(given.step, Step::Install(regions) if regions.len() == 2));
        let busy = errorpb::ServerIsBusy { backoff_ms: 70, ..errorpb::ServerIsBusy::default() };
        let busy = with(|e| e.server_is_busy = Some(busy));
        assert_eq!(busy.pause, Pause::Busy(Duration::from_millis(70)));
        let large = |entry_size| {
            let large = errorpb::RaftEntryTooLarge { entry_size, ..Default::default() };
            with(|e| e.raft_entry_too_large = Some(large)).step
        };
        assert!(matches!(large(9 << 20), Step::TooLong(Error::Invalid(_))));
        assert!(matches!(large(0), Step::Fail(Error::Refused(_))), "a reason that is no size");
        let disk = with(|e| e.disk_full = Some(errorpb::DiskFull::default()));
        assert!(matches!(disk.step, Step::StayOrFail(Error::Refused(_))) && !disk.is_ambiguous);
        assert_eq!(disk.pause, Pause::Busy(Duration::ZERO));
        let store = with(|e| e.store_not_match = Some(errorpb::StoreNotMatch::default()));
        assert!(matches!(store.step, Step::ReloadStore));
        for reload in [
            with(|e| e.region_not_found = Some(errorpb::RegionNotFound::default())),
            with(|e| e.key_not_in_region = Some(errorpb::KeyNotInRegion::default())),
            with(|e| e.mismatch_peer_id = Some(errorpb::MismatchPeerId::default())),
        ] {
            assert!(matches!(reload.step, Step::Reload) && !reload.is_ambiguous);
        }
        for stay in [
            with(|e| e.read_index_not_ready = Some(errorpb::ReadIndexNotReady::default())),
            with(|e| e.proposal_in_merging_mode = Some(errorpb::ProposalInMergingMode::default())),
        ] {
            assert!(matches!(stay.step, Step::Stay) && !stay.is_ambiguous);
        }
        let new =
            with(|e| e.region_not_initialized = Some(errorpb::RegionNotInitialized::default()));
        assert!(matches!(new.step, Step::NextPeer) && !new.is_ambiguous);
    }

    #[test]
    fn what_was_not_sent_is_certain_and_so_is_what_the_node_itself_refuses() {
        use Delivery::{MaybeSent, NotSent};
        let decided = |status, delivery| {
            let decision = decide_after_failure(&Failure { status, delivery }, "n1: reason");
            (decision.step, decision.is_ambiguous)
        };
        let lost = || Status::unavailable("connection lost");
        assert!(matches!(decided(lost(), NotSent), (Step::NextNode, false)));
        assert!(matches!(decided(lost(), MaybeSent), (Step::NextNode, true)));
        let refused = decided(Status::failed_precondition("no"), MaybeSent);
        assert!(matches!(refused, (Step::Fail(Error::Refused(_)), false)));
        let long = decided(Status::out_of_range("long"), MaybeSent);
        assert!(matches!(long, (Step::TooLong(Error::Invalid(_)), false)));
        let shed = || Status::resource_exhausted("memory");
        assert!(matches!(decided(shed(), MaybeSent), (Step::Stay, false)));
        // The same code, made of an error of the connection: ENHANCE_YOUR_CALM, for example.
        let mut broken = shed();
        broken.set_source(std::sync::Arc::new(std::io::Error::other("connection lost")));
        assert!(matches!(decided(broken, MaybeSent), (Step::NextNode, true)));
    }

    #[test]
    fn no_text_is_stated_twice() {
        let unknown = "the write may or may not have taken effect".to_owned();
        let result = errorpb::UndeterminedResult { message: unknown.clone() };
        let mut error = errorpb::Error { undetermined_result: Some(result), ..Default::default() };
        assert_eq!(text(&error), unknown);
        error.message = format!("undetermined: {unknown}");
        assert_eq!(text(&error), error.message);
        error.message = "region 7".to_owned();
        assert_eq!(text(&error), format!("region 7: {unknown}"));
    }

    #[test]
    fn a_final_answer_becomes_the_error_that_its_text_states() {
        let ended = |message: &str| {
            let large = errorpb::RaftEntryTooLarge::default();
            let decision = with(|e| {
                e.raft_entry_too_large = Some(large);
                e.message = message.to_owned();
            });
            let Step::Fail(error) = decision.step else { panic!("{decision:?}") };
            error
        };
        let invalid = ended("invalid request: max key size exceeded, size: 9000, limit: 8192");
        assert!(
            matches!(&invalid, Error::Invalid(text) if text.starts_with("max key size")),
            "{invalid}"
        );
        let unknown = ended("undetermined: the write may or may not have taken effect");
        assert!(matches!(unknown, Error::Undetermined(_)), "{unknown}");
        let full = ended("disk full at store 3 or at its followers: puts are refused");
        assert!(matches!(&full, Error::Refused(text) if text.starts_with("disk full")), "{full}");
    }

    #[test]
    fn only_three_errors_leave_open_whether_a_write_happened() {
        let stale = with(|e| e.stale_command = Some(errorpb::StaleCommand {}));
        let undetermined = errorpb::UndeterminedResult { message: "?".into() };
        let undetermined = with(|e| e.undetermined_result = Some(undetermined));
        let words = with(|e| e.message = "Raft ProposalDropped".into());
        for decision in [stale, undetermined, words] {
            assert!(decision.is_ambiguous && decision.pause == Pause::Region, "{decision:?}");
        }
    }
}
