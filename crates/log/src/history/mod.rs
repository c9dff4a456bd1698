//! What a reader of a region's log reads after Raft has dropped it: the committed entries of sealed
//! segments, in order, as long as the segments stay.

mod pins;
mod reader;

pub(crate) use pins::Pins;
pub use pins::{PinState, Pinned};
pub use reader::{History, HistoryReader};
