//! Restore of the state of one moment into a target.
//!
//! ```text
//! 1 base     chunks of all parts, several at once, in any order: their keys differ, or what lies in two
//!            parts has its later writes in the log. Headers of Redis keys before all else
//! 2 log      objects log_from ..= last_log of the moment, in order
//!              window: the last write of each key, until it is full, a range is deleted or the log ends
//!              flush:  all writes of the window at once; the next window begins once they are done
//! ```
//!
//! The state of a moment is the base and every record of these objects. A record is a state of its key and
//! not a difference, so that records which the chunks contain already do no harm, whenever a chunk was read:
//! the last record of a key is that of the moment.
//!
//! Invariants: no record is written before the base is (step 2 begins after step 1). Two writes of a key are
//! never on their way at once: a window has one, and windows do not overlap. A delete of a range comes
//! after all that is before it, and before all that is after it.
//!
//! The sweeper of a cluster deletes members of a Redis key that no header names. So a restore writes headers before
//! members. In the log they are in this order: an entry that begins a collection writes its header first.
//!
//! Repetition does no harm: an interrupted restore begins again with the same moment. It may compare the base with
//! what the target has, and write only what differs. The log is written again, so that of a key that both have the log
//! counts, whatever the interrupted restore has written.

use super::{RestoreCounts, RestoreRules, Target};
use crate::Repository;
use crate::format::{Base, ChunkRef, LogObject, LogSeq, Moment, Record, Write};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use stele_client::KeyWrite;
use stele_types::{ColumnFamily, Error, KeyRange, Result, redis_key};
use tokio::task::{JoinHandle, JoinSet};

/// Chunks in memory at once, of at most 4 MiB each.
const CHUNKS_AT_ONCE: usize = 12;
/// Log objects that are read before their turn, of at most 16 MiB each.
const LOGS_AHEAD: usize = 3;
/// Bytes of keys and values of a window, and an estimate of what its map takes.
const WINDOW_BYTES_MAX: usize = 32 << 20;
const WRITE_OVERHEAD_BYTES: usize = 100;

/// Repository, target and rules of one restore.
pub(super) struct Replay<T> {
    pub repository: Arc<Repository>,
    pub target: Arc<T>,
    pub rules: RestoreRules,
    pub counts: Arc<RestoreCounts>,
}

impl<T> Clone for Replay<T> {
    fn clone(&self) -> Self {
        Self {
            repository: Arc::clone(&self.repository),
            target: Arc::clone(&self.target),
            rules: self.rules.clone(),
            counts: Arc::clone(&self.counts),
        }
    }
}

/// A chunk of a base.
struct ChunkOf {
    family: ColumnFamily,
    chunk: ChunkRef,
}

/// Pairs of a base that are written together, in the order of the parts of a restore.
///
/// Invariant: no member of a Redis key is written before the header that names it.
/// Tests: `members_of_redis_keys_are_restored_after_all_headers`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    RedisHeaders,
    Others,
}

impl Stage {
    const ALL: [Self; 2] = [Self::RedisHeaders, Self::Others];

    fn has(self, family: ColumnFamily, key: &Bytes) -> bool {
        let is_first = is_first(family, key);
        // bug backup.members_before_headers: let is_first = false;
        is_first == (self == Self::RedisHeaders)
    }
}

/// Returns whether a pair of a Redis key is written before members.
fn is_first(family: ColumnFamily, key: &Bytes) -> bool {
    let is_member = || {
        let engine_key = family.engine_key(key);
        redis_key::divide(&engine_key).is_some_and(|divided| divided.stamp.is_some())
    };
    family == ColumnFamily::Redis && !is_member()
}

impl<T: Target> Replay<T> {
    /// Writes a base, then the log up to a moment.
    pub(super) async fn run(&self, base: &Base, moment: &Moment) -> Result<()> {
        let logs = logs(base, moment)?;
        // Invariant: all of the base is written before the first record: a chunk may be older than a record
        // of its key.
        // Tests: `each_moment_is_restored_as_it_was`.
        // bug backup.base_after_log: self.replay(logs, moment).await?; return self.write_base(base).await;
        self.write_base(base).await?;
        self.replay(logs, moment).await
    }

    async fn write_base(&self, base: &Base) -> Result<()> {
        for stage in Stage::ALL {
            let mut chunks = JoinSet::new();
            let written = self.write_chunks(base, stage, &mut chunks).await;
            // No chunk is written after a failure was returned.
            chunks.shutdown().await;
            written?;
        }
        Ok(())
    }

    async fn write_chunks(
        &self,
        base: &Base,
        stage: Stage,
        chunks: &mut JoinSet<Result<()>>,
    ) -> Result<()> {
        let has_some = |of: &ChunkOf| stage == Stage::Others || of.family == ColumnFamily::Redis;
        for chunk in chunks_by_turns(base, &self.rules).into_iter().filter(has_some) {
            while chunks.len() >= CHUNKS_AT_ONCE {
                ended(chunks.join_next().await)?;
            }
            chunks.spawn(self.clone().write_chunk(chunk, stage));
        }
        while !chunks.is_empty() {
            ended(chunks.join_next().await)?;
        }
        Ok(())
    }

    async fn write_chunk(self, of: ChunkOf, stage: Stage) -> Result<()> {
        let chunk = self.repository.chunk(&of.chunk.name).await?;
        let mut writes = Vec::with_capacity(chunk.pairs.len());
        let (mut bytes, mut expired) = (0, 0);
        let keys = &self.rules.keys;
        let is_taken = |key: &Bytes| keys.has(of.family, key) && stage.has(of.family, key);
        for pair in chunk.pairs.into_iter().filter(|pair| is_taken(&pair.key)) {
            bytes += (pair.key.len() + pair.value.len()) as u64;
            match self.rules.kept((of.family, &pair.key), pair.value, pair.expires_at_s)? {
                Some(put) => writes.push(KeyWrite { key: pair.key, put: Some(put) }),
                None => expired += 1,
            }
        }
        if self.rules.compares {
            let all = writes.len();
            writes = self.target.missing(of.family, writes).await;
            self.counts.present.fetch_add((all - writes.len()) as u64, Relaxed);
        }
        self.counts.pairs.fetch_add(writes.len() as u64, Relaxed);
        self.counts.expired.fetch_add(expired, Relaxed);
        if !writes.is_empty() {
            self.target.write(of.family, writes).await?;
        }
        self.counts.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    async fn replay(&self, logs: std::ops::RangeInclusive<u64>, moment: &Moment) -> Result<()> {
        let mut ahead: VecDeque<JoinHandle<Result<LogObject>>> = VecDeque::new();
        let mut window = Window::default();
        let mut rest = logs;
        loop {
            while ahead.len() < LOGS_AHEAD
                && let Some(seq) = rest.next()
            {
                let (repository, run) = (Arc::clone(&self.repository), moment.run);
                ahead
                    .push_back(tokio::spawn(async move { repository.log(run, LogSeq(seq)).await }));
            }
            let Some(next) = ahead.pop_front() else { break };
            let object = ended(Some(next.await))?;
            check_end(&object, moment)?;
            self.counts.log_objects.fetch_add(1, Relaxed);
            for record in object.records {
                self.add(&mut window, record).await?;
            }
        }
        self.flush(&mut window).await
    }

    async fn add(&self, window: &mut Window, record: Record) -> Result<()> {
        let family = record.family;
        if !self.rules.keys.take(family) {
            return Ok(());
        }
        let (key, put) = match record.write {
            Write::Put(pair) => (pair.key, Some((pair.value, pair.expires_at_s))),
            Write::Delete(key) => (key, None),
            Write::DeleteRange(range) => {
                let Some(range) = self.rules.keys.within(&range) else { return Ok(()) };
                self.counts.records.fetch_add(1, Relaxed);
                // Invariant: writes before the delete of a range are done before it, and none after it is
                // begun.
                // Tests: `each_moment_is_restored_as_it_was`.
                // bug backup.range_delete_before_its_window: skip
                self.flush(window).await?;
                return self.target.delete_range(family, range, &self.rules.keys).await;
            }
        };
        if !self.rules.keys.has(family, &key) {
            return Ok(());
        }
        self.counts.records.fetch_add(1, Relaxed);
        // Invariant: a pair that has expired deletes its key: an older one that expires later, or never, must not
        // come back.
        // Tests: `each_moment_is_restored_as_it_was`.
        let kept = |(value, at_s)| self.rules.kept((family, &key), value, at_s);
        // bug backup.expired_record_skipped: if let Some(put) = put.clone() && kept(put)?.is_none() { return Ok(()); }
        let put = put.map(kept).transpose()?.flatten();
        window.set(family, key, put);
        if window.bytes >= WINDOW_BYTES_MAX { self.flush(window).await } else { Ok(()) }
    }

    async fn flush(&self, window: &mut Window) -> Result<()> {
        for (family, writes) in std::mem::take(window).writes {
            let writes = writes.into_iter().map(|(key, put)| KeyWrite { key, put });
            let (first, others) = writes.partition(|write| is_first(family, &write.key));
            for writes in [first, others] {
                self.write_all(family, writes).await?;
            }
        }
        Ok(())
    }

    async fn write_all(&self, family: ColumnFamily, writes: Vec<KeyWrite>) -> Result<()> {
        let bytes = |write: &KeyWrite| {
            write.key.len() + write.put.as_ref().map_or(0, |(value, _)| value.len())
        };
        let bytes = writes.iter().map(bytes).sum::<usize>() as u64;
        if !writes.is_empty() {
            self.target.write(family, writes).await?;
        }
        self.counts.bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }
}

/// The last write of each key among some records.
#[derive(Default)]
struct Window {
    writes: HashMap<ColumnFamily, BTreeMap<Bytes, Option<(Bytes, u64)>>>,
    bytes: usize,
}

impl Window {
    fn set(&mut self, family: ColumnFamily, key: Bytes, put: Option<(Bytes, u64)>) {
        // A write that is replaced is counted too: the bound holds all the more.
        self.bytes += key.len() + put.as_ref().map_or(0, |(value, _)| value.len());
        self.bytes += WRITE_OVERHEAD_BYTES;
        // Invariant: of two records of a key the later one counts.
        // Tests: `each_moment_is_restored_as_it_was`.
        // bug backup.first_record_counts: if self.writes.get(&family).is_some_and(|writes| writes.contains_key(&key)) { return; }
        self.writes.entry(family).or_default().insert(key, put);
    }
}

/// Returns the numbers of the log objects between a base and a moment. Fails if the base does not belong to
/// the moment.
fn logs(base: &Base, moment: &Moment) -> Result<std::ops::RangeInclusive<u64>> {
    // Invariant: the moment is after the end of the base. Otherwise chunks may contain writes after the moment.
    // Tests: `a_base_that_ended_after_the_moment_is_refused`.
    // bug backup.base_after_the_moment: `moment.last_log < base.log_complete` is `false`
    if moment.run != base.run || moment.last_log < base.log_complete {
        return Err(Error::Refused(format!(
            "base {} of run {} is not complete before moment {}; name a later moment with --moment",
            base.seq, base.run, moment.number
        )));
    }
    // Invariant: the log is read from the first object with a record that the chunks may lack.
    // Tests: `each_moment_is_restored_as_it_was`.
    // bug backup.log_from_the_end_of_the_base: return Ok(base.log_complete.0..=moment.last_log.0);
    // bug backup.log_past_the_moment: return Ok(base.log_from.0..=moment.last_log.0 + 1);
    Ok(base.log_from.0..=moment.last_log.0)
}

/// Fails unless the object ends at the moment if it is the last one.
fn check_end(object: &LogObject, moment: &Moment) -> Result<()> {
    if object.seq != moment.last_log || object.moment == Some(moment.number) {
        return Ok(());
    }
    let object_name = format!("runs/{}/log/{}", object.run, object.seq);
    let found = object.moment.map_or("none".to_owned(), |moment| moment.to_string());
    let detail = format!("it must end at moment {}, and ends at {found}", moment.number);
    Err(Error::damaged_backup(object_name, detail))
}

/// Returns the chunks that may have keys to restore: the first ones of all parts, then the second ones, so
/// that several regions are written at once.
fn chunks_by_turns(base: &Base, rules: &RestoreRules) -> Vec<ChunkOf> {
    let mut chunks = Vec::new();
    for part in base.parts.iter().filter(|part| rules.keys.take(part.family)) {
        let ends = part.chunks.iter().skip(1).map(|chunk| &chunk.first_key);
        let ends = ends.chain(std::iter::once(&part.range.end));
        for (turn, (chunk, end)) in part.chunks.iter().zip(ends).enumerate() {
            let range = KeyRange::new(chunk.first_key.clone(), end.clone());
            if rules.keys.within(&range).is_some() {
                chunks.push((turn, ChunkOf { family: part.family, chunk: chunk.clone() }));
            }
        }
    }
    chunks.sort_by_key(|(turn, _)| *turn);
    chunks.into_iter().map(|(_, chunk)| chunk).collect()
}

/// Returns the result of a task; a panic is an error.
fn ended<R>(result: Option<Result<Result<R>, tokio::task::JoinError>>) -> Result<R> {
    match result {
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(Error::Panicked(format!("a part of the restore failed: {error}"))),
        None => Err(Error::Panicked("a part of the restore is missing".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{BaseSeq, ChunkName, Part, RunId};
    use crate::restore::RestoredKeys;
    use stele_types::{LogIndex, MomentId, RegionId};

    fn base(log_from: u64, log_complete: u64) -> Base {
        Base {
            run: RunId(4),
            seq: BaseSeq(1),
            log_from: LogSeq(log_from),
            log_complete: LogSeq(log_complete),
            ..Base::default()
        }
    }

    fn moment(run: u64, last_log: u64) -> Moment {
        Moment {
            number: MomentId(9),
            run: RunId(run),
            last_log: LogSeq(last_log),
            ..Moment::default()
        }
    }

    #[test]
    fn a_base_that_ended_after_the_moment_is_refused() {
        assert_eq!(logs(&base(3, 6), &moment(4, 6)).unwrap(), 3..=6);
        assert_eq!(logs(&base(3, 6), &moment(4, 8)).unwrap(), 3..=8);
        for (run, last_log) in [(4, 5), (4, 2), (5, 8)] {
            let refused = logs(&base(3, 6), &moment(run, last_log)).unwrap_err().to_string();
            assert!(refused.contains("is not complete before moment 9"), "{refused}");
        }
    }

    #[test]
    fn chunks_of_parts_take_turns_and_those_without_keys_of_the_range_are_not_read() {
        let chunk = |first_key: &'static str| ChunkRef {
            name: ChunkName([0; 32]),
            first_key: first_key.into(),
            pairs: 1,
            bytes: 1,
        };
        let part = |family, start: &'static str, end: &'static str, keys: &[&'static str]| Part {
            family,
            range: KeyRange::new(start, end),
            region: RegionId(2),
            index: LogIndex(7),
            chunks: keys.iter().map(|key| chunk(key)).collect(),
        };
        let parts = vec![
            part(ColumnFamily::Default, "", "m", &["a", "c", "e"]),
            part(ColumnFamily::Default, "m", "", &["m", "p"]),
            part(ColumnFamily::Lock, "", "m", &["b"]),
            part(ColumnFamily::Redis, "", "m", &["g"]),
        ];
        let base = Base { parts, ..base(1, 1) };
        let keys = |keys: RestoredKeys| -> Vec<Bytes> {
            let rules = RestoreRules { keys, now_s: 0, shift_s: 0, compares: false };
            chunks_by_turns(&base, &rules).into_iter().map(|of| of.chunk.first_key).collect()
        };
        assert_eq!(keys(RestoredKeys::All), ["a", "m", "b", "g", "c", "p", "e"]);
        // A prefix is restored without Redis keys.
        let raw = |start, end| keys(RestoredKeys::Raw(KeyRange::new(start, end)));
        assert_eq!(raw("d", "n"), ["m", "b", "c", "e"]);
        assert_eq!(raw("q", ""), ["p"]);
        assert_eq!(keys(RestoredKeys::RedisNames(Bytes::from_static(b"z"))), ["g"]);
    }
}
