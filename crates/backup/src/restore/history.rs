//! The writes of one key, and its state after one of them.

use crate::format::{Family, LogSeq, RunId, Write};
use crate::{Repository, Restorable};
use bytes::Bytes;
use stele_types::{Error, LogIndex, MomentId, RegionId, Result};

/// A write of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryWrite {
    /// Run in which it was read.
    pub run: RunId,
    /// Region of its entry.
    pub region: RegionId,
    /// Index of its entry.
    pub index: LogIndex,
    /// Value after it, and the Unix seconds at which that expires, 0 for never; `None` if it has none.
    pub put: Option<(Bytes, u64)>,
    /// Whether a range was deleted in which the key lies.
    pub of_range: bool,
    /// First moment that contains it; `None` if there is none yet.
    pub moment: Option<MomentId>,
}

/// A key of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHistory {
    /// Family of the key.
    pub family: Family,
    /// The key.
    pub key: Bytes,
}

impl KeyHistory {
    /// Returns the value after a write; `None` in the outer option if it does not concern the key.
    fn state_after(&self, write: Write) -> Option<(Option<(Bytes, u64)>, bool)> {
        match write {
            Write::Put(pair) if pair.key == self.key => {
                Some((Some((pair.value, pair.expires_at_s)), false))
            }
            Write::Delete(key) if key == self.key => Some((None, false)),
            Write::DeleteRange(range) if range.contains(&self.key) => Some((None, true)),
            _ => None,
        }
    }
}

/// Yields the writes of a key in their order, run after run. Reads every log object. Those before the first run,
/// and between two runs, are not in the repository.
pub async fn history(
    repository: &Repository,
    of: &KeyHistory,
    mut each: impl FnMut(HistoryWrite) -> Result<()>,
) -> Result<()> {
    let moments = repository.moments().await?;
    for run in repository.runs().await? {
        let Some(first) = repository.first_log(run).await? else { continue };
        let Some(last) = repository.last_log(run).await? else { continue };
        for seq in (first.0..=last.0).map(LogSeq) {
            let object = repository.log(run, seq).await?;
            let moment = first_moment_with(&moments, run, seq);
            for record in object.records.into_iter().filter(|record| record.family == of.family) {
                let (region, index) = (record.region, record.index);
                if let Some((put, of_range)) = of.state_after(record.write) {
                    each(HistoryWrite { run, region, index, put, of_range, moment })?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the last write of a key in a region up to an index. Fails with `Refused` if the repository has none.
pub async fn state_at(
    repository: &Repository,
    of: &KeyHistory,
    region: RegionId,
    index: LogIndex,
) -> Result<HistoryWrite> {
    let mut found: Option<HistoryWrite> = None;
    history(repository, of, |write| {
        // Invariant: of the writes of one entry the last one counts, and none after the index does.
        // Tests: `a_key_has_the_state_of_each_write`.
        // bug backup.history_after_the_index: `write.index <= index` is `true`
        if write.region == region && write.index <= index {
            found = Some(write);
        }
        Ok(())
    })
    .await?;
    found.ok_or_else(|| {
        Error::Refused(format!(
            "the repository has no write of the key in region {region} up to index {index}; list its writes with \
             --history"
        ))
    })
}

fn first_moment_with(moments: &[Restorable], run: RunId, seq: LogSeq) -> Option<MomentId> {
    let with = moments.iter().filter(|moment| moment.run == run && moment.last_log >= seq);
    with.map(|moment| moment.number).min()
}
