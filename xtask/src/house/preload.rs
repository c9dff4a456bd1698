//! Library that is loaded before a measured server and counts the entries of its functions. The compiler adds a
//! call of `mcount` to the beginning of every function that it instruments (`-Z instrument-mcount`). `cargo xtask
//! house` compiles this file alone; it is no module of xtask.

mod layout;

use layout::*;
use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
const PR_GET_NAME: c_int = 16;
const PROBES_MAX: usize = 64;

unsafe extern "C" {
    fn mmap(
        at: *mut c_void,
        n: usize,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        from: c_long,
    ) -> *mut c_void;
    fn prctl(option: c_int, name: *mut u8) -> c_int;
}

/// The mapped file; null before the library has started and in processes that are not measured.
static COUNTERS: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// Number of this thread, from 1; 0 before its first entry.
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the loader calls each function of this section once, before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Creates and maps the file of this process. Without a folder, or after an error, nothing is counted: the
/// command then finds no file.
extern "C" fn start() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let path = std::path::Path::new(&folder).join(std::process::id().to_string());
    let options = File::options().read(true).write(true).create_new(true).clone();
    let Ok(file) = options.open(path) else { return };
    if file.set_len(FILE_BYTES as u64).is_err() {
        return;
    }
    // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this program.
    let mapped = unsafe {
        mmap(std::ptr::null_mut(), FILE_BYTES, PROT_READ_WRITE, MAP_SHARED, file.as_raw_fd(), 0)
    };
    if mapped as isize == -1 {
        return;
    }
    let counters = mapped.cast::<u8>();
    number(counters, 8 * BASE).store(base(), Relaxed);
    number(counters, 0).store(MAGIC, Relaxed);
    COUNTERS.store(counters, Relaxed);
}

/// Returns the address of the first mapping of the program's file.
fn base() -> u64 {
    let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let own = maps.lines().find(|line| line.ends_with(&*program.to_string_lossy()));
    let start = own.and_then(|line| line.split('-').next());
    start.and_then(|start| u64::from_str_radix(start, 16).ok()).unwrap_or(0)
}

fn number(counters: *mut u8, at: usize) -> &'static AtomicU64 {
    debug_assert!(at % 8 == 0 && at < FILE_BYTES);
    // SAFETY: the mapping has `FILE_BYTES`, begins at a page, is never unmapped, and every position of a number
    // is a multiple of 8 within it. All use of it is atomic.
    unsafe { &*counters.add(at).cast::<AtomicU64>() }
}

/// Counts the entry of the function that called. It is called like a function of C without arguments, so
/// that the compiler has saved every register that it needs.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn mcount() {
    // The return address is the only thing on the stack; `count` returns to it.
    core::arch::naked_asm!("mov rdi, [rsp]", "jmp {count}", count = sym count)
}

#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub extern "C" fn _mcount() {
    // The link register holds the return address; `count` returns to it.
    core::arch::naked_asm!("mov x0, x30", "b {count}", count = sym count)
}

extern "C" fn count(address: u64) {
    let counters = COUNTERS.load(Relaxed);
    if counters.is_null() {
        return;
    }
    // The cell has no destructor: it can be used until the thread has ended.
    let thread = THREAD.with(|thread| match thread.get() {
        0 => {
            let new = enter(counters);
            thread.set(new);
            new
        }
        known => known,
    });
    let key = thread << ADDRESS_BITS | address;
    let mut slot = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
    for _ in 0..PROBES_MAX {
        slot %= SLOTS;
        let at = SLOTS_AT + slot * SLOT_BYTES;
        let there = number(counters, at);
        let found = match there.load(Relaxed) {
            0 => there.compare_exchange(0, key, Relaxed, Relaxed).unwrap_or_else(|other| other),
            other => other,
        };
        // An exchange returns what was there: 0 if this thread has taken the slot.
        if found == key || found == 0 {
            number(counters, at + 8).fetch_add(1, Relaxed);
            return;
        }
        slot += 1;
    }
    number(counters, 8 * LOST).fetch_add(1, Relaxed);
}

/// Gives this thread a number and stores its name.
fn enter(counters: *mut u8) -> u64 {
    let thread = number(counters, 8 * THREADS).fetch_add(1, Relaxed) + 1;
    let thread = thread.min(THREADS_MAX as u64);
    let mut name = [0_u64; NAME_BYTES / 8];
    // SAFETY: the call writes at most 16 bytes, the size of `name`.
    unsafe { prctl(PR_GET_NAME, name.as_mut_ptr().cast()) };
    let at = NAMES_AT + (thread as usize - 1) * NAME_BYTES;
    for (place, part) in name.into_iter().enumerate() {
        number(counters, at + 8 * place).store(part, Relaxed);
    }
    thread
}
