//! Operations on keys.

mod batch;
mod range;
mod scan;
mod session;
mod single;

pub use batch::PutPair;
pub use range::Checksum;
pub use scan::{Pair, Scan, ScanOptions};
pub use session::Session;
pub use single::{Swap, Ttl};
