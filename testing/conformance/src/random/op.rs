//! One step of a history. Numbers are relative to the state before the step, so that a history
//! stays valid when earlier steps are left out.

use bytes::Bytes;
use stele_types::Prng;
use stele_types::{CommandBuilder, KeyRange, Result};

pub(super) const REGIONS: u64 = 3;
const KEYS: u64 = 24;
/// Lengths near the thresholds of engines: inline, block, slice.
const VALUE_BYTES: [u64; 9] = [0, 1, 64, 65, 200, 1000, 4096, 9000, 40_000];

#[derive(Clone, Debug)]
pub(super) enum Op {
    /// Appends entries. The first lies `back` below the end, unless that would replace a committed
    /// entry.
    Append {
        region: u64,
        back: u64,
        entries: Vec<Vec<WriteOp>>,
    },
    /// Appends one entry and one hard state for every region, in one batch.
    AppendAll {
        seed: u64,
    },
    /// Commits `advance` more entries and persists that with the hard state.
    Commit {
        region: u64,
        advance: u64,
    },
    Apply {
        region: u64,
        count: u64,
    },
    CutSuffix {
        region: u64,
        back: u64,
    },
    Truncate {
        region: u64,
        advance: u64,
    },
    Maintain {
        bytes: u64,
    },
    FinishMaintenance,
    Crash {
        seed: u64,
    },
    HoldView,
    DropViews,
    Scan {
        start: u64,
        end: u64,
        limit: u64,
        bytes_max: u64,
        reverse: bool,
        keys_only: bool,
    },
    /// Stages pairs of a region's keys until an installation.
    Receive {
        region: u64,
        keys: Vec<(u64, u64)>,
    },
    /// Installs the staged pairs at an index `advance` above the log's end.
    Install {
        region: u64,
        advance: u64,
    },
    /// Moves all keys of `from` to `to`, as a split or a merge does: `from` has then applied all
    /// its committed entries.
    MoveKeys {
        from: u64,
        to: u64,
    },
    DropRange {
        region: u64,
    },
    /// Drops the region's range and destroys the region; the next append starts it again.
    Destroy {
        region: u64,
    },
}

/// Write of an entry. Keys are numbers in the spaces that a region owns; values are lengths.
#[derive(Clone, Debug)]
pub(super) enum WriteOp {
    Put { key: u64, bytes: u64, expires_at_s: u64 },
    Delete { key: u64 },
    DeleteRange { start: u64, end: u64 },
}

impl Op {
    pub(super) fn draw(prng: &mut Prng) -> Self {
        let region = 1 + prng.below(REGIONS);
        match prng.below(100) {
            0..30 => {
                let back = if prng.below(4) == 0 { prng.below(5) } else { 0 };
                let count = 1 + prng.below(4);
                Self::Append { region, back, entries: (0..count).map(|_| writes(prng)).collect() }
            }
            30..35 => Self::AppendAll { seed: prng.draw() },
            35..42 => Self::Commit { region, advance: prng.below(4) },
            42..65 => Self::Apply { region, count: 1 + prng.below(6) },
            65..67 => Self::CutSuffix { region, back: prng.below(4) },
            67..71 => Self::Truncate { region, advance: prng.below(12) },
            71..77 => Self::Maintain { bytes: 1 << (10 + prng.below(8)) },
            77..80 => Self::FinishMaintenance,
            80..84 => Self::Crash { seed: prng.draw() },
            84..87 => Self::HoldView,
            87..88 => Self::DropViews,
            88..94 => Self::Scan {
                start: prng.below(REGIONS * KEYS + 1),
                end: prng.below(REGIONS * KEYS + 1),
                limit: prng.below(40),
                bytes_max: 1 << prng.below(18),
                reverse: prng.below(2) == 0,
                keys_only: prng.below(3) == 0,
            },
            94..96 => Self::Receive {
                region,
                keys: (0..prng.below(8)).map(|_| (prng.below(KEYS), length(prng))).collect(),
            },
            96..97 => Self::Install { region, advance: 1 + prng.below(5) },
            97..98 => Self::MoveKeys { from: region, to: 1 + prng.below(REGIONS) },
            98..99 => Self::DropRange { region },
            _ => Self::Destroy { region },
        }
    }
}

fn length(prng: &mut Prng) -> u64 {
    VALUE_BYTES[prng.below(VALUE_BYTES.len() as u64) as usize]
}

pub(super) fn writes(prng: &mut Prng) -> Vec<WriteOp> {
    let count = prng.below(4);
    let mut write = || match prng.below(10) {
        0..7 => WriteOp::Put {
            key: prng.below(KEYS),
            bytes: length(prng),
            expires_at_s: if prng.below(8) == 0 { 4_000_000_000 } else { 0 },
        },
        7..9 => WriteOp::Delete { key: prng.below(KEYS) },
        _ => WriteOp::DeleteRange { start: prng.below(KEYS), end: prng.below(KEYS) },
    };
    (0..count).map(|_| write()).collect()
}

/// Returns the keys of a space. At first each region owns the space of its number.
pub(super) fn range(space: u64) -> KeyRange {
    KeyRange::prefix(format!("s{space}/").as_bytes())
}

fn key(space: u64, number: u64) -> Bytes {
    format!("s{space}/{number:02}").into()
}

/// Returns the key of a number in the owned spaces; `None` when none is owned.
pub(super) fn key_in(owned: &[u64], number: u64) -> Option<Bytes> {
    Some(key(space_of(owned, number)?, number))
}

pub(super) fn key_at(place: u64) -> Bytes {
    key(1 + place / KEYS, place % KEYS)
}

pub(super) fn value(bytes: u64, index: u64, term: u64) -> Bytes {
    let stamp = (index * 131 + term * 17) as u8;
    (0..bytes).map(|at| stamp ^ (at as u8).wrapping_mul(7)).collect::<Vec<u8>>().into()
}

/// Returns the payload of the entry at `index` and `term` of a region that owns these spaces.
pub(super) fn payload(owned: &[u64], index: u64, term: u64, writes: &[WriteOp]) -> Result<Bytes> {
    let mut builder = CommandBuilder::new();
    for write in writes {
        let (WriteOp::Put { key: number, .. }
        | WriteOp::Delete { key: number }
        | WriteOp::DeleteRange { start: number, .. }) = *write;
        let Some(key) = key_in(owned, number) else { continue };
        match *write {
            WriteOp::Put { bytes, expires_at_s, .. } => {
                builder.put(&key, &value(bytes, index, term), expires_at_s)?
            }
            WriteOp::Delete { .. } => builder.delete(&key)?,
            // Both ends are in one space: other regions' keys lie between two spaces.
            WriteOp::DeleteRange { end, .. } => {
                let end = space_of(owned, number).map(|space| self::key(space, end));
                builder.delete_range(&key, &end.unwrap_or_default())?
            }
        };
    }
    Ok(builder.build().bytes().clone())
}

fn space_of(owned: &[u64], number: u64) -> Option<u64> {
    owned.get((number % owned.len().max(1) as u64) as usize).copied()
}
