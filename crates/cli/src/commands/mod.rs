//! Short commands.

mod keys;
mod stats;
mod verify;

pub use keys::{count, del, get, put, scan};
pub use stats::{compact, stats};
pub use verify::verify;
