//! Redis protocol without I/O: the reader of requests, the replies, and the commands as pure functions on
//! pairs.
//!
//! The caller owns connections, time, random numbers and the memory budget. It passes received bytes to a
//! [`RequestReader`], checks each request with [`Request::parse`], and proposes consecutive requests of one
//! region as a [`RedisProgram`]. The leader decides it when it proposes it, so every replica applies the
//! same operations. [`run`] executes requests that only read, at any view.

mod commands;
mod header;
mod long_double;
mod memory_region;
mod number;
mod program;
mod reader;
mod reply;
mod request;
mod state;
pub mod table;

pub use header::{Header, HeaderDamage, Kind};
pub use memory_region::{MemoryRegion, encode_request};
pub use number::parse_i64;
pub use program::{ProgramAnswer, RedisProgram, Run, Watched, run};
pub use reader::{
    ARGUMENTS_MAX, BULK_BYTES_MAX, LINE_BYTES_MAX, ProtocolError, ReadStep, RequestReader,
};
pub use reply::{Protocol, Reply, put_array_header, put_map_header};
pub use request::{Request, RequestError};
pub use state::{Members, MembersNeed, MembersVersion, Needs};
pub use stele_types::redis_key as key;
