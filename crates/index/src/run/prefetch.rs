//! Memory asked for before it is read.

/// Size of what is asked for.
pub(super) const LINE_BYTES: usize = 64;

/// Asks for the cache line of `bytes[at]`, if there is one. A hint: nothing waits for it.
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
