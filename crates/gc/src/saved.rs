//! State of garbage collection that survives restarts, saved in the manifest.
//!
//! ```text
//! saved  := version:u8 (3) user_bytes:varint credit:zigzag varint overwrite_millionths:varint
//!           sorted_at_s:varint stage_bytes:varint{4} (flush, merge, relocate, sort)
//!           files (sorted) plan seen sort_charged:varint
//! files  := count:varint file:varint{count}
//! plan   := 0:u8 | 1:u8 files (victims) | 2:u8 start:bytes end:bytes files (kept)
//! seen   := count:varint unix_s:varint{count}
//! bytes  := length:varint byte{length}
//! ```
//! `seen` is absent in version 1, `sort_charged` before version 3.

use crate::drop_time::SeenTimes;
use crate::mover::Plan;
use crate::stats::StageBytes;
use bytes::Bytes;
use std::collections::{BTreeSet, VecDeque};
use stele_types::{FileId, KeyRange, varint};

const VERSION: u8 = 3;
const MILLION: f64 = 1e6;

/// Saved state. Losing it costs bytes, never values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Saved {
    /// Bytes users wrote since the store was created.
    pub user_bytes: u64,
    /// Budget left; negative when overspent.
    pub credit_bytes: f64,
    /// Share of new records that replaced older ones.
    pub overwrite_ratio: f64,
    /// Unix seconds of the last sort of everything.
    pub sorted_at_s: u64,
    /// Bytes written since the store was created.
    pub bytes: StageBytes,
    /// Bytes of values and runs that sorts wrote, as charged to their credit.
    pub sort_charged_bytes: u64,
    /// Value files written by sorts.
    pub sorted: BTreeSet<FileId>,
    pub plan: Option<Plan>,
    pub seen: SeenTimes,
}

impl Default for Saved {
    fn default() -> Self {
        Self {
            user_bytes: 0,
            credit_bytes: 0.0,
            overwrite_ratio: 0.0,
            sorted_at_s: 0,
            bytes: StageBytes::default(),
            sort_charged_bytes: 0,
            sorted: BTreeSet::new(),
            plan: None,
            seen: SeenTimes::default(),
        }
    }
}

impl Saved {
    /// Returns half of the bytes that users wrote, less what sorts are charged.
    pub(crate) fn sort_balance_bytes(&self) -> i64 {
        let earned = i64::try_from(self.user_bytes / 2).unwrap_or(i64::MAX);
        earned.saturating_sub(i64::try_from(self.sort_charged_bytes).unwrap_or(i64::MAX))
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = vec![VERSION];
        varint::put(&mut out, self.user_bytes);
        let credit = self.credit_bytes as i64;
        varint::put(&mut out, ((credit << 1) ^ (credit >> 63)) as u64);
        varint::put(&mut out, (self.overwrite_ratio * MILLION).round() as u64);
        varint::put(&mut out, self.sorted_at_s);
        for bytes in [self.bytes.flush, self.bytes.merge, self.bytes.relocate, self.bytes.sort] {
            varint::put(&mut out, bytes);
        }
        put_files(&mut out, &self.sorted);
        match &self.plan {
            None => out.push(0),
            Some(Plan::Victims(files)) => {
                out.push(1);
                put_files(&mut out, files);
            }
            Some(Plan::Range { range, keep }) => {
                out.push(2);
                varint::put_bytes(&mut out, &range.start);
                varint::put_bytes(&mut out, &range.end);
                put_files(&mut out, keep);
            }
        }
        varint::put(&mut out, self.seen.iter().len() as u64);
        self.seen.iter().for_each(|seen_s| varint::put(&mut out, seen_s));
        varint::put(&mut out, self.sort_charged_bytes);
        Bytes::from(out)
    }

    /// Decodes the state. Returns `None` when the bytes are of another version or incomplete.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, mut rest) = bytes.split_first()?;
        if !(1..=VERSION).contains(&version) {
            return None;
        }
        let rest = &mut rest;
        let user_bytes = varint::take(rest)?;
        let credit = varint::take(rest)?;
        let credit_bytes = ((credit >> 1) as i64 ^ -((credit & 1) as i64)) as f64;
        let overwrite_ratio = (varint::take(rest)? as f64 / MILLION).clamp(0.0, 1.0);
        let sorted_at_s = varint::take(rest)?;
        let bytes = StageBytes {
            flush: varint::take(rest)?,
            merge: varint::take(rest)?,
            relocate: varint::take(rest)?,
            sort: varint::take(rest)?,
        };
        let sorted = take_files(rest)?;
        let plan = take_plan(rest)?;
        let seen = if version == 1 { SeenTimes::default() } else { take_seen(rest)? };
        // Earlier versions did not count the runs.
        let sort_charged_bytes = if version < 3 { bytes.sort } else { varint::take(rest)? };
        Some(Self {
            user_bytes,
            credit_bytes,
            overwrite_ratio,
            sorted_at_s,
            bytes,
            sort_charged_bytes,
            sorted,
            plan,
            seen,
        })
    }
}

fn put_files(out: &mut Vec<u8>, files: &BTreeSet<FileId>) {
    varint::put(out, files.len() as u64);
    files.iter().for_each(|file| varint::put(out, u64::from(file.0)));
}

fn take_files(bytes: &mut &[u8]) -> Option<BTreeSet<FileId>> {
    let count = varint::take(bytes)?;
    let file = |_| varint::take(bytes).and_then(|id| u32::try_from(id).ok()).map(FileId);
    (0..count).map(file).collect()
}

fn take_seen(bytes: &mut &[u8]) -> Option<SeenTimes> {
    let count = varint::take(bytes)?;
    let times: Option<VecDeque<u64>> = (0..count).map(|_| varint::take(bytes)).collect();
    SeenTimes::new(times?)
}

fn take_plan(bytes: &mut &[u8]) -> Option<Option<Plan>> {
    let (&kind, rest) = bytes.split_first()?;
    *bytes = rest;
    Some(match kind {
        0 => None,
        1 => Some(Plan::Victims(take_files(bytes)?)),
        2 => {
            let start = Bytes::copy_from_slice(varint::take_bytes(bytes)?);
            let end = Bytes::copy_from_slice(varint::take_bytes(bytes)?);
            Some(Plan::Range { range: KeyRange { start, end }, keep: take_files(bytes)? })
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_survive_the_round_trip_and_refuse_cut_bytes() {
        let files = |ids: &[u32]| ids.iter().map(|&id| FileId(id)).collect::<BTreeSet<_>>();
        let plans = [
            None,
            Some(Plan::Victims(files(&[1, 300]))),
            Some(Plan::Range { range: KeyRange::new("a", ""), keep: files(&[5]) }),
        ];
        for plan in plans {
            let saved = Saved {
                user_bytes: 1 << 40,
                credit_bytes: -12345.0,
                overwrite_ratio: 0.25,
                sorted_at_s: 77,
                bytes: StageBytes { flush: 1, merge: 2, relocate: 3, sort: u64::MAX },
                sort_charged_bytes: 1 << 33,
                sorted: files(&[2, 9, 70000]),
                plan,
                seen: SeenTimes::new(VecDeque::from([7, 1 << 31])).unwrap(),
            };
            let bytes = saved.encode();
            assert_eq!(Saved::decode(&bytes), Some(saved));
            for cut in 0..bytes.len() {
                assert_eq!(Saved::decode(&bytes[..cut]), None, "cut at {cut}");
            }
        }
    }

    #[test]
    fn a_share_that_was_read_back_is_written_as_it_was() {
        for millionths in 0..=1_000_000u32 {
            let overwrite_ratio = f64::from(millionths) / MILLION;
            let bytes = Saved { overwrite_ratio, ..Saved::default() }.encode();
            let read = Saved::decode(&bytes).unwrap();
            assert_eq!(read.encode(), bytes, "{millionths}");
        }
    }
}
