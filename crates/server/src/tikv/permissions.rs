//! Rights that each call needs, for all keys that it names. They are checked before a call is grouped or
//! queued.

use super::errors::Failure;
use super::reads;
use crate::access::Standing;
use bytes::Bytes;
use stele_placement::Permissions;
use stele_proto::ScanResponse;
use stele_proto::kvrpcpb::*;
use stele_proto::stele::kv::v1::{
    CopyRequest, ExistRequest, ExistResponse, FollowRequest, GetPairRequest, GetPairResponse,
    ModifyInSessionRequest, ModifyRequest, ModifyResponse, PutInSessionRequest, ReadIndexRequest,
    ReadIndexResponse, WriteIfRequest, WriteIfResponse, WriteRequest, WriteResponse,
};
use stele_proto::stele::redis::v1::{
    ClearRequest, ClearResponse, CursorRequest, CursorResponse, ListRequest, ListResponse,
    MembersRequest, MembersResponse, RunRequest, RunResponse, StepRequest, StepResponse,
};
use stele_types::KeyRange;

/// A call of keys.
pub(super) trait Permitted {
    /// Fails unless the caller has the rights that the call needs for each key that it names.
    ///
    /// Invariant: a call of which one key is not granted does nothing at all.
    /// Tests: `no_call_of_keys_is_executed_for_a_caller_without_the_right`.
    fn permitted(&self, standing: &Standing) -> Result<(), Failure>;
}

const READ: Permissions = Permissions::READ;
const WRITE: Permissions = Permissions::WRITE;
/// For what changes a key and returns something of what was there.
const BOTH: Permissions = Permissions::READ_WRITE;

macro_rules! of_keys {
    ($($wanted:ident $request:ident: |$it:ident| $keys:expr;)*) => {
        $(impl Permitted for $request {
            fn permitted(&self, standing: &Standing) -> Result<(), Failure> {
                let $it = self;
                standing.check_keys($wanted, $keys.map(|key| &key[..])).map_err(Failure::Final)
            }
        })*
    };
}

of_keys! {
    READ RawGetRequest: |it| std::iter::once(&it.key);
    READ RawGetKeyTtlRequest: |it| std::iter::once(&it.key);
    READ GetPairRequest: |it| std::iter::once(&it.key);
    READ RawBatchGetRequest: |it| it.keys.iter();
    READ ExistRequest: |it| it.keys.iter();
    READ ReadIndexRequest: |_it| std::iter::empty::<&Bytes>();
    WRITE RawPutRequest: |it| std::iter::once(&it.key);
    WRITE RawBatchPutRequest: |it| it.pairs.iter().map(|pair| &pair.key);
    WRITE RawDeleteRequest: |it| std::iter::once(&it.key);
    WRITE RawBatchDeleteRequest: |it| it.keys.iter();
    WRITE PutInSessionRequest: |it| it.puts.iter().map(|put| &put.key);
    WRITE WriteRequest: |it| it.writes.iter().map(|write| &write.key);
    BOTH RawCasRequest: |it| std::iter::once(&it.key);
    BOTH ModifyRequest: |it| std::iter::once(&it.key);
    BOTH WriteIfRequest: |it| std::iter::once(&it.key);
    BOTH ModifyInSessionRequest: |it| it.modification.iter().map(|it| &it.key);
}

macro_rules! of_nodes {
    ($($request:ident)*) => {
        $(impl Permitted for $request {
            /// The node that calls has checked the names by the rights of its client.
            fn permitted(&self, _: &Standing) -> Result<(), Failure> {
                Ok(())
            }
        })*
    };
}

of_nodes! { RunRequest StepRequest ListRequest MembersRequest ClearRequest CursorRequest }

macro_rules! of_ranges {
    ($($wanted:ident $request:ident: |$it:ident| $ranges:expr;)*) => {
        $(impl Permitted for $request {
            fn permitted(&self, standing: &Standing) -> Result<(), Failure> {
                let $it = self;
                for range in $ranges {
                    standing.check_range($wanted, &range).map_err(Failure::Final)?;
                }
                Ok(())
            }
        })*
    };
}

of_ranges! {
    READ RawScanRequest: |it| [reads::scan_range(it)];
    READ RawBatchScanRequest: |it| reads::ranges(it)?;
    READ RawChecksumRequest: |it| it.ranges.iter().map(reads::range_of);
    READ CopyRequest: |it| [KeyRange::new(it.start_key.clone(), it.end_key.clone())];
    READ FollowRequest: |it| [KeyRange::new(it.start_key.clone(), it.end_key.clone())];
    WRITE RawDeleteRangeRequest: |it| [KeyRange::new(it.start_key.clone(), it.end_key.clone())];
}

/// Answer that can refuse a call for a missing right.
pub(super) trait Denying {
    /// Returns the answer with the reason.
    ///
    /// Invariant: the reason is the text of the answer where it has one, which each of TiKV's clients returns to
    /// its caller. client-java repeats the call a few times before, which does no harm: nothing was executed. It
    /// repeats a range delete for minutes: that, and answers without a text, have the error that no client
    /// repeats.
    /// Tests: `a_missing_right_is_the_text_of_the_answer_but_for_range_deletes`.
    fn denied(reason: String) -> Self;
}

macro_rules! denied_by_text {
    ($($answer:ident)*) => {
        $(impl Denying for $answer {
            fn denied(reason: String) -> Self {
                Self { error: reason, ..Self::default() }
            }
        })*
    };
}

denied_by_text! {
    RawGetResponse RawGetKeyTtlResponse RawPutResponse RawBatchPutResponse RawDeleteResponse
    RawBatchDeleteResponse RawCasResponse RawChecksumResponse
}

macro_rules! denied_by_error {
    ($($answer:ident)*) => {
        $(impl Denying for $answer {
            fn denied(reason: String) -> Self {
                let region_error = Some(Failure::Final(reason).into_error());
                Self { region_error, ..Self::default() }
            }
        })*
    };
}

denied_by_error! {
    RawBatchGetResponse ScanResponse RawDeleteRangeResponse
    ExistResponse GetPairResponse ModifyResponse ReadIndexResponse RunResponse StepResponse WriteIfResponse WriteResponse
    ListResponse MembersResponse ClearResponse CursorResponse
}
