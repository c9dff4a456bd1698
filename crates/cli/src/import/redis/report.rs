//! What an import did, and what it must tell a person.

use super::endpoint::Database;
use crate::terminal::Progress;
use crate::text::printable;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use stele_types::size::{counted, format_bytes};

/// Warnings of one cause that are printed; the rest is counted.
const NAMED_MAX: u64 = 10;

/// Cause for which a value is not in the target as it is in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The target or the source refused it.
    Refused,
    /// It is stored without some of its members, or without the expiry of fields.
    StoredInPart,
    /// A comparison found another value, or none.
    Differs,
    /// A comparison found a name that the source does not have.
    OnlyInTarget,
}

impl Cause {
    fn text(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::StoredInPart => "stored in part",
            Self::Differs => "differing",
            Self::OnlyInTarget => "in the target alone",
        }
    }
}

#[derive(Debug, Default)]
struct Counts {
    done: u64,
    bytes: u64,
    expired: u64,
    gone: u64,
    causes: BTreeMap<Cause, u64>,
    /// Names of types that are not stored.
    others: BTreeMap<String, u64>,
}

/// Counts, shared by the source and the connections to the target. Warnings are printed at once.
pub(super) struct ImportReport {
    progress: Progress,
    counts: Mutex<Counts>,
}

impl ImportReport {
    pub(super) fn new(progress: Progress) -> Self {
        Self { progress, counts: Mutex::default() }
    }

    /// Counts bytes of a value; of its last part also the value.
    pub(super) fn done(&self, bytes: u64, is_last: bool) {
        let mut counts = self.counts.lock();
        counts.bytes += bytes;
        counts.done += u64::from(is_last);
        drop(counts);
        self.progress.add(u64::from(is_last));
    }

    /// Counts a value that has expired.
    pub(super) fn expired(&self) {
        self.counts.lock().expired += 1;
        self.progress.add(1);
    }

    /// Counts a value that vanished between its name and its content.
    pub(super) fn gone(&self) {
        self.counts.lock().gone += 1;
        self.progress.add(1);
    }

    /// Counts a value that is not as it should be, and names the first of them.
    pub(super) fn problem(&self, cause: Cause, database: Database, name: &[u8], detail: &str) {
        let mut counts = self.counts.lock();
        let count = counts.causes.entry(cause).or_default();
        *count += 1;
        let count = *count;
        drop(counts);
        self.named(count, database, name, detail);
        if cause == Cause::Refused {
            self.progress.add(1);
        }
    }

    /// Counts a name of a type that is not stored, and names the first of each.
    pub(super) fn other(&self, kind: &str, database: Database, name: &[u8]) {
        let mut counts = self.counts.lock();
        let count = counts.others.entry(kind.to_owned()).or_default();
        *count += 1;
        let count = *count;
        drop(counts);
        self.named(count, database, name, &format!("{kind}: its type is not stored"));
        self.progress.add(1);
    }

    /// Counts what has no name, such as a library of functions.
    pub(super) fn other_record(&self, kind: &str) {
        *self.counts.lock().others.entry(kind.to_owned()).or_default() += 1;
        self.warn(&format!("a {kind} is not stored"));
    }

    /// Counts hashes of which the server states no names.
    pub(super) fn expiring_hashes(&self, hashes: u64) {
        if hashes > 0 {
            *self.counts.lock().causes.entry(Cause::StoredInPart).or_default() += hashes;
            let hashes = counted(hashes, "key");
            self.warn(&format!("{hashes} with an expiry of fields: stored without it"));
        }
    }

    pub(super) fn warn(&self, line: &str) {
        self.progress.warn(line);
    }

    fn named(&self, count: u64, database: Database, name: &[u8], detail: &str) {
        if count <= NAMED_MAX {
            let name = printable(name);
            self.warn(&format!("key `{name}` of database {database}: {detail}"));
        } else if count == NAMED_MAX + 1 {
            self.warn("further keys with such a problem are counted, not named");
        }
    }

    /// Whether everything is in the target as it is in the source.
    pub(super) fn is_whole(&self) -> bool {
        let counts = self.counts.lock();
        counts.causes.is_empty() && counts.others.is_empty()
    }

    /// Returns the last line of an import or a comparison.
    pub(super) fn summary(&self, verb: &str, seconds: f64) -> String {
        let counts = self.counts.lock();
        let keys = counted(counts.done, "key");
        let size = format_bytes(counts.bytes);
        let mut line = format!(
            "{verb} {keys} ({size}) in {seconds:.1} s; {} expired, {} vanished",
            counts.expired, counts.gone
        );
        for (cause, count) in &counts.causes {
            line.push_str(&format!(", {count} {}", cause.text()));
        }
        if !counts.others.is_empty() {
            let others = counts.others.iter().map(|(kind, count)| format!("{count} {kind}"));
            let others = others.collect::<Vec<_>>().join(", ");
            line.push_str(&format!("; not stored: {others}"));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_counts_each_cause_and_each_type_that_is_not_stored() {
        let report = ImportReport::new(Progress::keys(None, "importing"));
        report.done(10, false);
        report.done(5, true);
        report.expired();
        assert!(report.is_whole());
        assert_eq!(
            report.summary("imported", 1.0),
            "imported 1 key (15 B) in 1.0 s; 1 expired, 0 vanished"
        );
        for name in 0..2 * NAMED_MAX {
            report.other("zset", Database(1), name.to_string().as_bytes());
        }
        report.other("list", Database(1), b"l");
        report.problem(Cause::Refused, Database(0), b"k", "too long");
        assert!(!report.is_whole());
        let summary = report.summary("imported", 1.0);
        assert!(
            summary.ends_with("0 vanished, 1 refused; not stored: 1 list, 20 zset"),
            "{summary}"
        );
    }
}
