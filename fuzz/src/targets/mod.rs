//! Table of all targets.

mod backup;
mod checksums;
mod engine;
mod files;
mod index;
mod log;
mod port;
mod proto;
mod records;
mod redis;
mod replication;
mod text;
mod tls;

use crate::{Bound, Target};

/// Bound of a message decoder: the result takes at most some tens of bytes per byte of input.
const SMALL: Bound = Bound { bytes: 16 << 10, per_byte: 64 };

/// Bound of a file reader: buffers of up to 1 MiB besides the file itself, which a simulated disk
/// holds twice.
const FILE: Bound = Bound { bytes: 8 << 20, per_byte: 64 };

/// All targets.
pub const ALL: &[Target] = &[
    records::COMMAND,
    records::LOCATOR,
    records::REGION,
    records::STORE_IDENT,
    records::ENGINE_KEY,
    records::VARINT,
    records::GC_STATE,
    records::ADMIN_ENTRY,
    records::PLACEMENT_STORE,
    records::PLACEMENT_PAIRS,
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
    proto::WATCH_TOKEN,
    text::SIZE,
    text::CONFIG,
    text::MEMBERS,
    text::JSON_LINE,
    tls::CERTIFICATE,
    backup::OBJECT,
    redis::REQUESTS,
    redis::PAIR,
    redis::FILE,
];
