//! Redis protocol without I/O: the reader of requests, the replies, and the commands as pure functions on
//! pairs.
//!
//! The caller owns connections, time, random numbers and the memory budget. It passes received bytes to a
//! [`RequestReader`], checks each request with [`Request::parse`], and proposes consecutive requests of one
//! region as a [`RedisProgram`]. The leader decides it when it proposes it, so every replica applies the
//! same operations. [`run`] executes requests that only read, at any view. Scans are walks over names or
//! members ([`walk_names`], [`walk_members`]), and [`Cursors`] has their places. [`sweep`] finds what has expired
//! and what no header needs.

mod commands;
mod cursor;
mod glob;
mod header;
mod long_double;
mod names;
mod number;
mod program;
mod reader;
mod reply;
mod request;
mod scan;
mod state;
mod sweep;
pub mod table;
pub mod transaction;

pub use commands::scripts::{RecordedScript, ScriptError};
pub use cursor::{Cursor, Cursors, ITERATIONS_MAX, ScanPlace};
pub use glob::{Glob, Literal, PATTERN_BYTES_MAX, PatternTooLong};
pub use header::{Header, HeaderDamage, Kind};
pub use names::{
    AdmitBytes, MembersPage, MembersWanted, NamesPage, NamesWanted, choose_name, walk_members,
    walk_names,
};
pub use number::parse_i64;
pub use program::{ProgramAnswer, RedisProgram, Run, Watched, run};
pub use reader::{
    ARGUMENTS_MAX, BULK_BYTES_MAX, LINE_BYTES_MAX, ProtocolError, ReadStep, RequestReader,
};
pub use reply::{Protocol, Reply, put_array_header, put_map_header};
pub use request::{Request, RequestError};
pub use scan::{COUNT_MAX, KindFilter, ScanFrom, ScanRequest, pattern_of, scan_reply};
pub use state::{Members, MembersNeed, MembersVersion, Needs};
pub use stele_types::redis_key as key;
pub use sweep::{FoundSweep, Sweep, SweepProgram, SweepRound, SweptCounts, SweptRegion, sweep};
