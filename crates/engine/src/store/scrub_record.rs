//! Record of the scrub's progress, so that a pass goes on after a restart. Unknown lines are skipped:
//!
//! ```text
//! SCRUB := "stele scrub\n" line* "crc32c " hex "\n"
//! line  := "began_unix_s " n "\n"            start of the pass
//!        | "checked_unix_s " n "\n"          start of the last completed pass
//!        | "done " (0 | 1) "\n"              the pass is complete
//!        | "bytes " n "\n" | "checked_bytes " n "\n"
//!        | "newest_run " n "\n"              at the start of the pass; absent without runs
//!        | "run " n "\n" | "block " n "\n"   part of a run that is next; absent at the start
//!        | "values " (0 | 1) "\n"            the runs are read
//!        | "from " hex "\n"                  key that is next
//! ```

use super::Shared;
use crate::checked_text::{self, CheckedText, from_hex, to_hex};
use bytes::Bytes;
use std::fmt::Write as _;
use stele_types::{Result, RunId};

const NAME: &str = "SCRUB";
const MAGIC: &str = "stele scrub";
/// The longest key takes twice its length.
const FILE_BYTES_MAX: u64 = 256 << 10;

/// Progress of a pass, as recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    /// Start of the pass.
    pub began_unix_s: u64,
    /// Start of the last completed pass; that of the store if there was none.
    pub checked_unix_s: u64,
    pub is_done: bool,
    /// Bytes to check in the pass, and those that are checked.
    pub bytes: u64,
    pub checked_bytes: u64,
    /// Newest run at the start of the pass.
    pub newest_run: Option<RunId>,
    /// Run and block to continue with.
    pub run: Option<(RunId, usize)>,
    pub reads_values: bool,
    /// Key to continue with.
    pub from: Bytes,
}

impl Progress {
    /// Reads the record of a store. Fails if there is none, or a damaged one.
    pub(super) fn read(shared: &Shared) -> Result<Self> {
        let path = shared.dir.join(NAME);
        let text = CheckedText::read(&shared.vfs, &path, MAGIC, FILE_BYTES_MAX)?;
        text.check()?;
        let from = text.field("from").and_then(from_hex).ok_or_else(|| text.bad("no key"))?;
        let run = text.number("run").and_then(|run| Ok((RunId(run), text.number("block")?)));
        Ok(Self {
            began_unix_s: text.number("began_unix_s")?,
            checked_unix_s: text.number("checked_unix_s")?,
            is_done: text.number::<u8>("done")? != 0,
            bytes: text.number("bytes")?,
            checked_bytes: text.number("checked_bytes")?,
            newest_run: text.number("newest_run").ok().map(RunId),
            run: run.ok(),
            reads_values: text.number::<u8>("values")? != 0,
            from,
        })
    }

    /// Replaces the record of a store; durable on return.
    pub(super) fn write(&self, shared: &Shared) -> Result<()> {
        checked_text::write(&shared.vfs, &shared.dir, NAME, &self.body(), true)
    }

    fn body(&self) -> String {
        let mut out = format!(
            "{MAGIC}\nbegan_unix_s {}\nchecked_unix_s {}\ndone {}\nbytes {}\nchecked_bytes {}\n\
             values {}\n",
            self.began_unix_s,
            self.checked_unix_s,
            u8::from(self.is_done),
            self.bytes,
            self.checked_bytes,
            u8::from(self.reads_values),
        );
        // Writing to a string does not fail.
        if let Some(run) = self.newest_run {
            let _ = writeln!(out, "newest_run {}", run.0);
        }
        if let Some((run, block)) = self.run {
            let _ = write!(out, "run {}\nblock {block}\n", run.0);
        }
        let _ = writeln!(out, "from {}", to_hex(&self.from));
        out
    }
}
