//! A store whose log holds entries that can't be read, before it opens: other stores' copies are put
//! in their places. It acknowledged these entries; without them it must neither vote nor answer.

use super::Replay;
use super::open::recover_from;
use super::rebuild;
use crate::identity;
use crate::options::Options;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use stele_index::{Found, Index};
use stele_log::{DamagedPayload, Survey};
use stele_storage::LostEntry;
use stele_types::{Command, Error, LogIndex, Op, RegionId, Result, StoreIdent, ValueRef, keyspace};
use stele_vfs::{DirLock, Vfs};

/// The store's own log, which holds its identity.
const JOURNAL: RegionId = RegionId(0);

/// Holes known at a time: some 4 MiB.
const HOLES_MAX: usize = 1 << 16;

/// A store that waits for copies of lost entries.
#[derive(Debug)]
pub struct RecoveringStore {
    survey: Survey,
    ident: Option<StoreIdent>,
    /// The last one that was given to be asked for.
    last: Option<DamagedPayload>,
    /// Held until this is dropped: then the store can be opened.
    _lock: Box<dyn DirLock>,
}

impl RecoveringStore {
    /// Looks at the store in `dir`, which did not open, or may not: it costs as much as opening it.
    /// `None` when copies of log entries are not what it lacks, or not all: then opening says what is
    /// wrong, if anything is. Fails with what is no damage, as opening would: `Locked`, `Io`.
    pub fn begin(vfs: Arc<dyn Vfs>, dir: &Path, options: &Options) -> Result<Option<Self>> {
        options.validate()?;
        for part in ["STORE", "index", "log"] {
            if !vfs.exists(&dir.join(part))? {
                return Ok(None);
            }
        }
        let lock = vfs.lock(&dir.join("LOCK"))?;
        match Self::look(&vfs, dir, options, lock) {
            Ok(mending) => Ok((!mending.survey.is_whole()).then_some(mending)),
            Err(Error::WrongStore { .. } | Error::NewerFormat { .. }) => Ok(None),
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn look(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        options: &Options,
        lock: Box<dyn DirLock>,
    ) -> Result<Self> {
        let id = identity::open(vfs, dir, options.store)?;
        let (index, known) = rebuild::open_whole(vfs, dir, id, options)?;
        let from = recover_from(&known, Replay::Committed);
        let survey =
            Survey::take(vfs.clone(), &dir.join("log"), &options.log(id), &from, HOLES_MAX)?;
        let ident = match ident(&index, &survey) {
            Err(error) if error.is_damage() => None,
            other => other?,
        };
        Ok(Self { survey, ident, last: None, _lock: lock })
    }

    /// What the store says it is; `None` before it was told, or when that is what can't be read.
    pub fn ident(&self) -> Option<StoreIdent> {
        self.ident
    }
}

/// Written once: in a run, or else in an entry that no checkpoint holds.
fn ident(index: &Index, survey: &Survey) -> Result<Option<StoreIdent>> {
    let key = keyspace::ident_key();
    if let Some(Found::Value { value, .. }) = index.get(&key)? {
        let value = match value {
            ValueRef::Inline(value) => value,
            ValueRef::At(at) => survey.value(&at)?,
        };
        return StoreIdent::decode(&value).map(Some);
    }
    let Some(log) = survey.region(JOURNAL) else { return Ok(None) };
    for index in log.first.0..=log.last.min(log.hard_state.commit).0 {
        let index = LogIndex(index);
        let Some(term) = survey.term(JOURNAL, index) else { continue };
        let Some(payload) = survey.find(JOURNAL, index, term)? else { continue };
        for op in Command::ops_of(&payload).into_iter().flatten() {
            if let Op::Put { key: found, value, .. } = op
                && *found == *key
            {
                return StoreIdent::decode(value).map(Some);
            }
        }
    }
    Ok(None)
}

impl stele_storage::RecoverableLog for RecoveringStore {
    fn lost_entries(&mut self, count_max: usize) -> Vec<LostEntry> {
        let mut lost = self.lost_after(count_max);
        if lost.is_empty() {
            // From the beginning again.
            self.last = None;
            lost = self.lost_after(count_max);
        }
        lost
    }

    fn find(&self, lost: &LostEntry) -> Option<Bytes> {
        // What can't be read is not here.
        let payload = self.survey.find(lost.region, lost.index, lost.term).ok().flatten()?;
        lost.is(&payload).then_some(payload)
    }

    fn restore_entry(&mut self, lost: &LostEntry, payload: &[u8]) -> Result<bool> {
        let places = self.survey.holes_of(lost.region, lost.index, lost.term);
        let places: Vec<DamagedPayload> =
            places.filter(|hole| entry_of(hole) == *lost).copied().collect();
        let mut is_mended = false;
        for hole in places {
            is_mended |= self.survey.fill(&hole, payload)?;
        }
        Ok(is_mended)
    }

    fn is_recovered(&self) -> bool {
        self.survey.is_whole()
    }
}

impl RecoveringStore {
    fn lost_after(&mut self, count_max: usize) -> Vec<LostEntry> {
        let mut lost: Vec<LostEntry> = Vec::new();
        let mut last = self.last;
        for hole in self.survey.holes_after(self.last.as_ref()) {
            let entry = entry_of(hole);
            if lost.last() != Some(&entry) {
                if lost.len() == count_max {
                    break;
                }
                lost.push(entry);
            }
            last = Some(*hole);
        }
        self.last = last;
        lost
    }
}

fn entry_of(hole: &DamagedPayload) -> LostEntry {
    let DamagedPayload { region, index, term, bytes, crc, .. } = *hole;
    LostEntry { region, index, term, bytes, crc }
}
