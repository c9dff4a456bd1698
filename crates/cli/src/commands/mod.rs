//! The short commands.

mod figures;
mod keys;
mod verify;

pub use figures::{compact, stats};
pub use keys::{count, del, get, put, scan};
pub use verify::verify;
