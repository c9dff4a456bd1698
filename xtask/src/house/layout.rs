//! Layout of a file of counters, which the preloaded library maps and the command reads: a header of 64-bit
//! numbers, the names of threads, and a hash table from thread and address to a count.

pub(super) const MAGIC: u64 = 0x5354_454c_4548_5331;
/// Positions of the header's numbers: the address at which the program was loaded, the entries that found no
/// slot, and the threads seen.
pub(super) const BASE: usize = 1;
pub(super) const LOST: usize = 2;
pub(super) const THREADS: usize = 3;
pub(super) const HEADER_BYTES: usize = 64;

/// Bytes of a thread's name, which ends with 0.
pub(super) const NAME_BYTES: usize = 16;
/// Threads with a name of their own. A file of more threads is refused.
pub(super) const THREADS_MAX: usize = 1024;

/// Slots of the table, a power of two. A slot is a key and a count; key 0 is free.
pub(super) const SLOTS: usize = 1 << 20;
pub(super) const SLOT_BYTES: usize = 16;
/// Bits of an address in a key. The number of the thread, from 1, stands above them.
pub(super) const ADDRESS_BITS: u32 = 48;

pub(super) const NAMES_AT: usize = HEADER_BYTES;
pub(super) const SLOTS_AT: usize = NAMES_AT + THREADS_MAX * NAME_BYTES;
pub(super) const FILE_BYTES: usize = SLOTS_AT + SLOTS * SLOT_BYTES;

/// Environment variable with the folder of the files. Each process writes the file with its id. The name does not
/// begin with `STELE_`, because a server refuses unknown settings.
pub(super) const FOLDER: &str = "HOUSE_COUNTERS";
