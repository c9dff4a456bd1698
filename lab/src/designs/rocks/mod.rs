//! Designs on RocksDB: one engine, [`RockStore`], with different [`Persistence`]. They differ in
//! how key-values survive a crash, and in whether followers write them themselves.

mod batch;
mod cursor;
mod db;
mod dwisckey;
mod engine;
mod ffi;
mod key_values;
mod lsm_raft;
mod mirror;
mod numbers;
mod original;
mod pairs;
mod pasv;
mod raft_log;
mod region;
mod shipments;
mod tuning;
mod value_log;
mod view;

pub(crate) use batch::Batch;
pub(crate) use db::{Db, Durability, Tier};
pub use dwisckey::dwisckey;
pub use engine::RockStore;
pub use key_values::{Persistence, RockIngest};
pub use lsm_raft::lsm_raft;
pub use original::original;
pub use pasv::pasv;
pub use tuning::Settings;
pub use view::RockView;
