//! Reads outside the core: the gate that checks and permits them, the window of what is committed and not
//! applied, and the read that uses both.

mod gate;
mod window;

pub(crate) use gate::is_stale_term;
pub use gate::{LinearizableRead, ReadGate, ReadPath, ReadPermit, Reader};
pub(crate) use window::{Coverage, KeySearch, Window, WindowMark};
