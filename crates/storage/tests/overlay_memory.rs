//! Memory that an overlay allocates, beside its own estimate.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use bytes::Bytes;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use stele_storage::Overlay;
use stele_types::{CommandBuilder, LogIndex, Prng};

struct Counting;

thread_local! {
    /// Bytes that this thread allocated and did not free.
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends frees without a counter.
    let _ = HELD_BYTES.try_with(|held| held.set(held.get() + bytes));
}

/// Returns the size of a block with the allocator's header and rounding.
fn block_bytes(layout: Layout) -> i64 {
    (layout.size() + 8).next_multiple_of(16) as i64
}

// SAFETY: every call is passed unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(block_bytes(layout));
        // SAFETY: the caller keeps the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-block_bytes(layout));
        // SAFETY: the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Fills an overlay with entries and prunes it to its last `kept` ones. Checks the estimate of its
/// memory on the way. Returns its bytes and the estimate when it was largest.
fn fill(seed: u64, ops_max: u64, value_bytes: usize, range_deletes: u64, kept: u64) -> (i64, u64) {
    let mut prng = Prng::new(seed);
    let before = HELD_BYTES.get();
    let mut overlay = Overlay::default();
    let mut largest = (0, 0);
    for index in 1..=2_000 {
        overlay
            .push(LogIndex(index), &entry(&mut prng, ops_max, value_bytes, range_deletes))
            .unwrap();
        if index > kept {
            overlay.note_applied(LogIndex(index - kept));
        }
        let held = HELD_BYTES.get() - before;
        let estimate = overlay.bytes();
        assert!(
            held <= estimate as i64,
            "seed {seed}, entry {index}: {held} held, {estimate} said"
        );
        largest = largest.max((held, estimate));
    }
    overlay.note_applied(LogIndex(2_000));
    assert_eq!((HELD_BYTES.get() - before, overlay.bytes()), (0, 0));
    largest
}

fn entry(prng: &mut Prng, ops_max: u64, value_bytes: usize, range_deletes: u64) -> Bytes {
    let mut builder = CommandBuilder::new();
    let key = |number: u64| format!("user{:012}", number % 5_000);
    for _ in 0..1 + prng.below(ops_max) {
        let (one, other) = (prng.draw(), prng.draw());
        if prng.below(100) < range_deletes {
            builder.delete_range(key(one).as_bytes(), key(other % 9 + one).as_bytes()).unwrap();
        } else if prng.below(4) == 0 {
            builder.delete(key(one).as_bytes()).unwrap();
        } else {
            builder.put(key(one).as_bytes(), &vec![7; value_bytes], 0).unwrap();
        }
    }
    Bytes::copy_from_slice(builder.build().bytes())
}

#[test]
fn an_overlay_holds_at_most_what_it_estimates_and_a_quarter_of_it_when_it_is_large() {
    let shapes = [
        (1, 1, 100, 0, 1_000),
        (2, 1, 0, 0, 2_000),
        (3, 30, 20, 10, 500),
        (4, 4, 10, 100, 1_000),
        (5, 1, 4_000, 1, 100),
        (6, 3, 8, 30, 3),
    ];
    for (seed, ops_max, value_bytes, range_deletes, kept) in shapes {
        let (held, estimate) = fill(seed, ops_max, value_bytes, range_deletes, kept);
        println!("seed {seed}: {held} held, {estimate} estimated");
        let is_large = held > 100_000;
        assert!(!is_large || estimate as i64 <= 4 * held, "seed {seed}: {held}, {estimate}");
    }
}
