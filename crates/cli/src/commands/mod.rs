//! Short commands.

mod del;
mod keys;
mod space;
mod verify;

pub use del::del;
pub use keys::{append, count, exist, get, incr, put, scan};
pub use space::{compact, stats};
pub use verify::verify;
