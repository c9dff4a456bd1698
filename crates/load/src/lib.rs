//! The load of Stele's benchmarks: records, mixes of operations, their latencies, and clients of the
//! servers that are compared.

mod args;
mod choice;
mod driver;
mod latency;
mod measure;
mod page;
pub mod process_io;
mod records;
mod redis;
mod report;
pub mod server;
mod workload;

pub use args::{Distribution, Load, Wire, Workload, size};
pub use choice::{Choice, Zipf, distribution};
pub use driver::Run;
pub use latency::{Kind, Latencies, Recorder, Summary};
pub use measure::measure;
pub use records::Records;
pub use redis::Redis;
pub use report::{Round, failed, print};
pub use server::{Server, Target};
pub use workload::{Mix, Step};
