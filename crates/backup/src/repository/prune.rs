//! Deletes what only moments before a kept one need. The process may be killed after any request:
//!
//! 1. the moments before the kept one, and later ones without a base of which the log objects go, so that what is
//!    listed has its objects;
//! 2. bases that no kept or later moment needs;
//! 3. log objects before the first that a remaining base needs, ascending;
//! 4. chunks to which no base refers, if no base is being made.
//!
//! Invariant: a deleted object is one that no kept moment needs, and none that the running backup needs. That writes
//! to the last run, so its last base and everything from that base on stays, and so does a last run without a base. A base
//! in the making needs chunks to which nothing refers yet: its mark and that of the prune exclude each other.
//! Tests: `a_prune_that_is_killed_after_any_delete_leaves_every_kept_moment`,
//! `a_base_and_a_prune_never_both_begin`.

use super::catalogue::{BaseSummary, Catalogue, Restorable, RunObjects};
use super::store::Created;
use super::{BaseName, Repository};
use crate::format::{ChunkName, LogSeq, Name, RepositoryObject, RunId};
use std::collections::BTreeSet;
use stele_types::{Error, MomentId, Result};

/// What a prune deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Number of moments.
    pub moments: u64,
    /// Number of bases.
    pub bases: u64,
    /// Number of log objects.
    pub log_objects: u64,
    /// Number of chunks.
    pub chunks: u64,
    /// Bytes of log objects and chunks as stored.
    pub bytes: u64,
    /// Whether chunks were left because a base is being made, or was when its backup was killed.
    pub is_base_in_the_making: bool,
}

/// Objects of one run that no kept moment needs.
#[derive(Debug, Default)]
struct Unneeded {
    moments: Vec<Name>,
    bases: Vec<Name>,
    logs: Vec<Name>,
    /// Bytes of the log objects.
    bytes: u64,
}

impl Repository {
    /// Deletes what only moments before `keep_from` need. `take_over` continues a prune that was killed; no other may
    /// run.
    ///
    /// # Errors
    /// [`Error::Refused`] unless `keep_from` can be restored, [`Error::Busy`] beside another prune.
    pub async fn prune(&self, keep_from: MomentId, take_over: bool) -> Result<Pruned> {
        let catalogue = self.catalogue().await?;
        let moments = self.moments_of(&catalogue).await?;
        let mut kept = moments.iter().filter(|moment| moment.number == keep_from);
        let is_restorable = kept.any(|moment| moment.base.is_some());
        // bug backup.prune_keeps_nothing_restorable: let is_restorable = true;
        if !is_restorable {
            return Err(not_restorable(keep_from, &moments));
        }
        let mut all = Vec::new();
        for (run, objects) in &catalogue.runs {
            let is_last = catalogue.runs.keys().next_back() == Some(run);
            let bases = self.base_summaries(*run, &objects.bases).await?;
            all.push(unneeded(*run, objects, &bases, &moments, keep_from, is_last));
        }
        self.begin_prune(take_over).await?;
        let mut pruned = Pruned::default();
        for unneeded in &all {
            self.store.delete(&unneeded.moments).await?;
            self.store.delete(&unneeded.bases).await?;
            for log in &unneeded.logs {
                self.store.delete(&[*log]).await?;
            }
            pruned.moments += unneeded.moments.len() as u64;
            pruned.bases += unneeded.bases.len() as u64;
            pruned.log_objects += unneeded.logs.len() as u64;
            pruned.bytes += unneeded.bytes;
        }
        self.prune_chunks(&mut pruned).await?;
        self.store.delete(&[Name::Prune]).await?;
        Ok(pruned)
    }

    /// Writes the mark of a prune. Its content differs between prunes only by the time at which they began, so that an
    /// own mark of which the answer was lost is not taken for another one.
    async fn begin_prune(&self, take_over: bool) -> Result<()> {
        if take_over {
            self.store.delete(&[Name::Prune]).await?;
        }
        let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let cluster = stele_types::ClusterId(began.map_or(0, |began| began.as_nanos() as u64));
        match self.store.create(Name::Prune, RepositoryObject { cluster }.encode()?).await? {
            Created::Written => Ok(()),
            Created::Other => Err(Error::Busy(
                "another prune runs; if none does, one was killed: use --take-over".into(),
            )),
        }
    }

    /// Deletes chunks to which no base refers.
    async fn prune_chunks(&self, pruned: &mut Pruned) -> Result<()> {
        // Invariant: the marks of bases, then the bases are read after the mark of the prune is there. A base that is
        // not complete now either has its mark, or begins later and finds that of the prune.
        let catalogue = self.catalogue().await?;
        pruned.is_base_in_the_making = catalogue.runs.values().any(|run| !run.making.is_empty());
        // bug backup.prune_beside_a_base: pruned.is_base_in_the_making = false;
        if pruned.is_base_in_the_making {
            return Ok(());
        }
        let referenced = self.referenced_chunks(&catalogue).await?;
        let is_unreferenced = |name: &Name| match name {
            Name::Chunk(name) => !referenced.contains(name),
            _ => false,
        };
        let mut unneeded = self.store.list("chunks").await?.found;
        unneeded.retain(|found| is_unreferenced(&found.name));
        let names: Vec<Name> = unneeded.iter().map(|found| found.name).collect();
        self.store.delete(&names).await?;
        pruned.chunks += unneeded.len() as u64;
        pruned.bytes += unneeded.iter().map(|found| found.bytes).sum::<u64>();
        Ok(())
    }

    /// Reads all bases. Fails if one is damaged: its chunks are unknown.
    async fn referenced_chunks(&self, catalogue: &Catalogue) -> Result<BTreeSet<ChunkName>> {
        let mut referenced = BTreeSet::new();
        for (run, objects) in &catalogue.runs {
            for seq in &objects.bases {
                let base = self.base(BaseName { run: *run, seq: *seq }).await?;
                referenced.extend(base.chunks().map(|chunk| chunk.name));
            }
        }
        Ok(referenced)
    }
}

fn not_restorable(keep_from: MomentId, moments: &[Restorable]) -> Error {
    let mut restorable = moments.iter().filter(|moment| moment.base.is_some());
    let first = restorable.next().map(|moment| moment.number);
    let last = restorable.next_back().map(|moment| moment.number).or(first);
    Error::Refused(match (first, last) {
        (Some(first), Some(last)) => format!(
            "moment {keep_from} cannot be restored, so nothing before it is deleted; choose one of `stele backup list`, from {first} to {last}"
        ),
        _ => "no moment can be restored, so nothing is deleted; let a backup complete a base and a moment".to_owned(),
    })
}

/// Returns what no kept moment and no running backup needs.
fn unneeded(
    run: RunId,
    objects: &RunObjects,
    bases: &[BaseSummary],
    moments: &[Restorable],
    keep_from: MomentId,
    is_last: bool,
) -> Unneeded {
    let of_run = || moments.iter().filter(|moment| moment.run == run);
    // bug backup.prune_deletes_what_the_kept_needs: `moment.number >= keep_from` is `moment.number > keep_from`
    let kept = || of_run().filter(|moment| moment.number >= keep_from);
    let mut needed: BTreeSet<BaseName> =
        kept().filter_map(|moment| moment.base).map(|base| base.name).collect();
    if is_last {
        // bug backup.prune_deletes_the_last_base: skip
        needed.extend(bases.iter().map(|base| base.name).max());
    }
    let is_needed = |base: &&BaseSummary| needed.contains(&base.name);
    let log_from = match bases.iter().filter(is_needed).map(|base| base.log_from).min() {
        Some(log_from) => log_from,
        None if is_last => LogSeq(0),
        None => LogSeq(u64::MAX),
    };
    let unneeded_bases = bases.iter().filter(|base| !is_needed(base)).map(|base| base.name);
    let logs = || objects.logs.range(..log_from);
    Unneeded {
        moments: of_run()
            .filter(|moment| moment.number < keep_from || moment.last_log < log_from)
            .map(|moment| Name::Moment(run, moment.number))
            .collect(),
        bases: unneeded_bases.map(|base| Name::Base(base.run, base.seq)).collect(),
        logs: logs().map(|(seq, _)| Name::Log(run, *seq)).collect(),
        bytes: logs().map(|(_, bytes)| *bytes).sum(),
    }
}
