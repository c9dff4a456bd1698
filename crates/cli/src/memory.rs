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
    /// Returns the minor page faults of this thread so far.
    fn page_faults() -> i64 {
        // SAFETY: a `rusage` consists of plain numbers, which the call fills.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    fn long_messages_reuse_their_pages() {
        const MESSAGE_BYTES: usize = 512 << 10;
        const MESSAGES: usize = 8;
        let work = || {
            let message = |_| std::hint::black_box(vec![7_u8; MESSAGE_BYTES]);
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
