//! How the process gets its memory.

/// From here on a piece of memory comes from the kernel by itself and goes back at once.
const ALONE_BYTES_MIN: i32 = 2 << 20;
/// Free memory at an arena's end that is kept rather than given back.
const KEPT_BYTES_MAX: i32 = 16 << 20;

/// Keeps freed memory for what comes next. Without it glibc begins to give memory back from 128 KiB on, and
/// each message with a long value takes its pages anew. Called once, before other threads are there.
pub fn keep() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call only sets the allocator's parameters, under its own lock.
    let _refused = unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, ALONE_BYTES_MIN) == 0
            || libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES_MAX) == 0
    };
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    /// Pages that this thread took from the kernel so far.
    fn pages_taken() -> i64 {
        // SAFETY: a `rusage` is plain numbers, which the call fills.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    #[test]
    fn long_messages_do_not_take_their_pages_anew() {
        const MESSAGE_BYTES: usize = 512 << 10;
        const MESSAGES: usize = 8;
        super::keep();
        let work = || {
            let message = |_| std::hint::black_box(vec![7_u8; MESSAGE_BYTES]);
            (0..MESSAGES).map(message).collect::<Vec<_>>().len()
        };
        work();
        let before = pages_taken();
        assert_eq!((0..20).map(|_| work()).sum::<usize>(), 20 * MESSAGES);
        let taken = pages_taken() - before;
        let all = (20 * MESSAGES * MESSAGE_BYTES / 4096) as i64;
        assert!(taken < all / 4, "{taken} of {all} pages");
    }
}
