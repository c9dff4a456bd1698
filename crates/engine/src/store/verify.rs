//! Verification of a whole store: every checksum of every file, then the index against the log.

use super::{Store, View, count_disk_bytes};
use bytes::Bytes;
use std::path::PathBuf;
use stele_storage::{Order, StateMachine};
use stele_types::{Error, KeyRange, Result, ValueRef};

const SLICE_PAIRS: usize = 1024;

struct Reference {
    key: Bytes,
    value: ValueRef,
}

/// Event of a running verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyEvent {
    /// Bytes checked since the last event.
    Checked(u64),
    /// Damaged or missing data.
    Damage {
        /// The file.
        path: PathBuf,
        /// Description of the damage, with its place.
        detail: String,
    },
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Number of keys in the index.
    pub keys: u64,
    /// Bytes of their keys and values, as read.
    pub live_bytes: u64,
    /// Estimate of the live bytes, the same as in the statistics.
    pub live_bytes_estimate: u64,
    /// Device bytes that the directory takes.
    pub disk_bytes: u64,
    /// Bytes read and checked.
    pub checked_bytes: u64,
    /// Number of damaged places; 0 for none.
    pub damages: u64,
}

struct Reporter<'a> {
    sink: &'a mut dyn FnMut(VerifyEvent),
    report: VerifyReport,
}

impl Reporter<'_> {
    fn checked(&mut self, bytes: u64) {
        self.report.checked_bytes += bytes;
        (self.sink)(VerifyEvent::Checked(bytes));
    }

    fn damage(&mut self, path: PathBuf, detail: String) {
        self.report.damages += 1;
        (self.sink)(VerifyEvent::Damage { path, detail });
    }

    fn error(&mut self, path: PathBuf, error: &Error) {
        self.damage(path, error.to_string());
    }
}

impl Store {
    /// Checks everything. Reports damage and continues. Concurrent writes are allowed.
    pub fn verify(&self, sink: &mut dyn FnMut(VerifyEvent)) -> Result<VerifyReport> {
        let mut reporter = Reporter { sink, report: VerifyReport::default() };
        self.shared.log.verify(&mut |event| match event {
            stele_log::VerifyEvent::Checked { bytes, .. } => reporter.checked(bytes),
            stele_log::VerifyEvent::Damaged(damage) => {
                reporter
                    .damage(damage.path, format!("at byte {}: {}", damage.offset, damage.detail));
            }
        })?;
        let index_dir = self.shared.dir.join("index");
        let mut index_damages = Vec::new();
        let checked =
            self.shared.index.verify(&mut |error| index_damages.push(error.to_string()))?;
        reporter.checked(checked.bytes);
        for detail in index_damages {
            reporter.damage(index_dir.clone(), detail);
        }
        self.verify_references(&mut reporter)?;
        reporter.report.live_bytes_estimate = self.stats().live_bytes_estimate;
        reporter.report.disk_bytes = count_disk_bytes(&self.shared)?;
        Ok(reporter.report)
    }

    fn verify_references(&self, reporter: &mut Reporter<'_>) -> Result<()> {
        let view = View::new(&self.shared);
        let mut iter = view.references(KeyRange::all(), Order::Forward)?;
        loop {
            let mut slice = Vec::with_capacity(SLICE_PAIRS);
            while slice.len() < SLICE_PAIRS {
                match iter.next() {
                    Ok(Some((key, value, _))) => slice.push(Reference { key, value }),
                    Ok(None) => break,
                    Err(error) => {
                        reporter.error(self.shared.dir.join("index"), &error);
                        return Ok(());
                    }
                }
            }
            if slice.is_empty() {
                return Ok(());
            }
            self.verify_slice(&slice, reporter);
        }
    }

    fn verify_slice(&self, slice: &[Reference], reporter: &mut Reporter<'_>) {
        for reference in slice {
            reporter.report.keys += 1;
            let bytes = reference.key.len() as u64 + u64::from(reference.value.len());
            reporter.report.live_bytes += bytes;
            let ValueRef::At(at) = reference.value else { continue };
            let log = &self.shared.log;
            let checked = log.record_of(&at).and_then(|record| {
                if record.key.as_ref().is_none_or(|key| *key == reference.key) {
                    return Ok(());
                }
                Err(Error::corrupt_value(&at, "the record belongs to another key"))
            });
            let checked = checked.and_then(|()| log.get(&at));
            match checked {
                Ok(value) => reporter.checked(value.len() as u64),
                Err(error) => reporter.error(self.shared.dir.join("log"), &error),
            }
        }
    }
}
