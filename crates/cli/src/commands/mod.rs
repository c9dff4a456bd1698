//! Short commands.

mod del;
mod keys;
mod stats;
mod verify;

pub use del::del;
pub use keys::{append, count, exist, get, incr, put, scan};
pub use stats::{compact, stats};
pub use verify::verify;
