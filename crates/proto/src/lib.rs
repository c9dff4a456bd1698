//! The part of the TiKV and PD protocols that Stele implements, its own calls of one key
//! (`stele::kv::v1`) and its control protocol (`stele::control::v1`). The modules are the packages of
//! `proto/`. Every `bytes` field is a
//! [`bytes::Bytes`] that shares the message's buffer.

#![allow(missing_docs, clippy::all, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod codec;
mod decoded;
mod regions;
mod scan;

pub use codec::{Pieces, SHARED_BYTES_MIN, SizedCodec, SizedEncoder};
pub use decoded::{Counter, Method};
pub use scan::{EncodedPairs, PairEncoder, ScanResponse};

/// `request_source` of the context of requests from Stele's client. It understands
/// `undetermined_result`.
pub const REQUEST_SOURCE: &str = "stele";

/// Beginning of the message of an error that is final because the request is invalid. The error is
/// `raft_entry_too_large` without a size.
pub const INVALID: &str = "invalid request: ";

/// Beginning of the message of an error that is final because the outcome of a write is unknown.
pub const UNDETERMINED: &str = "undetermined";

include!(concat!(env!("OUT_DIR"), "/mod.rs"));
