//! The table of all targets.

mod engine;
mod files;
mod index;
mod log;
mod port;
mod proto;
mod replication;
mod seal;
mod text;
mod words;

use crate::{Bound, Target};

/// A decoder of a message: what it makes of the bytes is no larger than some tens of them.
const SMALL: Bound = Bound { bytes: 16 << 10, per_byte: 64 };

/// A reader of a file: windows of up to a mebibyte beside the file itself, which a simulated disk
/// holds twice.
const FILE: Bound = Bound { bytes: 8 << 20, per_byte: 64 };

/// Every target.
pub const ALL: &[Target] = &[
    words::COMMAND,
    words::LOCATOR,
    words::REGION,
    words::STORE_IDENT,
    words::ENGINE_KEY,
    words::VARINT,
    words::GC_STATE,
    words::ADMIN_ENTRY,
    words::PLACEMENT_STORE,
    words::PLACEMENT_PAIRS,
    log::SEGMENT,
    log::SIDECAR,
    log::SORTED,
    log::GRAVES,
    log::OPEN,
    index::RUN,
    index::MANIFEST,
    index::OPEN,
    engine::IDENTITY,
    engine::OPEN,
    replication::PEER_MESSAGE,
    replication::SNAPSHOT_HEAD,
    replication::FRAMES,
    replication::HELLO,
    replication::ANSWERS,
    replication::SNAPSHOT_PAIRS,
    port::PORT,
    proto::MESSAGES,
    proto::REGION_REPORT,
    proto::ROUTES,
    proto::REGION_ERROR,
    text::SIZE,
    text::CONFIG,
    text::MEMBERS,
    text::JSON_LINE,
];
