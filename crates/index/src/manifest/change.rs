//! Changes recorded in manifest frames, and the state that results from all of them. Part of it is
//! the checkpoint: the effects that runs hold, which need no log.
//!
//! ```text
//! body   := change*
//! change := 1 run:varint age:varint          a run of the tier `age` is current
//!         | 2 run:varint                     a run is no longer current
//!         | 3 checkpoint
//!         | 4 file:varint                    first segment with needed raft entries
//!         | 5 file:varint                    lower bound of the next value file's id
//!         | 6 length:varint bytes            state of garbage collection
//!         | 7 run:varint                     lower bound of the next run's id
//!         | 8 progress                       finished outputs of a merge
//!         | 9                                no merge is pending
//!         | 10 run:varint length:varint bytes   copy of a current run's footer
//! progress := job:varint cause:u8 inputs count:varint run:varint* key_len:varint last_key
//! inputs   := 0 count:varint age:varint* | 1 age:varint count:varint run:varint*
//! ```
//!
//! ```text
//! checkpoint := replay_from:varint count:varint (region:varint index:varint term:varint)*
//! ```

use crate::merge::{MergeInputs, MergeProgress, MergeSpec};
use crate::run::AGE_MAX;
use bytes::Bytes;
use std::collections::BTreeMap;
use stele_types::{Cause, FileId, LogIndex, Lsn, RegionId, RunId, Term, varint};

/// One change of the manifest's state. Changes of one frame take effect together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A run of the tier with this age is current.
    AddRun(RunId, u64),
    /// A run is no longer current.
    RemoveRun(RunId),
    /// Checkpoint of the effects in runs.
    Checkpoint(Checkpoint),
    /// First segment with needed Raft entries.
    RaftFrom(FileId),
    /// Lower bound of the next value file's id.
    NextFile(FileId),
    /// State of garbage collection, opaque here.
    GcState(Bytes),
    /// Lower bound of the next run's id.
    NextRun(RunId),
    /// Finished outputs of a running merge.
    MergeProgress(MergeProgress),
    /// No merge is pending.
    MergeDone,
    /// Copy of a current run's footer, used if the run is damaged.
    Footer(RunId, Bytes),
}

impl Change {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::AddRun(run, age) => put_all(out, 1, &[run.0, *age]),
            Self::RemoveRun(run) => put_all(out, 2, &[run.0]),
            Self::Checkpoint(checkpoint) => {
                out.push(3);
                checkpoint.encode(out);
            }
            Self::RaftFrom(file) => put_all(out, 4, &[u64::from(file.0)]),
            Self::NextFile(file) => put_all(out, 5, &[u64::from(file.0)]),
            Self::GcState(state) => {
                out.push(6);
                varint::put_bytes(out, state);
            }
            Self::NextRun(run) => put_all(out, 7, &[run.0]),
            Self::MergeProgress(progress) => {
                out.push(8);
                encode_progress(progress, out);
            }
            Self::MergeDone => out.push(9),
            Self::Footer(run, copy) => {
                put_all(out, 10, &[run.0]);
                varint::put_bytes(out, copy);
            }
        }
    }

    /// Decodes one change and removes it from the front; `None` when the bytes are not a change.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        *bytes = rest;
        Some(match kind {
            1 => {
                let run = RunId(varint::take(bytes)?);
                Self::AddRun(run, varint::take(bytes).filter(|age| *age <= AGE_MAX)?)
            }
            2 => Self::RemoveRun(RunId(varint::take(bytes)?)),
            3 => Self::Checkpoint(Checkpoint::take(bytes)?),
            4 => Self::RaftFrom(take_file(bytes)?),
            5 => Self::NextFile(take_file(bytes)?),
            6 => Self::GcState(Bytes::copy_from_slice(varint::take_bytes(bytes)?)),
            7 => Self::NextRun(RunId(varint::take(bytes)?)),
            8 => Self::MergeProgress(take_progress(bytes)?),
            9 => Self::MergeDone,
            10 => {
                let run = RunId(varint::take(bytes)?);
                Self::Footer(run, Bytes::copy_from_slice(varint::take_bytes(bytes)?))
            }
            _ => return None,
        })
    }

    /// Decodes all changes of a frame's body; `None` if it contains anything else.
    pub(crate) fn decode_all(mut body: &[u8]) -> Option<Vec<Self>> {
        let mut changes = Vec::new();
        while !body.is_empty() {
            changes.push(Self::take(&mut body)?);
        }
        Some(changes)
    }
}

fn put_all(out: &mut Vec<u8>, kind: u8, values: &[u64]) {
    out.push(kind);
    for &value in values {
        varint::put(out, value);
    }
}

fn take_file(bytes: &mut &[u8]) -> Option<FileId> {
    Some(FileId(u32::try_from(varint::take(bytes)?).ok()?))
}

fn put_list(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u64>) {
    varint::put(out, values.len() as u64);
    for value in values {
        varint::put(out, value);
    }
}

fn take_list(bytes: &mut &[u8]) -> Option<Vec<u64>> {
    let count = varint::take(bytes)?;
    (0..count).map(|_| varint::take(bytes)).collect()
}

fn encode_progress(progress: &MergeProgress, out: &mut Vec<u8>) {
    varint::put(out, progress.job);
    out.push(progress.spec.cause as u8);
    match &progress.spec.inputs {
        MergeInputs::Tiers(ages) => {
            out.push(0);
            put_list(out, ages.iter().copied());
        }
        MergeInputs::Runs { age, runs } => {
            out.push(1);
            varint::put(out, *age);
            put_list(out, runs.iter().map(|run| run.0));
        }
    }
    put_list(out, progress.outputs.iter().map(|run| run.0));
    varint::put_bytes(out, &progress.last_key);
}

fn take_progress(bytes: &mut &[u8]) -> Option<MergeProgress> {
    let job = varint::take(bytes)?;
    let (&[cause, kind], rest) = bytes.split_first_chunk::<2>()?;
    *bytes = rest;
    let cause = *Cause::ALL.get(usize::from(cause))?;
    let inputs = match kind {
        0 => MergeInputs::Tiers(take_list(bytes)?),
        1 => {
            let age = varint::take(bytes)?;
            MergeInputs::Runs { age, runs: take_list(bytes)?.into_iter().map(RunId).collect() }
        }
        _ => return None,
    };
    let outputs = take_list(bytes)?.into_iter().map(RunId).collect();
    let last_key = Bytes::copy_from_slice(varint::take_bytes(bytes)?);
    Some(MergeProgress { spec: MergeSpec { inputs, cause }, job, outputs, last_key })
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestState {
    pub runs: BTreeMap<RunId, u64>,
    pub footers: BTreeMap<RunId, Bytes>,
    pub checkpoint: Checkpoint,
    pub raft_from: FileId,
    pub next_file: FileId,
    pub next_run: RunId,
    pub gc_state: Bytes,
    pub pending: Option<MergeProgress>,
}

impl ManifestState {
    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::AddRun(run, age) => {
                self.runs.insert(*run, *age);
                self.next_run = self.next_run.max(run.next());
            }
            Change::RemoveRun(run) => {
                self.runs.remove(run);
                self.footers.remove(run);
            }
            Change::Checkpoint(checkpoint) => self.checkpoint = checkpoint.clone(),
            Change::RaftFrom(file) => self.raft_from = *file,
            Change::NextFile(file) => self.next_file = self.next_file.max(*file),
            Change::GcState(state) => self.gc_state = state.clone(),
            Change::NextRun(run) => self.next_run = self.next_run.max(*run),
            Change::MergeProgress(progress) => {
                for run in &progress.outputs {
                    self.next_run = self.next_run.max(run.next());
                }
                self.pending = Some(progress.clone());
            }
            Change::MergeDone => self.pending = None,
            Change::Footer(run, copy) => {
                self.footers.insert(*run, copy.clone());
            }
        }
    }

    pub(crate) fn snapshot(&self) -> Vec<Change> {
        let mut changes = vec![
            Change::Checkpoint(self.checkpoint.clone()),
            Change::RaftFrom(self.raft_from),
            Change::NextFile(self.next_file),
            Change::GcState(self.gc_state.clone()),
            Change::NextRun(self.next_run),
        ];
        changes.extend(self.runs.iter().map(|(&run, &age)| Change::AddRun(run, age)));
        changes.extend(self.footers.iter().map(|(&run, copy)| Change::Footer(run, copy.clone())));
        changes.extend(self.pending.iter().map(|p| Change::MergeProgress(p.clone())));
        changes
    }

    /// Returns whether a run is current or an output of the pending merge.
    pub(crate) fn refers_to(&self, run: RunId) -> bool {
        self.runs.contains_key(&run)
            || self.pending.as_ref().is_some_and(|pending| pending.outputs.contains(&run))
    }
}

/// Effects that survive a crash without the log below `replay_from`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Log records before this position need no replay.
    pub replay_from: Lsn,
    /// Last entry of each region that is applied in runs. Entries above it are replayed.
    pub applied: BTreeMap<RegionId, (LogIndex, Term)>,
}

impl Checkpoint {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::put(out, self.replay_from.as_u64());
        varint::put(out, self.applied.len() as u64);
        for (region, (index, term)) in &self.applied {
            varint::put(out, region.0);
            varint::put(out, index.0);
            varint::put(out, term.0);
        }
    }

    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Self> {
        let replay_from = Lsn::from_u64(varint::take(bytes)?);
        let mut applied = BTreeMap::new();
        for _ in 0..varint::take(bytes)? {
            let region = RegionId(varint::take(bytes)?);
            let index = LogIndex(varint::take(bytes)?);
            applied.insert(region, (index, Term(varint::take(bytes)?)));
        }
        Some(Self { replay_from, applied })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::FileId;

    #[test]
    fn changes_survive_the_round_trip_and_refuse_cut_bytes() {
        let progress = |inputs| {
            Change::MergeProgress(MergeProgress {
                spec: MergeSpec { inputs, cause: Cause::Sort },
                job: 300,
                outputs: vec![RunId(301), RunId(302)],
                last_key: Bytes::from_static(b"k"),
            })
        };
        let changes = vec![
            Change::AddRun(RunId(7), 1024),
            Change::RemoveRun(RunId(u64::MAX)),
            Change::Checkpoint(Checkpoint::default()),
            Change::RaftFrom(FileId(5)),
            Change::NextFile(FileId(u32::MAX)),
            Change::GcState(Bytes::from_static(b"state")),
            Change::NextRun(RunId(9)),
            progress(MergeInputs::Tiers(vec![2048, 1024])),
            progress(MergeInputs::Runs { age: 3, runs: vec![RunId(1)] }),
            Change::MergeDone,
            Change::Footer(RunId(7), Bytes::from_static(b"footer")),
        ];
        let mut body = Vec::new();
        changes.iter().for_each(|change| change.encode(&mut body));
        assert_eq!(Change::decode_all(&body), Some(changes));
        for cut in 0..body.len() {
            let whole = Change::decode_all(&body[..cut]).is_some_and(|c| c.len() == 11);
            assert!(!whole, "cut at {cut}");
        }
        assert_eq!(Change::decode_all(&[77]), None);
    }

    #[test]
    fn an_age_that_leaves_no_room_for_later_ones_is_refused() {
        let refused = |age| {
            let mut body = Vec::new();
            Change::AddRun(RunId(7), age).encode(&mut body);
            Change::decode_all(&body).is_none()
        };
        assert!(!refused(AGE_MAX));
        assert!(refused(AGE_MAX + 1) && refused(u64::MAX));
    }

    #[test]
    fn checkpoints_survive_the_round_trip_and_refuse_cut_bytes() {
        let mut checkpoint =
            Checkpoint { replay_from: Lsn::new(FileId(3), 77), ..Checkpoint::default() };
        checkpoint.applied.insert(RegionId(1), (LogIndex(9), Term(2)));
        checkpoint.applied.insert(RegionId(u64::MAX), (LogIndex(300), Term(5)));
        let mut out = Vec::new();
        checkpoint.encode(&mut out);
        assert_eq!(Checkpoint::take(&mut out.as_slice()), Some(checkpoint));
        for cut in 0..out.len() {
            assert_eq!(Checkpoint::take(&mut &out[..cut]), None, "cut at {cut}");
        }
    }
}
