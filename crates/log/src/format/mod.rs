//! Byte layouts, each beside its encoder and decoder. This module touches no file.

pub(crate) mod frame;
pub(crate) mod header;
pub(crate) mod item;
pub(crate) mod ops;
pub(crate) mod take;

pub(crate) use frame::{FrameHeader, Origin};
pub(crate) use header::{FileHeader, Footer, Magic, SegmentHeader};
pub(crate) use item::{CarriedRegion, Content, EntryItem, Form, Item, Items};
