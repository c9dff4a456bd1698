//! The log of a run: writes of the cluster, on their way into log objects.

use super::Shared;
use crate::format::{LOG_BYTES_MAX, LogObject, LogSeq, Pair, Record, RunId, Write};
use bytes::Bytes;
use std::sync::Arc;
use stele_client::{Client, Cut, LoggedEvent, LoggedWrite, WatchEvent, WatchFrom, Writes};
use stele_types::{Error, KeyRange, LogIndex, MomentId, Result};
use tokio::time::Instant;

/// Bytes of records after which the bandwidth is asked.
const PACE_BYTES: u64 = 256 << 10;

pub(super) struct Log {
    shared: Arc<Shared>,
    writes: Writes,
    /// Cut at which the writes are held.
    cut: Option<Cut>,
    run: RunId,
    /// Place of the open log object.
    seq: LogSeq,
    records: Vec<Record>,
    bytes: usize,
    unpaced_bytes: u64,
    failing_since: Option<Instant>,
    failed: Option<Error>,
}

impl Log {
    pub(super) fn new(shared: Arc<Shared>, writes: Writes, run: RunId, seq: LogSeq) -> Self {
        let (cut, records, bytes, unpaced_bytes) = Default::default();
        let (failing_since, failed) = (None, None);
        Self { shared, writes, cut, run, seq, records, bytes, unpaced_bytes, failing_since, failed }
    }

    pub(super) fn run(&self) -> RunId {
        self.run
    }

    /// Returns the place of the open log object.
    pub(super) fn seq(&self) -> LogSeq {
        self.seq
    }

    /// Returns the next event; nothing is lost if the call is dropped. Continues while the cluster does not answer.
    pub(super) async fn next(&mut self, client: &Client) -> Result<LoggedEvent> {
        loop {
            if let Some(error) = &self.failed {
                self.shared.wait(&mut self.failing_since, error.duplicate()).await?;
                self.writes = client.writes(WatchFrom::Token(self.writes.token()?)).await?;
                self.failed = None;
                if let Some(cut) = &self.cut {
                    self.writes.hold_at(cut.clone())?;
                }
            }
            match self.writes.next().await {
                Some(Ok(event)) => {
                    self.failing_since = None;
                    return Ok(event);
                }
                Some(Err(error @ Error::Unavailable(_))) => self.failed = Some(error),
                Some(Err(error)) => return Err(error),
                None => self.failed = Some(Error::Unavailable("the watch has ended".into())),
            }
        }
    }

    /// Adds a write. Ends the log object if it is full.
    pub(super) async fn take(&mut self, event: LoggedEvent) -> Result<()> {
        let LoggedEvent::Write(write) = event else { return Ok(()) };
        let Some(record) = record(write) else { return Ok(()) };
        let bytes = record.bytes();
        self.records.push(record);
        self.bytes += bytes;
        self.unpaced_bytes += bytes as u64;
        if self.bytes >= LOG_BYTES_MAX {
            return self.end(None).await;
        }
        if self.unpaced_bytes >= PACE_BYTES {
            self.shared.pace(std::mem::take(&mut self.unpaced_bytes)).await;
        }
        Ok(())
    }

    /// Writes the open log object, which ends at this moment if there is one, and opens the next one.
    ///
    /// Invariant: the token is that after the last record: a process that continues there loses no write.
    /// Test: `a_backup_is_killed_and_continued_and_its_moments_are_restored`.
    pub(super) async fn end(&mut self, moment: Option<MomentId>) -> Result<()> {
        self.bytes = 0;
        let object = LogObject {
            run: self.run,
            seq: self.seq,
            records: std::mem::take(&mut self.records),
            token_after: Bytes::from(self.writes.token()?.to_string()),
            moment,
        };
        self.shared.repository.put_log(&object).await?;
        self.seq = self.seq.next();
        self.shared.pace(std::mem::take(&mut self.unpaced_bytes)).await;
        Ok(())
    }

    pub(super) fn hold_at(&mut self, cut: Cut) -> Result<()> {
        self.cut = Some(cut.clone());
        self.writes.hold_at(cut)
    }

    pub(super) fn let_go(&mut self) {
        self.cut = None;
        self.writes.let_go();
    }
}

fn record(write: LoggedWrite) -> Option<Record> {
    let LoggedWrite { region, index, family, event } = write;
    let write = match event {
        WatchEvent::Put { key, value, expires_at_s, .. } => {
            Write::Put(Pair { key, value, expires_at_s })
        }
        WatchEvent::Delete { key, .. } => Write::Delete(key),
        WatchEvent::DeletedRange { start, end } => Write::DeleteRange(KeyRange { start, end }),
        WatchEvent::Resolved => return None,
    };
    Some(Record { region, index: LogIndex(index), family, write })
}
