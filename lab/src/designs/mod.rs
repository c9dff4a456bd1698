//! Designs to compare with Stele's own, as storage engines behind the same trait and consensus
//! core, and a harness that drives all of them alike.
//!
//! | system | Raft log | key-values |
//! |---|---|---|
//! | `original` | RocksDB, synced | RocksDB with its write-ahead log |
//! | `original-raft`, `original-cr`, `original-buc` | RocksDB, synced | RocksDB with its write-ahead log, synced on each apply; behind a queue |
//! | `pasv` | RocksDB, synced | RocksDB without a write-ahead log; replay of the Raft log instead |
//! | `lsm-raft` | RocksDB, synced | the leader's as `original`; followers copy its tables |
//! | `dwisckey` | RocksDB, synced | values in a separate value log, pointers in RocksDB |
//! | `nezha-nogc` | Stele's unified log | locators; no garbage collection |
//! | `nezha` | Stele's unified log | locators; all values are sorted whenever enough are unsorted |
//! | `stele` | Stele's unified log | locators; the product's garbage collection |
//!
//! The three modes of BUC-Raft apply behind a queue before the engine ([`queued`]). `original-raft` answers
//! writes when they are applied, and its reads wait until all that is committed is applied. `original-cr`
//! answers writes at commit. `original-buc` also reads what is not applied. All others apply on the loop,
//! answer at commit and read what is not applied, as the product does.

pub mod buc;
pub mod harness;
pub mod measure;
pub mod queued;
#[cfg(feature = "rocksdb")]
pub mod rocks;
pub mod stele;
