//! An RDB file as the source. It is read twice: once to its end to check it, then to import it.
//!
//! Invariant: nothing is written of a file that is damaged, ends early, or has what cannot be skipped.
//! Test: `nothing_is_written_of_a_damaged_file`.

use super::endpoint::Database;
use super::part::{Cutter, SourceValue, ValueKind, ValuePart};
use super::rdb::{self, RdbError, RdbKind, RdbName, RdbSink, RdbString};
use super::report::{Cause, ImportReport};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use stele_types::size::{VALUE_BYTES_MAX, counted, format_bytes};
use stele_types::{Error, Result};

const BUFFER_BYTES: usize = 1 << 20;

/// Open file that was read to its end.
pub(super) struct RdbFile {
    file: File,
    path: PathBuf,
    /// Number of names of each database.
    names: BTreeMap<Database, u64>,
}

/// Returns whether a file begins as an RDB file; false if it cannot be read.
pub(super) fn is_rdb_file(path: &Path) -> bool {
    let mut begin = Vec::new();
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    let read = is_file.then(|| File::open(path).and_then(|it| it.take(9).read_to_end(&mut begin)));
    read.is_some_and(|read| read.is_ok()) && rdb::is_rdb(&begin)
}

impl RdbFile {
    /// Opens a file and reads it to its end.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
        let mut survey = Survey::default();
        let read = rdb::read(BufReader::with_capacity(BUFFER_BYTES, &file), &mut survey);
        // bug cli.rdb_written_before_it_is_checked: let read = read.or(Ok::<(), RdbError>(()));
        read.map_err(|error| of_file(path, error))?;
        Ok(Self { file, path: path.to_path_buf(), names: survey.names })
    }

    /// Returns the databases that have names.
    pub(super) fn databases(&self) -> Vec<Database> {
        self.names.keys().copied().collect()
    }

    /// Returns the number of names in these databases.
    pub(super) fn names(&self, databases: &[Database]) -> u64 {
        databases.iter().filter_map(|database| self.names.get(database)).sum()
    }

    /// Passes the values of these databases to `send`. A value or a field that has expired at `now_ms`, in Unix
    /// milliseconds, is left out.
    pub(super) fn read(
        &self,
        databases: &[Database],
        now_ms: u64,
        report: &ImportReport,
        send: &mut dyn FnMut(ValuePart) -> Result<()>,
    ) -> Result<()> {
        (&self.file).rewind().map_err(|error| Error::io("read", &self.path, error))?;
        let mut sender = Sender { databases, now_ms, report, send, open: None };
        let read = rdb::read(BufReader::with_capacity(BUFFER_BYTES, &self.file), &mut sender);
        read.map_err(|error| of_file(&self.path, error))
    }
}

fn of_file(path: &Path, error: RdbError) -> Error {
    match error {
        RdbError::Io(error) => Error::io("read", path, error),
        RdbError::Stopped(error) => error,
        error => Error::Refused(format!("{}: {error}", path.display())),
    }
}

/// Counts the names of a file.
#[derive(Default)]
struct Survey {
    names: BTreeMap<Database, u64>,
}

impl RdbSink for Survey {
    fn begin(&mut self, name: &RdbName, _: RdbKind) -> Result<()> {
        *self.names.entry(Database(name.database)).or_default() += 1;
        Ok(())
    }

    fn other(&mut self, name: &RdbName, _: &str) -> Result<()> {
        *self.names.entry(Database(name.database)).or_default() += 1;
        Ok(())
    }
}

/// Cuts the values of a file into parts.
struct Sender<'a> {
    databases: &'a [Database],
    now_ms: u64,
    report: &'a ImportReport,
    send: &'a mut dyn FnMut(ValuePart) -> Result<()>,
    open: Option<OpenValue>,
}

struct OpenValue {
    cutter: Cutter,
    /// Bytes of a string that cannot be stored.
    too_long_bytes: Option<u64>,
    /// Fields with an expiry of their own.
    expiring_fields: u64,
}

impl RdbSink for Sender<'_> {
    fn begin(&mut self, name: &RdbName, kind: RdbKind) -> Result<()> {
        let database = Database(name.database);
        self.open = None;
        if !self.databases.contains(&database) {
            return Ok(());
        }
        if name.expires_at_ms.is_some_and(|at_ms| at_ms <= self.now_ms) {
            self.report.expired();
            return Ok(());
        }
        let kind = match kind {
            RdbKind::Text => ValueKind::Text,
            RdbKind::Hash => ValueKind::Hash,
            RdbKind::Set => ValueKind::Set,
        };
        let value = SourceValue {
            database,
            name: name.name.clone(),
            kind,
            expires_at_ms: name.expires_at_ms,
        };
        let cutter = Cutter::new(value);
        self.open = Some(OpenValue { cutter, too_long_bytes: None, expiring_fields: 0 });
        Ok(())
    }

    fn member(
        &mut self,
        member: RdbString,
        value: Option<RdbString>,
        expires_at_ms: Option<u64>,
    ) -> Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        if expires_at_ms.is_some_and(|at_ms| at_ms <= self.now_ms) {
            return Ok(());
        }
        let mut strings = Vec::with_capacity(2);
        for string in [Some(member), value].into_iter().flatten() {
            match string {
                RdbString::Held(bytes) => strings.push(bytes),
                RdbString::TooLong(bytes) => {
                    open.too_long_bytes = Some(bytes);
                    return Ok(());
                }
            }
        }
        open.expiring_fields += u64::from(expires_at_ms.is_some());
        open.cutter.push(strings).map_or(Ok(()), &mut self.send)
    }

    fn left_out(&mut self, bytes: u64) -> Result<()> {
        if let Some(open) = &mut self.open {
            open.too_long_bytes = Some(bytes);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let (database, name) = (open.cutter.value().database, open.cutter.value().name.clone());
        let problem = |cause, text: &str| self.report.problem(cause, database, &name, text);
        if let Some(bytes) = open.too_long_bytes {
            let (bytes, max) = (format_bytes(bytes), format_bytes(VALUE_BYTES_MAX as u64));
            let detail = format!("a string of {bytes} is left out; the limit is {max}");
            if open.cutter.is_empty() {
                problem(Cause::Refused, &detail);
                return Ok(());
            }
            problem(Cause::StoredInPart, &detail);
        }
        if open.expiring_fields > 0 {
            let fields = counted(open.expiring_fields, "field");
            let detail = format!("{fields} with an expiry of its own: stored without it");
            problem(Cause::StoredInPart, &detail);
        }
        (self.send)(open.cutter.finish(None))
    }

    fn other(&mut self, name: &RdbName, kind: &str) -> Result<()> {
        if self.databases.contains(&Database(name.database)) {
            self.report.other(kind, Database(name.database), &name.name);
        }
        Ok(())
    }

    fn other_record(&mut self, kind: &str) -> Result<()> {
        self.report.other_record(kind);
        Ok(())
    }
}
