//! Verification of a run against itself.

use super::fences::Fences;
use super::filter::Filter;
use super::footer;
use super::hash_index::{HashIndex, Place};
use super::key_hash;
use super::meta::Live;
use super::parts::Held;
use super::reader::{Run, read_part};
use crate::cursor::Found;
use std::collections::BTreeMap;
use stele_types::{Error, FileId, Result, ValueRef};

/// Counts of [`Run::verify`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunVerified {
    /// Key blocks read.
    pub blocks: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Problems reported.
    pub problems: u64,
}

struct Verifier<'a> {
    run: &'a Run,
    report: &'a mut dyn FnMut(&Error),
    seen: RunVerified,
    refs: BTreeMap<FileId, Live>,
    last_key: Option<Vec<u8>>,
    fences: Option<Fences>,
    filter: Option<Filter>,
    index: Option<HashIndex>,
    held: Held,
}

impl Run {
    /// Reads every part of the file again, bypassing the cache, and passes each problem to
    /// `report`: damage, and parts that contradict each other. Fails only when reading itself
    /// fails.
    pub fn verify(&self, report: &mut dyn FnMut(&Error)) -> Result<RunVerified> {
        let (refs, last_key) = (BTreeMap::new(), None);
        let seen = RunVerified { bytes: self.meta.bytes, ..RunVerified::default() };
        let (fences, filter, index, held) = (None, None, None, None);
        let mut verifier =
            Verifier { run: self, report, seen, refs, last_key, fences, filter, index, held };
        verifier.parts()?;
        for i in 0..self.blocks()? {
            verifier.block(i)?;
        }
        verifier.totals();
        Ok(verifier.seen)
    }
}

impl Verifier<'_> {
    fn problem(&mut self, offset: u64, detail: &str) {
        self.hand_out(&Error::corrupt(self.run.path(), offset, detail));
    }

    fn hand_out(&mut self, error: &Error) {
        self.seen.problems += 1;
        (self.report)(error);
    }

    /// Returns the result; reports damage and returns `None`.
    fn unless_damaged<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (Error::Corrupt { .. } | Error::NewerFormat { .. })) => {
                self.hand_out(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn parts(&mut self) -> Result<()> {
        let (run, layout) = (self.run, self.run.layout);
        let footer = footer::read(&*run.file);
        if self.unless_damaged(footer)?.is_some_and(|(meta, _)| meta != run.meta) {
            self.problem(layout.footer_at(), "footer differs from the one read at open");
        }
        let parts = [
            (layout.data_bytes, layout.fences_bytes),
            (layout.filter_at(), layout.filter_bytes),
            (layout.hash_at(), layout.hash_bytes),
        ];
        for (i, (offset, bytes)) in parts.into_iter().enumerate() {
            let part = read_part(&*run.file, run.id(), offset, bytes);
            let Some(part) = self.unless_damaged(part)? else { continue };
            match i {
                0 => self.fences = Fences::decode(&part, layout.blocks, layout.data_bytes),
                1 => self.filter = Filter::decode(&part, layout.probes),
                _ => self.index = HashIndex::decode(&part, layout.block_bits),
            }
        }
        Ok(())
    }

    fn block(&mut self, i: usize) -> Result<()> {
        let run = self.run;
        let place = run.fences_with(i, &mut self.held)?.block(i);
        let offset = place.map_or(0, |place| place.start);
        let read = run.read_block(i, &mut self.held);
        let Some(block) = self.unless_damaged(read)? else { return Ok(()) };
        self.seen.blocks += 1;
        for slot in 0..block.count() {
            let entry = block.entry(slot).and_then(|entry| Some((entry, block.found(&entry)?)));
            let Some((entry, found)) = entry else {
                self.problem(offset, "entry does not parse");
                continue;
            };
            let key = [block.shared(), block.suffix(&entry)].concat();
            self.entry(offset, &key, &found, Place { block: i as u32, slot: slot as u8 });
        }
        Ok(())
    }

    fn entry(&mut self, offset: u64, key: &[u8], found: &Found, place: Place) {
        self.seen.entries += 1;
        if self.last_key.as_deref().is_some_and(|last| last >= key) {
            self.problem(offset, "keys do not ascend");
        }
        self.last_key = Some(key.to_vec());
        let hash = key_hash(key);
        if self.fences.as_ref().is_some_and(|fences| fences.find(key) != place.block as usize) {
            self.problem(offset, "fences lead to another block");
        }
        if self.filter.as_ref().is_some_and(|filter| !filter.may_contain(hash)) {
            self.problem(offset, "filter rejects a key of the run");
        }
        if self.index.as_ref().is_some_and(|index| !index.places(hash).any(|p| p == place)) {
            self.problem(offset, "hash index lacks the place of a key");
        }
        if let Found::Value { value: ValueRef::At(at), .. } = found {
            self.refs.entry(at.file).or_default().add(key.len(), at);
        }
    }

    fn totals(&mut self) {
        let (meta, at) = (&self.run.meta, self.run.layout.footer_at());
        let complete = self.seen.problems == 0;
        if complete && (self.seen.entries != meta.entries || self.refs != meta.refs) {
            self.problem(at, "entries differ from the footer's counts");
        }
    }
}
