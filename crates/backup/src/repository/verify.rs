//! Checks of a repository: the names and references of all objects, and, if asked, all bytes.

use super::Repository;
use super::catalogue::{BaseName, BaseSummary, RunObjects};
use crate::format::{Base, Chunk, ChunkName, ChunkRef, LogSeq, Name, Part, RunId};
use futures_util::{StreamExt, stream};
use std::collections::BTreeSet;
use stele_types::{Error, MomentId, Result};

/// Most findings of a report; more are counted.
const FINDINGS_MAX: usize = 1000;
/// Chunks in memory at once.
const CHUNKS_AT_ONCE: usize = 4;

/// Result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of runs.
    pub runs: u64,
    /// Number of bases.
    pub bases: u64,
    /// Number of moments.
    pub moments: u64,
    /// Number of moments that can be restored.
    pub restorable: u64,
    /// Number of log objects.
    pub log_objects: u64,
    /// Number of chunks to which bases refer.
    pub chunks: u64,
    /// Number of chunks to which no base refers: a prune deletes them.
    pub unreferenced_chunks: u64,
    /// Bytes of log objects and of all chunks as stored.
    pub stored_bytes: u64,
    /// Number of objects that are none of a backup.
    pub unknown_objects: u64,
    /// Number of missing and damaged objects.
    pub damaged: u64,
    /// The first of them: object, failed check and remedy.
    pub findings: Vec<String>,
}

impl Report {
    fn note(&mut self, error: &Error) {
        self.damaged += 1;
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(error.to_string());
        }
    }

    /// Keeps what was read. Damage is a finding; every other error ends the check.
    fn keep<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error @ Error::DamagedBackup { .. }) => {
                self.note(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Repository {
    /// Checks that all objects to which others refer exist, and that no log object is missing between others. With
    /// `deep` reads all bytes, and checks their hashes, order and places.
    pub async fn verify(&self, deep: bool) -> Result<Report> {
        let catalogue = self.catalogue().await?;
        let mut report = Report { unknown_objects: catalogue.unknown, ..Report::default() };
        let present = self.present_chunks(&mut report).await?;
        let mut referenced = BTreeSet::new();
        for (run, objects) in &catalogue.runs {
            report.runs += 1;
            self.verify_run(*run, objects, deep, &present, &mut referenced, &mut report).await?;
        }
        report.chunks = referenced.len() as u64;
        report.unreferenced_chunks = present.difference(&referenced).count() as u64;
        Ok(report)
    }

    /// Lists the chunks. Takes about 60 bytes of memory for each.
    async fn present_chunks(&self, report: &mut Report) -> Result<BTreeSet<ChunkName>> {
        let listing = self.store.list("chunks").await?;
        report.unknown_objects += listing.unknown;
        report.stored_bytes += listing.found.iter().map(|found| found.bytes).sum::<u64>();
        let names = listing.found.into_iter().filter_map(|found| match found.name {
            Name::Chunk(name) => Some(name),
            _ => None,
        });
        Ok(names.collect())
    }

    async fn verify_run(
        &self,
        run: RunId,
        objects: &RunObjects,
        deep: bool,
        present: &BTreeSet<ChunkName>,
        referenced: &mut BTreeSet<ChunkName>,
        report: &mut Report,
    ) -> Result<()> {
        report.log_objects += objects.logs.len() as u64;
        report.stored_bytes += objects.logs.values().sum::<u64>();
        let bases = self.verify_bases(run, objects, deep, present, referenced, report).await?;
        note_gaps(run, objects, &bases, report);
        for number in &objects.moments {
            report.moments += 1;
            self.verify_moment(run, *number, objects, &bases, report).await?;
        }
        if deep {
            self.read_logs(run, objects, report).await?;
        }
        Ok(())
    }

    /// Returns the bases of which every chunk was found.
    async fn verify_bases(
        &self,
        run: RunId,
        objects: &RunObjects,
        deep: bool,
        present: &BTreeSet<ChunkName>,
        referenced: &mut BTreeSet<ChunkName>,
        report: &mut Report,
    ) -> Result<Vec<BaseSummary>> {
        let mut whole = Vec::new();
        for seq in &objects.bases {
            report.bases += 1;
            let name = BaseName { run, seq: *seq };
            let Some(base) = report.keep(self.base(name).await)? else { continue };
            let damaged_before = report.damaged;
            self.verify_base(&base, deep, present, referenced, report).await?;
            if report.damaged == damaged_before {
                whole.push(BaseSummary::of(name, &base));
            }
        }
        Ok(whole)
    }

    async fn verify_base(
        &self,
        base: &Base,
        deep: bool,
        present: &BTreeSet<ChunkName>,
        referenced: &mut BTreeSet<ChunkName>,
        report: &mut Report,
    ) -> Result<()> {
        for part in &base.parts {
            if let Err(detail) = check_order(part) {
                let path = Name::Base(base.run, base.seq).path();
                report.note(&Error::damaged_backup(path, detail));
            }
            let mut to_read = Vec::new();
            for chunk in &part.chunks {
                let is_new = referenced.insert(chunk.name);
                match present.contains(&chunk.name) {
                    true if deep && is_new => to_read.push(chunk),
                    true => {}
                    false => report.note(&missing(Name::Chunk(chunk.name))),
                }
            }
            let reads = to_read.iter().map(|chunk| self.read_chunk(part, chunk));
            let mut reads = stream::iter(reads).buffered(CHUNKS_AT_ONCE);
            while let Some(read) = reads.next().await {
                report.keep(read)?;
            }
        }
        Ok(())
    }

    /// Reads a chunk, and compares it with its reference.
    async fn read_chunk(&self, part: &Part, reference: &ChunkRef) -> Result<()> {
        let chunk = self.chunk(&reference.name).await?;
        let differs = |detail: &str| {
            Err(Error::damaged_backup(Name::Chunk(reference.name).path(), detail.to_owned()))
        };
        if !is_referred(&chunk, reference) {
            return differs("its pairs are not those to which its base refers");
        }
        match chunk.pairs.iter().all(|pair| part.range.contains(&pair.key)) {
            true => Ok(()),
            false => differs("a key is outside the range of its part"),
        }
    }

    async fn verify_moment(
        &self,
        run: RunId,
        number: MomentId,
        objects: &RunObjects,
        bases: &[BaseSummary],
        report: &mut Report,
    ) -> Result<()> {
        let Some(moment) = report.keep(self.moment(run, number).await)? else { return Ok(()) };
        if !objects.logs.contains_key(&moment.last_log) {
            report.note(&missing(Name::Log(run, moment.last_log)));
        }
        report.restorable += u64::from(objects.base_of(bases, moment.last_log).is_some());
        Ok(())
    }

    /// Reads the log objects one after the other.
    async fn read_logs(&self, run: RunId, objects: &RunObjects, report: &mut Report) -> Result<()> {
        for seq in objects.logs.keys() {
            report.keep(self.log(run, *seq).await)?;
        }
        Ok(())
    }
}

fn missing(name: Name) -> Error {
    Error::damaged_backup(name.path(), "it is missing")
}

fn is_referred(chunk: &Chunk, reference: &ChunkRef) -> bool {
    let first_key = chunk.pairs.first().map(|pair| &pair.key);
    chunk.pairs.len() as u64 == reference.pairs && first_key == Some(&reference.first_key)
}

/// Checks that the chunks of a part ascend within its range.
fn check_order(part: &Part) -> std::result::Result<(), &'static str> {
    let keys = || part.chunks.iter().map(|chunk| &chunk.first_key);
    if keys().any(|key| !part.range.contains(key)) {
        return Err("a chunk begins outside the range of its part");
    }
    match keys().zip(keys().skip(1)).all(|(one, next)| one < next) {
        true => Ok(()),
        false => Err("the chunks of a part do not ascend"),
    }
}

/// Notes the log objects that are missing between the first and the last, and those that bases need before them.
fn note_gaps(run: RunId, objects: &RunObjects, bases: &[BaseSummary], report: &mut Report) {
    let Some((last, _)) = objects.logs.last_key_value() else { return };
    let first = objects.logs.keys().next().copied().into_iter();
    let needed = bases.iter().map(|base| base.log_from).filter(|from| from <= last);
    let mut expected = first.chain(needed).min().unwrap_or_default();
    for seq in objects.logs.keys() {
        if expected < *seq {
            let before = LogSeq(seq.0 - 1);
            let detail = match before == expected {
                true => "it is missing".to_owned(),
                false => format!("it and all up to {before} are missing"),
            };
            report.note(&Error::damaged_backup(Name::Log(run, expected).path(), detail));
        }
        expected = seq.next();
    }
}
