//! The designs that Stele's own is compared with, as storage engines behind the same trait and the
//! same consensus core, and a harness that drives them all alike. No product crate depends on it.
//!
//! | system | Raft log | key-values |
//! |---|---|---|
//! | `original` | RocksDB, synced | RocksDB with its write-ahead log |
//! | `pasv` | RocksDB, synced | RocksDB without a write-ahead log: the Raft log is it |
//! | `lsm-raft` | RocksDB, synced | the leader's as `original`; followers take its tables |
//! | `dwisckey` | RocksDB, synced | values in a value log of their own, pointers in RocksDB |
//! | `nezha-nogc` | Stele's unified log | locators; nothing is collected |
//! | `nezha` | Stele's unified log | locators; all is sorted whenever enough is unsorted |
//! | `stele` | Stele's unified log | locators; collection as the product does it |

pub mod harness;
pub mod measure;
#[cfg(feature = "rocksdb")]
pub mod rocks;
pub mod stele;
