//! Operations on keys.

mod batch;
mod copy;
mod range;
mod redis;
mod scan;
mod session;
mod single;

pub use batch::{KeyWrite, PutPair};
pub use copy::{Copied, Copy};
pub use range::Checksum;
pub use scan::{Pair, Scan, ScanOptions};
pub use session::Session;
pub use single::{Swap, Ttl};
