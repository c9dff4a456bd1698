//! Operations on keys.

mod batch;
mod range;
mod scan;
mod single;

pub use batch::PutPair;
pub use range::Checksum;
pub use scan::{Pair, Scan, ScanOptions};
pub use single::{Swap, Ttl};
