//! The unified log of one store. Every value is written here once, by one write and one sync for
//! all regions together; everything else refers to it by 16-byte locators.
//!
//! The directory holds segments (batches in arrival order) with their sidecars, sorted value files
//! (values in key order) and retained tombstones (deletes that outlive their segment). See [`Log`].

mod append;
mod catalog;
mod dir;
mod encode;
mod format;
mod history;
pub mod inspect;
mod iter;
mod log;
mod options;
mod read;
mod read_cached;
mod read_many;
mod read_pool;
mod read_share;
mod recover;
mod region;
mod remove;
mod retained_tombstones;
mod segment;
mod shared;
mod sorted;
mod verify;
mod versions;

pub use catalog::{FileKind, FileList, ValueFileInfo};
pub use history::{History, HistoryReader, PinState, Pinned};
pub use iter::LogIter;
pub use log::{Appended, Log, LogStats, Reserved};
pub use options::{LogOptions, RecoverFrom, Recovery, Tail};
pub use read::RecordHeader;
pub use read_many::NEAR_BYTES_MAX;
pub use read_pool::{ReadMany, Unchecked};
pub use recover::damage_survey::DamageSurvey;
pub use region::RegionLog;
pub use segment::damaged_payloads::DamagedPayload;
pub use shared::StopOnPanic;
pub use sorted::{SealedFile, SortedWriter};
pub use verify::{Damage, VerifyEvent, VerifySummary};
pub use versions::{ReplayEntry, ReplayOp, VersionedOp};

pub use stele_types::size::RECORD_OVERHEAD_BYTES;
