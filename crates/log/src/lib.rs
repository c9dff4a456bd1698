//! The unified log of one store: every value is written here once, by one write and one sync for
//! all regions together; everything else refers to it by 16-byte locators.

mod options;
mod replay;
mod stats;

pub use options::{LogOptions, RecoverFrom, Recovery, Tail};
pub use replay::{ReplayEntry, ReplayOp};
pub use stats::{FileKind, LogStats, ValueFileInfo};

pub use skeleton::*;
#[allow(missing_docs, unused_variables, clippy::todo)]
mod skeleton {
    use super::*;
    use bytes::Bytes;
    use std::path::Path;
    use std::sync::Arc;
    use stele_types::*;
    use stele_vfs::Vfs;
    /// Bytes counted for a record beside its key and value.
    pub const RECORD_OVERHEAD_BYTES: u64 = 32;
    #[derive(Debug)]
    pub struct Log;
    #[derive(Clone, Debug)]
    pub struct RegionLog {
        pub first: LogIndex,
        pub last: LogIndex,
        pub last_term: Term,
        pub truncated: (LogIndex, Term),
        pub hard_state: HardState,
        pub destroyed: bool,
    }
    #[derive(Debug)]
    pub struct SortedWriter;
    impl SortedWriter {
        pub fn append(&mut self, key: &[u8], version: Lsn, expires_at_s: u64, value: &[u8]) -> Result<Locator> { todo!() }
        pub fn bytes(&self) -> u64 { todo!() }
        pub fn file(&self) -> FileId { todo!() }
        pub fn finish(self) -> Result<FileId> { todo!() }
    }
    /// `key` is None for records of segments (their version is the value's own Lsn).
    #[derive(Clone, Debug)]
    pub struct RecordHead { pub version: Lsn, pub key: Option<Bytes>, pub expires_at_s: Option<u64> }
    #[derive(Debug)]
    pub struct VersionedOp<'a> { pub version: Lsn, pub op: ReplayOp<'a> }
    #[derive(Clone, Debug)]
    pub enum VerifyEvent { Checked { file: FileId, bytes: u64, records: u64 }, Damaged(Damage) }
    #[derive(Clone, Debug)]
    pub struct Damage { pub path: std::path::PathBuf, pub offset: u64, pub detail: String }
    #[derive(Clone, Debug, Default)]
    pub struct VerifySummary { pub files: usize, pub bytes: u64, pub records: u64, pub damaged: usize }
    #[derive(Debug)]
    pub struct LogIter;
    impl LogIter {
        pub fn seek(&mut self, to: Lsn) -> Result<()> { todo!() }
        pub fn next(&mut self) -> Result<()> { todo!() }
        pub fn valid(&self) -> bool { todo!() }
        pub fn at(&self) -> Lsn { todo!() }
        pub fn record(&self) -> Option<&Record> { todo!() }
    }
    impl Log {
        /// `dir` is the log's own directory (DIR/log), created when missing.
        pub fn open(vfs: Arc<dyn Vfs>, dir: &Path, options: LogOptions, from: RecoverFrom) -> Result<(Self, Recovery)> { todo!() }
        pub fn append(&self, batch: &LogBatch) -> Result<Appended> { todo!() }
        pub fn sync(&self) -> Result<()> { todo!() }
        pub fn head(&self) -> Lsn { todo!() }
        pub fn confirm(&self) -> Result<()> { todo!() }
        pub fn get(&self, at: &Locator) -> Result<Bytes> { todo!() }
        pub fn get_many(&self, at: &[Locator]) -> Result<Vec<Bytes>> { todo!() }
        pub fn entries(&self, region: RegionId, from: LogIndex, to: LogIndex, bytes_max: usize) -> Result<Vec<CommittedEntry>> { todo!() }
        pub fn region(&self, region: RegionId) -> Option<RegionLog> { todo!() }
        pub fn regions(&self) -> Vec<RegionId> { todo!() }
        pub fn term(&self, region: RegionId, index: LogIndex) -> Option<Term> { todo!() }
        pub fn replay(&self, applied: &dyn Fn(RegionId) -> LogIndex, f: &mut dyn FnMut(ReplayEntry<'_>) -> Result<()>) -> Result<()> { todo!() }
        pub fn iter(&self) -> LogIter { todo!() }
        pub fn files(&self) -> Vec<ValueFileInfo> { todo!() }
        pub fn remove(&self, file: FileId) -> Result<()> { todo!() }
        pub fn sorted_writer(&self, cause: Cause) -> Result<SortedWriter> { todo!() }
        pub fn record_of(&self, at: &Locator) -> Result<RecordHead> { todo!() }
        pub fn reappend_tails(&self, below: FileId, bytes_max: u64) -> Result<u64> { todo!() }
        pub fn verify(&self, f: &mut dyn FnMut(VerifyEvent)) -> Result<VerifySummary> { todo!() }
        pub fn scan_versions(&self, f: &mut dyn FnMut(VersionedOp<'_>) -> Result<()>) -> Result<()> { todo!() }
        pub fn close(&self) -> Result<()> { todo!() }
        pub fn stats(&self) -> LogStats { todo!() }
        pub fn poisoned(&self) -> bool { todo!() }
        pub fn next_file(&self) -> FileId { todo!() }
    }
}
