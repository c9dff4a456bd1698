//! Segment files: reading frames, sealing with a sidecar, creating new ones.

pub(crate) mod begin;
pub(crate) mod chunks;
pub(crate) mod damaged_payloads;
pub(crate) mod items;
pub(crate) mod reader;
pub(crate) mod scan;
pub(crate) mod sidecar;
