//! An unopened store with unreadable log entries, which copies from other stores restore. The store
//! acknowledged these entries; without them it must neither vote nor serve reads.

use super::Replay;
use super::open::recover_from;
use super::rebuild;
use crate::identity;
use crate::options::Options;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use stele_index::{Found, Index};
use stele_log::{DamageSurvey, DamagedPayload};
use stele_storage::LostEntry;
use stele_types::{Command, Error, LogIndex, Op, RegionId, Result, StoreIdent, ValueRef, keyspace};
use stele_vfs::{DirLock, Vfs};

const JOURNAL: RegionId = RegionId(0);

/// Limit for the damaged payloads known at a time: about 4 MiB.
const DAMAGED_MAX: usize = 1 << 16;

/// Store that waits for copies of lost entries.
#[derive(Debug)]
pub struct RecoveringStore {
    survey: DamageSurvey,
    ident: Option<StoreIdent>,
    /// Last payload returned by [`stele_storage::RecoverableLog::lost_entries`].
    last: Option<DamagedPayload>,
    /// Lock on the directory; the store can be opened after it is dropped.
    _lock: Box<dyn DirLock>,
}

impl RecoveringStore {
    /// Surveys the store in `dir`, which did not open or may not; costs as much as opening it.
    /// Returns `None` if copies of log entries are not needed, or not sufficient; then opening
    /// reports the problem, if there is one. Fails with errors other than damage, as opening would:
    /// `Locked`, `Io`.
    pub fn begin(vfs: Arc<dyn Vfs>, dir: &Path, options: &Options) -> Result<Option<Self>> {
        options.validate()?;
        for part in ["STORE", "index", "log"] {
            if !vfs.exists(&dir.join(part))? {
                return Ok(None);
            }
        }
        let lock = vfs.lock(&dir.join("LOCK"))?;
        match Self::survey_dir(&vfs, dir, options, lock) {
            Ok(recovering) => Ok((!recovering.survey.is_recovered()).then_some(recovering)),
            Err(
                Error::WrongStore { .. } | Error::NewerFormat { .. } | Error::NewerLevel { .. },
            ) => Ok(None),
            Err(error) if error.is_damage() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn survey_dir(
        vfs: &Arc<dyn Vfs>,
        dir: &Path,
        options: &Options,
        lock: Box<dyn DirLock>,
    ) -> Result<Self> {
        let (id, _) = identity::open(vfs, dir, options.store, Replay::Committed)?;
        let (index, known) = rebuild::open_undamaged(vfs, dir, id, options)?;
        let from = recover_from(&known, Replay::Committed);
        let survey = DamageSurvey::take(
            vfs.clone(),
            &dir.join("log"),
            &options.log(id),
            &from,
            DAMAGED_MAX,
        )?;
        let ident = match ident(&index, &survey) {
            Err(error) if error.is_damage() => None,
            other => other?,
        };
        Ok(Self { survey, ident, last: None, _lock: lock })
    }

    /// Returns the store's identity; `None` before it is written, or if it cannot be read.
    pub fn ident(&self) -> Option<StoreIdent> {
        self.ident
    }
}

fn ident(index: &Index, survey: &DamageSurvey) -> Result<Option<StoreIdent>> {
    let Some(own) = own_value(index, survey, &keyspace::ident_key())? else { return Ok(None) };
    let tick = own_value(index, survey, &keyspace::tick_key())?;
    StoreIdent::decode(&own, tick.as_deref()).map(Some)
}

/// Reads a value of the identity, which is written once: in a run, or in an entry that no checkpoint
/// holds.
fn own_value(index: &Index, survey: &DamageSurvey, key: &Bytes) -> Result<Option<Bytes>> {
    if let Some(Found::Value { value, .. }) = index.get(key)? {
        return match value {
            ValueRef::Inline(value) => Ok(Some(value)),
            ValueRef::At(at) => survey.value(&at).map(Some),
        };
    }
    let Some(log) = survey.region(JOURNAL) else { return Ok(None) };
    for index in log.first.0..=log.last.min(log.hard_state.commit).0 {
        let index = LogIndex(index);
        let Some(term) = survey.term(JOURNAL, index) else { continue };
        let Some(payload) = survey.find(JOURNAL, index, term)? else { continue };
        for op in Command::ops_of(&payload).into_iter().flatten() {
            if let Op::Put { key: found, value, .. } = op
                && *found == **key
            {
                return Ok(Some(Bytes::copy_from_slice(value)));
            }
        }
    }
    Ok(None)
}

impl stele_storage::RecoverableLog for RecoveringStore {
    fn lost_entries(&mut self, count_max: usize) -> Vec<LostEntry> {
        let mut lost = self.lost_after(count_max);
        if lost.is_empty() {
            // Starts again from the first.
            self.last = None;
            lost = self.lost_after(count_max);
        }
        lost
    }

    fn find(&self, lost: &LostEntry) -> Option<Bytes> {
        // An unreadable payload counts as absent.
        let payload = self.survey.find(lost.region, lost.index, lost.term).ok().flatten()?;
        lost.is_copy(&payload).then_some(payload)
    }

    fn restore_entry(&mut self, lost: &LostEntry, payload: &[u8]) -> Result<bool> {
        let places = self.survey.damaged_of(lost.region, lost.index, lost.term);
        let places: Vec<DamagedPayload> =
            places.filter(|damaged| entry_of(damaged) == *lost).copied().collect();
        let mut is_restored = false;
        for damaged in places {
            is_restored |= self.survey.restore_payload(&damaged, payload)?;
        }
        Ok(is_restored)
    }

    fn is_recovered(&self) -> bool {
        self.survey.is_recovered()
    }
}

impl RecoveringStore {
    fn lost_after(&mut self, count_max: usize) -> Vec<LostEntry> {
        let mut lost: Vec<LostEntry> = Vec::new();
        let mut last = self.last;
        for damaged in self.survey.damaged_after(self.last.as_ref()) {
            let entry = entry_of(damaged);
            if lost.last() != Some(&entry) {
                if lost.len() == count_max {
                    break;
                }
                lost.push(entry);
            }
            last = Some(*damaged);
        }
        self.last = last;
        lost
    }
}

fn entry_of(damaged: &DamagedPayload) -> LostEntry {
    let DamagedPayload { region, index, term, bytes, crc, .. } = *damaged;
    LostEntry { region, index, term, bytes, crc }
}
