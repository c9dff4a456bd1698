//! Outcomes of calls that are drawn.

use super::{Fate, error};
use stele_proto::errorpb;
use stele_types::Prng;
use tonic::Code;

/// Draws the outcome of a call; most are executed and answered.
pub(super) fn draw(rng: &mut Prng) -> Option<Fate> {
    let refused = |set: fn(&mut errorpb::Error)| Fate::Refuse(error(set));
    Some(match rng.below(60) {
        0 => refused(|e| {
            e.server_is_busy = Some(errorpb::ServerIsBusy { backoff_ms: 5, ..Default::default() });
        }),
        1 => refused(|e| e.not_leader = Some(errorpb::NotLeader::default())),
        2 => refused(|e| e.region_not_found = Some(errorpb::RegionNotFound::default())),
        3 => refused(|e| e.epoch_not_match = Some(errorpb::EpochNotMatch::default())),
        4 => refused(|e| e.stale_command = Some(errorpb::StaleCommand {})),
        5 => Fate::ActAndRefuse(error(|e| e.stale_command = Some(errorpb::StaleCommand {}))),
        6 => Fate::ActAndRefuse(error(|e| {
            e.undetermined_result = Some(errorpb::UndeterminedResult::default());
        })),
        7 => Fate::Final("no room"),
        8 => Fate::Final("undetermined: may or may not have taken effect"),
        9 => Fate::ActAndFail(Code::Unavailable),
        10 => Fate::Fail(Code::Unknown),
        11 => Fate::Fail(Code::ResourceExhausted),
        12 => Fate::Hang,
        _ => return None,
    })
}
