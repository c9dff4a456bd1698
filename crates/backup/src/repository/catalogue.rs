//! What a repository has: its runs, and which moment can be restored from which base.

use super::Repository;
use super::store::Listing;
use crate::format::{BaseSeq, LogSeq, Name, RunId};
use futures_util::{StreamExt, TryStreamExt, stream};
use std::collections::BTreeMap;
use std::fmt;
use stele_types::{Error, MomentId, Result};

/// Moments that are read at once.
const READS_AT_ONCE: usize = 16;

/// A base of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseName {
    /// The run.
    pub run: RunId,
    /// Place among its bases.
    pub seq: BaseSeq,
}

impl fmt::Display for BaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Name::Base(self.run, self.seq).path())
    }
}

/// What decides which moments a base serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseSummary {
    /// The base.
    pub name: BaseName,
    /// First log object with records that may be missing in it.
    pub log_from: LogSeq,
    /// First log object at the end of which the base can be restored.
    pub log_complete: LogSeq,
    /// Number of its pairs.
    pub pairs: u64,
    /// Bytes of its chunks before compression.
    pub bytes: u64,
}

/// A moment that can be restored, or cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restorable {
    /// Number in the cluster.
    pub number: MomentId,
    /// Run of its log objects.
    pub run: RunId,
    /// Log object that ends at the moment.
    pub last_log: LogSeq,
    /// Wall clocks of the nodes: number of the node, Unix time in milliseconds.
    pub clocks_unix_ms: Vec<(u64, u64)>,
    /// Version of the program that wrote it.
    pub program: String,
    /// Level of the cluster.
    pub level: u32,
    /// Base that needs the fewest log objects; `None` if the moment cannot be restored.
    pub base: Option<BaseSummary>,
    /// Bytes of these log objects as stored.
    pub log_bytes: u64,
}

/// Objects of one run.
#[derive(Debug, Default)]
pub(super) struct RunObjects {
    /// Log objects, and their bytes as stored.
    pub(super) logs: BTreeMap<LogSeq, u64>,
    pub(super) bases: Vec<BaseSeq>,
    pub(super) making: Vec<BaseSeq>,
    pub(super) moments: Vec<MomentId>,
}

impl RunObjects {
    /// Whether all log objects between these two exist.
    fn has_logs(&self, from: LogSeq, to: LogSeq) -> bool {
        from <= to && self.logs.range(from..=to).count() as u64 == (to.0 - from.0).saturating_add(1)
    }

    /// Returns the base from which a moment is restored.
    ///
    /// Invariant: at the moment's log object the base was complete, and all log objects from the base's first to that
    /// one exist. A base that ended later than the moment has writes that the moment does not.
    /// Test: `a_moment_is_restorable_from_complete_bases_with_all_log_objects_only`.
    pub(super) fn base_of(&self, bases: &[BaseSummary], last_log: LogSeq) -> Option<BaseSummary> {
        let serves = |base: &&BaseSummary| {
            // bug backup.incomplete_base_serves: return self.has_logs(base.log_from, last_log);
            base.log_complete <= last_log && self.has_logs(base.log_from, last_log)
        };
        bases.iter().filter(serves).max_by_key(|base| (base.log_from, base.name)).copied()
    }
}

/// Objects of all runs.
#[derive(Debug, Default)]
pub(super) struct Catalogue {
    pub(super) runs: BTreeMap<RunId, RunObjects>,
    /// Number of objects that are none of a backup.
    pub(super) unknown: u64,
}

impl Catalogue {
    fn of(listing: Listing) -> Self {
        let mut runs: BTreeMap<RunId, RunObjects> = BTreeMap::new();
        for found in listing.found {
            match found.name {
                Name::Log(run, seq) => {
                    runs.entry(run).or_default().logs.insert(seq, found.bytes);
                }
                Name::Base(run, seq) => runs.entry(run).or_default().bases.push(seq),
                Name::Making(run, seq) => runs.entry(run).or_default().making.push(seq),
                Name::Moment(run, number) => runs.entry(run).or_default().moments.push(number),
                Name::Repository | Name::Prune | Name::Chunk(_) => {}
            }
        }
        for run in runs.values_mut() {
            run.bases.sort_unstable();
            run.moments.sort_unstable();
        }
        Self { runs, unknown: listing.unknown }
    }
}

impl Repository {
    pub(super) async fn catalogue(&self) -> Result<Catalogue> {
        Ok(Catalogue::of(self.store.list("runs").await?))
    }

    /// Returns the runs, the earliest first.
    pub async fn runs(&self) -> Result<Vec<RunId>> {
        Ok(self.catalogue().await?.runs.into_keys().collect())
    }

    /// Returns the number of a run that does not exist.
    pub async fn new_run(&self) -> Result<RunId> {
        Ok(RunId(self.runs().await?.last().map_or(1, |run| run.0.saturating_add(1))))
    }

    /// Returns the last log object of a run; `None` for a run without one.
    pub async fn last_log(&self, run: RunId) -> Result<Option<LogSeq>> {
        let listed = self.store.list(&format!("runs/{run}/log")).await?.found;
        let seqs = listed.iter().filter_map(|found| match found.name {
            Name::Log(_, seq) => Some(seq),
            _ => None,
        });
        Ok(seqs.max())
    }

    /// Returns the numbers of the moments of a run, ascending.
    pub async fn moments_of_run(&self, run: RunId) -> Result<Vec<MomentId>> {
        Ok(self.catalogue().await?.runs.remove(&run).unwrap_or_default().moments)
    }

    /// Returns the first log object that a run has; `None` for a run without one.
    pub async fn first_log(&self, run: RunId) -> Result<Option<LogSeq>> {
        let catalogue = self.catalogue().await?;
        Ok(catalogue.runs.get(&run).and_then(|run| run.logs.keys().next().copied()))
    }

    /// Returns the bases of a run, the earliest first.
    pub async fn bases(&self, run: RunId) -> Result<Vec<BaseSummary>> {
        let catalogue = self.catalogue().await?;
        let seqs = catalogue.runs.get(&run).map(|run| run.bases.clone()).unwrap_or_default();
        self.base_summaries(run, &seqs).await
    }

    /// Reads the bases one after the other: each may be large.
    pub(super) async fn base_summaries(
        &self,
        run: RunId,
        seqs: &[BaseSeq],
    ) -> Result<Vec<BaseSummary>> {
        let mut summaries = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let name = BaseName { run, seq: *seq };
            summaries.push(BaseSummary::of(name, &self.base(name).await?));
        }
        Ok(summaries)
    }

    /// Returns all moments, ascending, each with the base from which it can be restored. Damaged moments and bases
    /// are reported to [`super::OpenOptions::notice`] and left out.
    pub async fn moments(&self) -> Result<Vec<Restorable>> {
        self.moments_of(&self.catalogue().await?).await
    }

    pub(super) async fn moments_of(&self, catalogue: &Catalogue) -> Result<Vec<Restorable>> {
        let mut moments = Vec::new();
        for (run, objects) in &catalogue.runs {
            let mut bases = Vec::new();
            for seq in &objects.bases {
                bases.extend(self.unless_damaged(self.base_summaries(*run, &[*seq]).await)?);
            }
            let reads = objects.moments.iter().map(async |number| {
                let read = self.restorable_of(*run, *number).await;
                self.unless_damaged(read.map(|moment| vec![moment]))
            });
            let read: Vec<Vec<Restorable>> =
                stream::iter(reads).buffered(READS_AT_ONCE).try_collect().await?;
            moments.extend(read.into_iter().flatten().map(|moment| {
                let base = objects.base_of(&bases, moment.last_log);
                let logs = base.map(|base| objects.logs.range(base.log_from..=moment.last_log));
                let log_bytes = logs.into_iter().flatten().map(|(_, bytes)| *bytes).sum();
                Restorable { base, log_bytes, ..moment }
            }));
        }
        moments.sort_by_key(|moment| (moment.number, moment.run));
        Ok(moments)
    }

    /// Reports a damaged object and leaves it out: others may serve in its place.
    fn unless_damaged<T>(&self, read: Result<Vec<T>>) -> Result<Vec<T>> {
        match read {
            Err(error @ Error::DamagedBackup { .. }) => {
                self.store.options.report(&error.to_string());
                Ok(Vec::new())
            }
            read => read,
        }
    }

    async fn restorable_of(&self, run: RunId, number: MomentId) -> Result<Restorable> {
        let moment = self.moment(run, number).await?;
        Ok(Restorable {
            number,
            run,
            last_log: moment.last_log,
            clocks_unix_ms: moment.clocks_unix_ms,
            program: moment.program,
            level: moment.level,
            base: None,
            log_bytes: 0,
        })
    }

    /// Returns the moments that can be restored, ascending.
    pub async fn restorable(&self) -> Result<Vec<Restorable>> {
        let mut moments = self.moments().await?;
        moments.retain(|moment| moment.base.is_some());
        Ok(moments)
    }
}

impl BaseSummary {
    pub(super) fn of(name: BaseName, base: &crate::format::Base) -> Self {
        let pairs = base.chunks().map(|chunk| chunk.pairs).sum();
        let bytes = base.chunks().map(|chunk| chunk.bytes).sum();
        Self { name, log_from: base.log_from, log_complete: base.log_complete, pairs, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(seq: u64, log_from: u64, log_complete: u64) -> BaseSummary {
        let name = BaseName { run: RunId(1), seq: BaseSeq(seq) };
        let (log_from, log_complete) = (LogSeq(log_from), LogSeq(log_complete));
        BaseSummary { name, log_from, log_complete, pairs: 0, bytes: 0 }
    }

    #[test]
    fn a_moment_is_restorable_from_complete_bases_with_all_log_objects_only() {
        let logs = [2, 3, 4, 6, 7, 8, 9].map(|seq| (LogSeq(seq), 1));
        let run = RunObjects { logs: logs.into(), ..RunObjects::default() };
        let bases = [base(0, 2, 3), base(1, 6, 8), base(2, 9, 8)];
        let served = |last_log| run.base_of(&bases, LogSeq(last_log)).map(|base| base.name.seq.0);
        let expected = [
            (1, None),
            (2, None),
            (3, Some(0)),
            (4, Some(0)),
            (5, None),
            (6, None),
            (7, None),
            (8, Some(1)),
            (9, Some(2)),
            (10, None),
        ];
        for (last_log, base) in expected {
            assert_eq!(served(last_log), base, "log object {last_log}");
        }
    }
}
