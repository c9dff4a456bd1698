//! Wire format of messages between stores. The memory of a decoded message is bounded by its frame:
//! no count alone causes an allocation, and every entry's command is a slice of the frame.
//!
//! ```text
//! frame    := header payload*                              (payloads in the order of their entries)
//! header   := version:u8 (1) body:u8 from_store to_store region kind:u8 start:bytes end:bytes
//!             conf_version version from:peer to:peer body
//! peer     := id store role:u8                   (numbers are varints, bytes length-prefixed)
//! body     := 0 raft | 1 | 2 index term target | 3 term last | 4 | 5 index term | 6 lost | 7 found
//!              (raft, gone, merged, hibernate, wake up, prepared, value repair request, reply)
//!            | 8 start:bytes end:bytes | 9 start:bytes end:bytes index ranged  (range repair)
//!            | 10 entries | 11 entries                           (entry recovery request, reply)
//!            | 12 index term target version     (merged; the target left the receiver's store)
//!            | 13 source index term target conf_version version refuse:u8       (merge query)
//!            | 14 source index term verdict:u8 count store*                      (merge answer)
//!            | 15 count peer*                                                         (members)
//! entries  := count (region index term length crc)*        (each one of a reply is a payload)
//! ranged   := count (key:bytes length expires_at_s)*       (each value is a payload)
//! lost     := count (key:bytes length crc)*
//! found    := count (key:bytes length)*                    (each value is a payload)
//! raft     := kind:u8 flags:u8 term log_term index commit commit_term reject_hint request_snapshot
//!             priority context:bytes count (term index length)*
//! flags    := 1 reject
//! snapshot := version:u8 (1) region:bytes index term leader_term from:peer to:peer bytes merges?
//!             (merges: see `CommittedMerges`; nodes of earlier versions read none)
//! ```

mod decode;
mod encode;

pub use decode::{decode, decode_snapshot};
pub use encode::{encode, encode_snapshot, snapshot_without_merges};

const FORMAT: u8 = 1;
/// Most entries in one message. Their descriptions take more bytes in memory than in a frame.
pub(crate) const ENTRIES_MAX: usize = 1 << 17;
/// Longest read or heartbeat context in bytes.
pub(crate) const CONTEXT_BYTES_MAX: usize = 64;

/// Most values or entries requested, or sent, in one message.
pub(crate) const VALUES_MAX: usize = 1 << 10;

/// Most members or stores named in one message.
const MEMBERS_MAX: u64 = 64;

const REJECT: u8 = 1;

/// Maps a signed number to an unsigned one, so that small negative ones stay short.
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests;
