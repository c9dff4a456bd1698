//! Short commands.

mod keys;
mod stats;
mod verify;

pub use keys::{append, count, del, exist, get, incr, put, scan};
pub use stats::{compact, stats};
pub use verify::verify;
