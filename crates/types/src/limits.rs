//! Global limits. A call that exceeds one fails with `Error::Invalid` and changes nothing.

use crate::{Error, Result};

/// Maximum bytes of a key that front ends accept.
pub const USER_KEY_BYTES_MAX: usize = 8 << 10;
/// Maximum bytes of an engine key: a user key and its space.
pub const KEY_BYTES_MAX: usize = USER_KEY_BYTES_MAX + 16;
/// Maximum bytes of a value.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of a value that an append makes: each append logs the whole value.
pub const APPENDED_VALUE_BYTES_MAX: usize = 64 << 10;
/// Maximum bytes of one command (an atomic batch): one value of maximum length with its key, and
/// some reserve.
pub const COMMAND_BYTES_MAX: usize = 96 << 20;
/// Values of at most this many bytes are stored in the index instead of being referred to.
pub const INLINE_VALUE_BYTES_MAX: usize = 64;
/// Average bytes of a record in a value file beyond key and value. Counted as live, so that a file
/// with only live records is nearly all live.
pub const RECORD_OVERHEAD_BYTES: u64 = 12;
/// The on-disk format that this build writes. It also reads all earlier ones.
pub const FORMAT_VERSION: u32 = 2;

/// Fails with `Error::Invalid` for a value above the limit.
pub fn check_value_bytes(bytes: u64) -> Result<()> {
    if bytes <= VALUE_BYTES_MAX as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("value of {bytes} bytes; the limit is {VALUE_BYTES_MAX}")))
}
