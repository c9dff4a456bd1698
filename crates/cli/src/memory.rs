//! Settings of the memory allocator.

/// Size from which an allocation has a mapping of its own, which is unmapped when it is freed.
const MMAP_BYTES_MIN: i32 = 2 << 20;
/// Free memory at the end of an arena that is kept; more is returned to the kernel.
const TRIM_BYTES_MAX: i32 = 16 << 20;

/// Makes the allocator keep freed memory for reuse. By default glibc returns memory from 128 KiB
/// on, and each message with a long value faults its pages in again. Called once, before other
/// threads start.
pub fn retain_freed() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only sets the allocator's parameters, under its own lock.
    let _refused = unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MMAP_BYTES_MIN) == 0
            || libc::mallopt(libc::M_TRIM_THRESHOLD, TRIM_BYTES_MAX) == 0
    };
}

#[cfg(all(test, target_env = "gnu"))]
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
        super::retain_freed();
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
