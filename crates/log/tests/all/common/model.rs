//! In-memory model of a log.

#![allow(dead_code)]

use std::collections::BTreeMap;
use stele_log::{Log, ReplayOp};
use stele_types::{
    CommandBuilder, EntryRecord, HardState, LogBatch, LogIndex, Mark, Record, RegionId, Term,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelRegion {
    pub truncated: (LogIndex, Term),
    pub entries: BTreeMap<LogIndex, EntryRecord>,
    pub hard_state: HardState,
    pub destroyed: bool,
}

impl ModelRegion {
    pub(crate) fn last(&self) -> LogIndex {
        self.entries.keys().next_back().copied().unwrap_or(self.truncated.0)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Model {
    pub regions: BTreeMap<RegionId, ModelRegion>,
}

impl Model {
    pub(crate) fn apply(&mut self, batch: &LogBatch) {
        for record in &batch.records {
            match record {
                Record::Entry(entry) => {
                    let region = self.regions.entry(entry.region).or_default();
                    region.entries.split_off(&entry.index);
                    region.entries.insert(entry.index, entry.clone());
                }
                Record::HardState(id, state) => {
                    self.regions.entry(*id).or_default().hard_state = *state;
                }
                Record::Mark(id, mark) => self.mark(*id, mark),
            }
        }
    }

    fn mark(&mut self, id: RegionId, mark: &Mark) {
        let region = self.regions.entry(id).or_default();
        match mark {
            Mark::Start(index, term) => {
                region.truncated = (*index, *term);
                region.entries.clear();
                if region.destroyed {
                    region.hard_state = HardState::default();
                }
                region.destroyed = false;
            }
            Mark::TruncatePrefix(index, term) if *index > region.truncated.0 => {
                region.truncated = (*index, *term);
                region.entries = region.entries.split_off(&index.next());
            }
            Mark::TruncatePrefix(..) => {}
            Mark::TruncateSuffix(from) => drop(region.entries.split_off(from)),
            Mark::Destroy => {
                region.entries.clear();
                region.destroyed = true;
            }
        }
    }

    pub(crate) fn difference(&self, log: &Log) -> Option<String> {
        if log.regions() != self.regions.keys().copied().collect::<Vec<_>>() {
            return Some(format!("regions {:?}", log.regions()));
        }
        self.regions.iter().find_map(|(id, expected)| self.region_difference(log, *id, expected))
    }

    fn region_difference(&self, log: &Log, id: RegionId, expected: &ModelRegion) -> Option<String> {
        let found = log.region(id)?;
        let (truncated, last) = (found.truncated, found.last);
        if (truncated, last, found.hard_state, found.destroyed)
            != (expected.truncated, expected.last(), expected.hard_state, expected.destroyed)
        {
            return Some(format!("region {id}: {found:?}, expected last {}", expected.last()));
        }
        let entries = match log.entries(id, found.first, last.next(), usize::MAX) {
            Ok(entries) => entries,
            Err(error) => return Some(format!("region {id}: {error}")),
        };
        if entries.len() != expected.entries.len() {
            return Some(format!("region {id}: {} entries", entries.len()));
        }
        let mut replayed = BTreeMap::new();
        log.replay(&|_| LogIndex(0), &mut |entry| {
            if entry.region == id {
                let puts = |op: &ReplayOp<'_>| matches!(op, ReplayOp::Put { .. });
                replayed.insert(
                    entry.index,
                    (entry.term, entry.ops.iter().filter(|op| puts(op)).count()),
                );
            }
            Ok(())
        })
        .ok()?;
        for (found, expected) in entries.iter().zip(expected.entries.values()) {
            let same = found.index == expected.index
                && found.term == expected.term
                && found.payload == expected.payload
                && replayed.get(&found.index).map(|(term, _)| *term) == Some(expected.term);
            if !same {
                return Some(format!("region {id}: entry {}", expected.index));
            }
        }
        (replayed.len() != entries.len()).then(|| format!("region {id}: replay"))
    }
}

pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    pub(crate) fn batch(&mut self, model: &Model, value_bytes_max: u64) -> LogBatch {
        let mut after = model.clone();
        let mut batch = LogBatch::default();
        for _ in 0..=self.below(4) {
            let id = RegionId(1 + self.below(4));
            let record = self.record(id, after.regions.entry(id).or_default(), value_bytes_max);
            after.apply(&LogBatch { records: vec![record.clone()] });
            batch.records.push(record);
        }
        batch
    }

    fn record(&mut self, id: RegionId, region: &ModelRegion, value_bytes_max: u64) -> Record {
        let (truncated, last) = (region.truncated.0.0, region.last().0);
        let count = last - truncated;
        let kind = if region.destroyed { 95 } else { self.below(100) };
        match kind {
            0..=69 => self.entry(id, LogIndex(last + 1), 1, value_bytes_max),
            70..=74 if count > 0 => {
                let index = last - self.below(count.min(3));
                let term = 2 + self.below(5);
                self.entry(id, LogIndex(index), term, value_bytes_max)
            }
            75..=84 if count > 0 => {
                let index = LogIndex(truncated + 1 + self.below(count));
                let term = region.entries.get(&index).map_or(Term(0), |entry| entry.term);
                Record::Mark(id, Mark::TruncatePrefix(index, term))
            }
            85..=87 if count > 0 => {
                Record::Mark(id, Mark::TruncateSuffix(LogIndex(last - self.below(count.min(2)))))
            }
            88 => Record::Mark(id, Mark::Destroy),
            95..=96 => Record::Mark(id, Mark::Start(LogIndex(last + self.below(5)), Term(1))),
            _ => {
                let (term, vote) = (Term(self.below(9)), self.below(4));
                Record::HardState(id, HardState { term, vote, commit: LogIndex(last) })
            }
        }
    }

    fn entry(&mut self, region: RegionId, index: LogIndex, term: u64, bytes_max: u64) -> Record {
        let mut builder = CommandBuilder::new();
        for _ in 0..=self.below(2) {
            let key = self.below(50).to_be_bytes();
            if self.below(5) == 0 {
                builder.delete(&key).unwrap();
            } else {
                let bytes = self.below(bytes_max) as usize;
                builder.put(&key, &super::value(self.next(), bytes), 0).unwrap();
            }
        }
        let payload = builder.build().bytes().clone();
        Record::Entry(EntryRecord { region, term: Term(term), index, is_command: true, payload })
    }
}
