//! Short commands.

mod del;
mod keys;
mod space;
mod verify;

pub(crate) use del::del;
pub(crate) use keys::{append, count, exist, get, incr, put, scan};
pub(crate) use space::{compact, stats};
pub(crate) use verify::verify;
