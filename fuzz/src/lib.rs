//! Fuzz targets: one for each decoder of bytes from a disk or a network, and the code that runs
//! them. Every target must hold for every input: no panic, no memory above its bound, no endless
//! run, and decoded values are equal after encoding and decoding again.
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
    /// Name on the command line.
    pub name: &'static str,
    /// Decodes the input and checks the result; a panic is a finding.
    pub run: fn(&[u8]),
    /// Inputs from the product's own encoders.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Corrects checksums, and other fields that would reject the input, after a mutation.
    pub fix_checksums: Option<fn(&mut Vec<u8>)>,
    /// Limit of memory during a run.
    pub bound: Bound,
}

/// Limit of memory in bytes: a constant plus a multiple of the input's length.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Constant part.
    pub bytes: usize,
    /// Part for each byte of input.
    pub per_byte: usize,
}

impl Bound {
    /// Returns the bound for an input of that length.
    pub fn of(self, input_bytes: usize) -> usize {
        self.bytes + self.per_byte * input_bytes
    }
}
