//! Prefetch of memory into the processor's cache.

/// Size of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// Prefetches the cache line of `bytes[at]`, if it exists. Only a hint.
#[inline(always)]
pub(super) fn prefetch(bytes: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(byte) = bytes.get(at) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch changes nothing and cannot fault, and the address is that of a byte
        // borrowed here.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(byte).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (bytes, at);
}
