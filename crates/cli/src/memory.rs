//! The memory allocator.

use tikv_jemallocator::Jemalloc;

/// Returns freed memory to the kernel after a moment. glibc's allocator keeps what thousands of
/// connections or a few long answers used, and other sizes cannot reuse it.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Settings of jemalloc. Freed memory is kept for 0.1 s, so that the next message with a long value does
/// not fault its pages in again.
// SAFETY: no other symbol of this name is defined: jemalloc's own is weak. It is a pointer to a constant
// text that ends with 0, as jemalloc's manual (TUNING, `malloc_conf`) requires.
#[unsafe(export_name = "_rjem_malloc_conf")]
static SETTINGS: &[u8; 36] = b"dirty_decay_ms:100,muzzy_decay_ms:0\0";

#[cfg(test)]
mod tests {
    use std::hint::black_box;
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    fn page_faults() -> i64 {
        // SAFETY: a `rusage` consists of plain numbers, which the call fills.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    fn resident_bytes() -> u64 {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    #[test]
    fn freed_memory_is_returned_within_two_seconds() {
        const PIECES: usize = 4096;
        const PIECE_BYTES: usize = 16 << 10;
        let pieces: Vec<_> = (0..PIECES).map(|_| black_box(vec![7_u8; PIECE_BYTES])).collect();
        let held_bytes = resident_bytes();
        drop(pieces);
        let deadline = Instant::now() + Duration::from_secs(2);
        while resident_bytes() + (PIECES * PIECE_BYTES * 3 / 4) as u64 > held_bytes {
            assert!(Instant::now() < deadline, "{} of {held_bytes} bytes left", resident_bytes());
            sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn long_messages_reuse_their_pages() {
        const MESSAGE_BYTES: usize = 512 << 10;
        const MESSAGES: usize = 8;
        let work = || {
            let message = |_| black_box(vec![7_u8; MESSAGE_BYTES]);
            (0..MESSAGES).map(message).collect::<Vec<_>>().len()
        };
        work();
        let before = page_faults();
        assert_eq!((0..20).map(|_| work()).sum::<usize>(), 20 * MESSAGES);
        let faults = page_faults() - before;
        let all = (20 * MESSAGES * MESSAGE_BYTES / 4096) as i64;
        assert!(faults < all / 4, "{faults} faults for {all} pages");
    }
}
