//! The load of Stele's benchmarks: records, mixes of operations, their latencies, and clients of the
//! servers that are compared.

mod args;
mod driver;
mod latency;
pub mod process_io;
mod report;
pub mod resp;
pub mod server;
mod workload;

pub use args::{Distribution, Load, TlsFiles, Wire, Workload, size};
pub use driver::Run;
pub use latency::{Kind, Latencies, Recorder, Summary};
pub use report::{Round, failed, measure, print};
pub use server::{Redis, Server, Target};
pub use workload::{Choice, Mix, Records, Step, Zipf, distribution};
