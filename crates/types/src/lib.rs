//! Types shared by all crates of Stele: identifiers, positions, the command encoding, log batches,
//! errors and units. Depends on nothing else in the workspace and does no I/O.

pub mod address;
pub mod batch;
pub mod cause;
pub mod checksum;
pub mod clock;
pub mod command;
pub mod computed;
pub mod device;
pub mod error;
pub mod ids;
pub mod key_range;
pub mod keyspace;
pub mod limits;
pub mod lineage;
pub mod locator;
pub mod lock;
pub mod panics;
pub mod partial;
pub mod prng;
pub mod region;
pub mod size;
pub mod varint;

pub use batch::{CommittedEntry, EntryRecord, HardState, LogBatch, Mark, Record};
pub use cause::Cause;
pub use clock::{Clock, ManualClock, is_expired};
pub use command::{Command, CommandBuilder, Op};
pub use device::{DeviceSpeed, OpCost};
pub use error::{Error, Result};
pub use ids::{ClusterId, FileId, LogIndex, PeerId, RegionId, RunId, Seq, StoreId, Term};
pub use key_range::{KeyRange, key_after};
pub use keyspace::ColumnFamily;
pub use lineage::{Boot, BootOrder};
pub use lineage::{Lineage, Place, StartId, StoreRun};
pub use locator::{Locator, Lsn, ValueRef};
pub use partial::{Partial, Unit};
pub use prng::Prng;
pub use region::{Peer, PeerRole, Region, RegionEpoch, RegionKind, RegionPhase, StoreIdent};
