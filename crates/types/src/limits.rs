//! Limits that hold everywhere. Beyond them a call fails with `Error::Invalid` and changes nothing.

/// Longest key that front ends take.
pub const USER_KEY_BYTES_MAX: usize = 8 << 10;
/// Longest key in the engine: a user's, and what names its space.
pub const KEY_BYTES_MAX: usize = USER_KEY_BYTES_MAX + 16;
/// Longest value.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// Most bytes in one command (an atomic batch): one largest value with its key, and room to spare.
pub const COMMAND_BYTES_MAX: usize = 96 << 20;
/// Values up to this length live in the index instead of being referred to.
pub const INLINE_VALUE_BYTES_MAX: usize = 64;
/// What a value file spends on a record beyond its key and value, on average: counted into live
/// bytes, so that a file of live records alone is nearly all live.
pub const RECORD_OVERHEAD_BYTES: u64 = 12;
/// The on-disk format this build reads and writes.
pub const FORMAT_VERSION: u32 = 1;
