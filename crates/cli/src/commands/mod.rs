//! Short commands.

mod keys;
mod space;
mod verify;
mod watch;

pub(crate) use keys::{append, count, del, exist, get, incr, put, scan};
pub(crate) use space::{compact, stats};
pub(crate) use verify::verify;
pub(crate) use watch::watch;
