//! Mutations of inputs: small ones that keep most of the structure.

use stele_types::{Prng, varint};

/// Longest input.
pub const INPUT_BYTES_MAX: usize = 256 << 10;

/// Numbers at limits, where code often fails.
const EDGES: [u64; 22] = [
    0,
    1,
    2,
    7,
    8,
    31,
    32,
    127,
    128,
    255,
    256,
    511,
    4096,
    0x7fff,
    0xffff,
    1 << 20,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    u64::MAX,
];

/// Changes `input` in a few positions; parts may come from `other`.
pub fn mutate(input: &mut Vec<u8>, other: &[u8], chance: &mut Prng) {
    let changes = 1 << chance.below(4);
    for _ in 0..changes {
        change(input, other, chance);
    }
    input.truncate(INPUT_BYTES_MAX);
}

/// Draws a position in the input; often near its ends, where headers and footers are.
fn place(length: usize, chance: &mut Prng) -> usize {
    let near = (length as u64).min(100);
    let at = match chance.below(4) {
        0 => chance.below(near),
        1 => (length as u64).saturating_sub(1 + chance.below(near)),
        _ => chance.below(length as u64),
    };
    at as usize
}

fn part<'a>(bytes: &'a [u8], chance: &mut Prng) -> &'a [u8] {
    let at = place(bytes.len(), chance);
    let rest = bytes.get(at..).unwrap_or_default();
    let length = match chance.below(3) {
        0 => chance.below(9),
        1 => chance.below(200),
        _ => chance.below(rest.len() as u64 + 1),
    };
    rest.get(..rest.len().min(length as usize)).unwrap_or_default()
}

fn edge(chance: &mut Prng) -> u64 {
    match chance.below(4) {
        0 => chance.draw() >> chance.below(64),
        1 => 1 << chance.below(64),
        _ => EDGES.get(chance.below(EDGES.len() as u64) as usize).copied().unwrap_or(0),
    }
}

fn put(input: &mut Vec<u8>, at: usize, replaced: usize, bytes: &[u8]) {
    let at = at.min(input.len());
    let end = (at + replaced).min(input.len());
    input.splice(at..end, bytes.iter().copied());
}

fn change(input: &mut Vec<u8>, other: &[u8], chance: &mut Prng) {
    let at = place(input.len(), chance);
    match chance.below(13) {
        0 => flip(input, at, |byte| byte ^ 1 << chance.below(8)),
        1 => flip(input, at, |_| chance.draw() as u8),
        2 => {
            let step = 1 + chance.below(4) as u8;
            let up = chance.coin();
            flip(
                input,
                at,
                |byte| if up { byte.wrapping_add(step) } else { byte.wrapping_sub(step) },
            );
        }
        // Number of fixed width, in either byte order.
        3 | 4 => {
            let width = 1 << chance.below(4);
            let number = near(edge(chance), chance);
            let bytes = match chance.below(4) {
                0 => number.to_be_bytes()[8 - width..].to_vec(),
                _ => number.to_le_bytes()[..width].to_vec(),
            };
            put(input, at, width, &bytes);
        }
        // Number of variable width, in place of one.
        5 | 6 => {
            let mut bytes = Vec::new();
            let old = input.get(at..).unwrap_or_default();
            let old_width = 1 + old.iter().take(9).take_while(|byte| **byte >= 0x80).count();
            varint::put(&mut bytes, near(edge(chance), chance));
            put(input, at, old_width, &bytes);
        }
        7 => {
            let length = input.len();
            input.truncate(chance.below(length as u64 + 1) as usize);
        }
        8 => {
            let gone = part(input.get(at..).unwrap_or_default(), chance).len();
            put(input, at, gone, &[]);
        }
        9 => {
            let twice = part(input, chance).to_vec();
            put(input, at, 0, &twice);
        }
        10 => {
            let foreign = part(other, chance).to_vec();
            let replaced = if chance.coin() { foreign.len() } else { 0 };
            put(input, at, replaced, &foreign);
        }
        11 => {
            let random: Vec<u8> = (0..1 + chance.below(16)).map(|_| chance.draw() as u8).collect();
            put(input, at, 0, &random);
        }
        _ => {
            let byte = [0, 0xff, b' ', b'"'][chance.below(4) as usize];
            let run = vec![byte; chance.below(64) as usize];
            let replaced = if chance.coin() { run.len() } else { 0 };
            put(input, at, replaced, &run);
        }
    }
}

fn near(number: u64, chance: &mut Prng) -> u64 {
    match chance.below(4) {
        0 => number.wrapping_sub(chance.below(40)),
        1 => number.wrapping_add(chance.below(40)),
        _ => number,
    }
}

fn flip(input: &mut [u8], at: usize, mut f: impl FnMut(u8) -> u8) {
    if let Some(byte) = input.get_mut(at) {
        *byte = f(*byte);
    }
}
