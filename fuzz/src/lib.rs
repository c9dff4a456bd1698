//! Fuzz targets: one for each decoder of bytes that come from a disk or a network, and what runs
//! them. A target holds for every input: no panic, no more memory than its bound allows, no run
//! without an end, and what decodes survives being encoded again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod coverage;
pub mod fuzz;
pub mod memory;
pub mod mutate;
pub mod targets;

#[global_allocator]
static COUNTED: memory::Counted = memory::Counted;

/// One decoder under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Decodes the input and checks what came out; a panic is a finding.
    pub run: fn(&[u8]),
    /// Inputs that the product's own encoders made.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Makes checksums, and what else stands in the way, hold again after a mutation.
    pub reseal: Option<fn(&mut Vec<u8>)>,
    /// Most memory a run may hold at a time.
    pub bound: Bound,
}

/// Bytes of memory: so many, and so many for each byte of input.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Whatever the input.
    pub bytes: usize,
    /// For each byte of it.
    pub per_byte: usize,
}

impl Bound {
    /// The bound for an input of that length.
    pub fn of(self, input_bytes: usize) -> usize {
        self.bytes + self.per_byte * input_bytes
    }
}
