//! Random history of one region: entries pushed and applied, and snapshots taken in between.

use crate::overlay::plain::{Op, State};
use bytes::Bytes;
use std::ops::RangeInclusive;
use std::sync::Arc;
use stele_storage::{Effects, Overlay};
use stele_types::{CommandBuilder, KeyRange, LogIndex, Prng};

const EDGE_KEYS: [&[u8]; 14] = [
    b"",
    b"\0",
    b"\0\0",
    b"a",
    b"a\0",
    b"a\0\0",
    b"a\0a",
    b"aa",
    b"ab",
    b"b",
    b"b\xff",
    b"c",
    b"\xff",
    b"\xff\xff",
];
const MANY_KEYS: u64 = 400;

/// Keys of a history: few with edges, or many so that trees have some levels.
#[derive(Clone, Copy, Debug)]
pub(super) enum Keys {
    Edges,
    Many,
}

impl Keys {
    pub(super) fn draw(self, prng: &mut Prng) -> Bytes {
        match self {
            Self::Edges => Bytes::from_static(EDGE_KEYS[prng.below(14) as usize]),
            Self::Many => format!("{:03}", prng.below(MANY_KEYS)).into(),
        }
    }

    /// Returns any range: also unbounded, empty and inverted ones.
    pub(super) fn range(self, prng: &mut Prng) -> KeyRange {
        let end = if prng.below(4) == 0 { Bytes::new() } else { self.draw(prng) };
        KeyRange::new(self.draw(prng), end)
    }
}

/// Effects of the entries after `applied` up to and including `last`.
pub(super) struct Snapshot {
    pub effects: Effects,
    pub applied: usize,
    pub last: usize,
}

impl Snapshot {
    /// Indexes of the states over which the effects may be laid.
    pub(super) fn views(&self) -> RangeInclusive<usize> {
        self.applied..=self.last
    }
}

pub(super) struct History {
    pub keys: Keys,
    /// Operations of each entry; entry 0 has none.
    pub entries: Vec<Vec<Op>>,
    pub states: Vec<Arc<State>>,
    pub snapshots: Vec<Snapshot>,
}

impl History {
    /// Draws a history. Fails when the overlay itself differs from the entries that are pushed.
    pub(super) fn new(seed: u64) -> Result<Self, String> {
        let prng = &mut Prng::new(seed);
        let keys = if prng.below(8) == 0 { Keys::Many } else { Keys::Edges };
        let first = match keys {
            Keys::Edges => prng.below(12),
            Keys::Many => prng.below(300),
        };
        let pairs = (0..first).map(|_| (keys.draw(prng), (Bytes::from_static(b"old"), 0)));
        let states = vec![Arc::new(pairs.collect())];
        let mut history = Self { keys, entries: vec![Vec::new()], states, snapshots: Vec::new() };
        let (mut overlay, mut applied) = (Overlay::default(), 0);
        for _ in 0..4 + prng.below(16) {
            let last = history.entries.len() - 1;
            match prng.below(10) {
                0..6 => history.push(&mut overlay, prng)?,
                6..8 => {
                    applied += prng.below((last - applied) as u64 + 1) as usize;
                    overlay.note_applied(LogIndex(applied as u64));
                }
                8 if prng.below(6) == 0 => {
                    applied = last;
                    overlay.clear();
                }
                _ => {
                    let effects = overlay.effects();
                    history.snapshots.push(Snapshot { effects, applied, last });
                }
            }
            history.check_overlay(&overlay, applied, seed, prng)?;
        }
        let (effects, last) = (overlay.effects(), history.entries.len() - 1);
        history.snapshots.push(Snapshot { effects, applied, last });
        Ok(history)
    }

    fn push(&mut self, overlay: &mut Overlay, prng: &mut Prng) -> Result<(), String> {
        let index = self.entries.len();
        let many = matches!(self.keys, Keys::Many) && prng.coin();
        let count = if many { prng.below(120) } else { prng.below(6) };
        let ops: Vec<Op> = (0..count).map(|_| self.op(index, prng)).collect();
        // An entry without operations has an empty command or none.
        let payload = if ops.is_empty() && prng.coin() { Bytes::new() } else { payload(&ops) };
        overlay.push(LogIndex(index as u64), &payload).map_err(|error| error.to_string())?;
        let mut state = State::clone(&self.states[index - 1]);
        ops.iter().for_each(|op| op.apply(&mut state));
        self.states.push(Arc::new(state));
        self.entries.push(ops);
        Ok(())
    }

    fn op(&self, index: usize, prng: &mut Prng) -> Op {
        match prng.below(16) {
            0..8 => {
                let value = format!("{index}{}", "+".repeat(prng.below(5) as usize));
                let expires_at_s =
                    if prng.below(8) == 0 { 4_000_000_000 + prng.below(9) } else { 0 };
                Op::Put(self.keys.draw(prng), value.into(), expires_at_s)
            }
            8..14 => Op::Delete(self.keys.draw(prng)),
            _ => Op::DeleteRange(self.keys.range(prng)),
        }
    }

    fn check_overlay(
        &self,
        overlay: &Overlay,
        applied: usize,
        seed: u64,
        prng: &mut Prng,
    ) -> Result<(), String> {
        let unapplied = &self.entries[applied + 1..];
        let is_empty = unapplied.iter().flatten().all(|op| !op.overlaps(&KeyRange::all()));
        let key = self.keys.draw(prng);
        let found = overlay.get(&key);
        let is_written = unapplied.iter().flatten().any(|op| op.writes(&key));
        let state = self.states.last().and_then(|state| state.get(&key));
        let put = found
            .as_ref()
            .map(|effect| effect.as_ref().map(|it| (it.value.clone(), it.expires_at_s)));
        // An effect of an entry that is applied may stay, with those of all later ones.
        let wanted = (is_written || found.is_some()).then(|| state.cloned());
        if put == wanted && overlay.is_empty() == is_empty && (overlay.bytes() == 0) == is_empty {
            return Ok(());
        }
        Err(format!("seed {seed}: overlay after {applied} at {key:?}: {found:?}, {overlay:?}"))
    }
}

fn payload(ops: &[Op]) -> Bytes {
    let mut builder = CommandBuilder::new();
    for op in ops {
        match op {
            Op::Put(key, value, expires_at_s) => builder.put(key, value, *expires_at_s),
            Op::Delete(key) => builder.delete(key),
            Op::DeleteRange(range) => builder.delete_range(&range.start, &range.end),
        }
        .unwrap();
    }
    builder.build().bytes().clone()
}
