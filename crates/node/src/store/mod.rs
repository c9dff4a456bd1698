//! One store: the queue of its loop, the loop's turn, its maintenance and its reads.

mod batch;
mod maintenance;
mod queue;
mod read;
mod slowdown;
mod turn;

pub use batch::{Batch, BatchOp, OP_OVERHEAD_BYTES};
pub use maintenance::{Maintenance, Slice};
pub use queue::{CoreCall, Item, Kept, NotTaken, Permit, Queue};
pub use read::LinearizableRead;
pub use slowdown::{REPORT_NANOS, SlowWriters, Slowdowns, WAIT_NANOS_MAX, slowdowns};
pub use turn::{CarryOut, Ended, StoreLoop, Turn};
