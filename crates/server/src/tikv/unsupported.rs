//! Refusals of the commands of a batch that are not raw key-value calls.

use crate::unsupported::RAW_CALLS_ONLY;
use stele_proto::errorpb;
use stele_proto::tikvpb::batch_commands_request::request::Cmd;
use stele_proto::tikvpb::batch_commands_response::response::Cmd as Done;
use stele_proto::tikvpb::{
    BatchCommandsEmptyResponse, UnsupportedCoprocessorResponse, UnsupportedResponse,
};

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
