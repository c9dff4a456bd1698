//! Types shared by all crates of Stele: identifiers, positions, the command encoding, log batches,
//! errors and units. Depends on nothing else in the workspace and does no I/O.

pub mod address;
pub mod batch;
pub mod cause;
pub mod checksum;
pub mod clock;
pub mod command;
pub mod device;
pub mod error;
pub mod ident;
pub mod ids;
pub mod keyspace;
pub mod level;
pub mod lineage;
pub mod locator;
pub mod lock;
pub mod prng;
pub mod redis_key;
pub mod region;
pub mod session;
pub mod size;
pub mod varint;

pub use batch::{CommittedEntry, EntryRecord, HardState, LogBatch, Mark, Record};
pub use cause::Cause;
pub use clock::{Clock, ManualClock, is_expired};
pub use command::{Command, CommandBuilder, Op};
pub use device::{DeviceSpeed, OpCost};
pub use error::{Error, Partial, Result, Unit};
pub use ident::{StoreIdent, TickMillis};
pub use ids::{ClusterId, FileId, LogIndex, MomentId, PeerId, RegionId, RunId, Seq, StoreId, Term};
pub use keyspace::{ColumnFamily, KeyRange, key_after};
pub use level::Level;
pub use lineage::{Boot, BootOrder, Lineage, Place, StartId, StoreRun};
pub use locator::{Locator, Lsn, ValueRef};
pub use prng::Prng;
pub use region::{Peer, PeerRole, Region, RegionEpoch, RegionKind, RegionPhase};
pub use session::{ClusterTime, SessionId, SessionRequest};
