//! Restore: the state of a moment, written into another cluster or an embedded store; and the writes of one
//! key.

mod catalogue;
mod choice;
mod cluster;
mod history;
mod replay;
#[cfg(test)]
mod tests;

pub use catalogue::{access_grants, access_text, apply_access, apply_settings};
pub use choice::{ChosenMoment, MomentChoice, choose, clocks_ms, parse_time, time_text};
pub use cluster::{ClusterTarget, has_data, keys_by_bytes, keys_of_moment, presplit};
pub use history::{HistoryWrite, KeyHistory, history, state_at};

use crate::Repository;
use crate::format::{Base, Moment};
use bytes::Bytes;
use replay::Replay;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stele_client::KeyWrite;
use stele_types::{ColumnFamily, KeyRange, Result, is_expired};

/// Store or cluster into which a moment is restored.
pub trait Target: Send + Sync + 'static {
    /// Sets and deletes keys of a family, each at most once. The order among them is free. All are durable
    /// when the call returns.
    fn write(
        &self,
        family: ColumnFamily,
        writes: Vec<KeyWrite>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns which of these writes, with ascending keys, the target may lack: by default all.
    fn missing(
        &self,
        _family: ColumnFamily,
        writes: Vec<KeyWrite>,
    ) -> impl Future<Output = Vec<KeyWrite>> + Send {
        std::future::ready(writes)
    }

    /// Deletes the keys of a range of a family.
    fn delete_range(
        &self,
        family: ColumnFamily,
        range: KeyRange,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// What is restored of a moment, and how.
#[derive(Clone, Debug)]
pub struct RestoreRules {
    /// Keys to restore.
    pub range: KeyRange,
    /// Unix seconds: what expires until then is left out.
    pub now_s: u64,
    /// Seconds that are added to each expiry.
    pub shift_s: u64,
    /// Whether pairs of the base are compared with those of the target, and only what differs is written.
    pub compares: bool,
}

impl RestoreRules {
    /// Returns rules for keys of a range. With `shifts` what had so many seconds to live at the moment has them
    /// at `now_s` again.
    pub fn new(range: KeyRange, now_s: u64, moment: &Moment, shifts: bool) -> Self {
        let at_ms = moment.clocks_between_unix_ms().map_or(0, |(_, latest)| latest);
        let age_s = || now_s.saturating_sub(at_ms / 1000);
        Self { range, now_s, shift_s: if shifts { age_s() } else { 0 }, compares: false }
    }

    /// Returns whether pairs of a family are restored: those of Redis keys only with all keys. Ranges of
    /// names are not ranges of their pairs.
    pub fn takes(&self, family: ColumnFamily) -> bool {
        family != ColumnFamily::Redis || self.range == KeyRange::all()
    }

    /// Returns the value and the Unix seconds at which it expires, 0 for never; `None` if it has.
    pub fn kept(&self, value: Bytes, expires_at_s: u64) -> Option<(Bytes, u64)> {
        if expires_at_s == 0 {
            return Some((value, 0));
        }
        let at_s = expires_at_s.saturating_add(self.shift_s);
        (!is_expired(at_s, self.now_s)).then_some((value, at_s))
    }
}

/// Progress of a restore.
#[derive(Debug, Default)]
pub struct RestoreCounts {
    /// Pairs of the base that were written.
    pub pairs: AtomicU64,
    /// Pairs of the base that the target had.
    pub present: AtomicU64,
    /// Pairs of the base that had expired.
    pub expired: AtomicU64,
    /// Objects of the log that were read.
    pub log_objects: AtomicU64,
    /// Records of the log that concern the keys.
    pub records: AtomicU64,
    /// Bytes of keys and values that were written, once.
    pub bytes: AtomicU64,
}

/// Restores a moment: its base, then its log. Does not delete what the target has beside them. Repetition does
/// no harm.
pub async fn restore<T: Target>(
    repository: Arc<Repository>,
    target: Arc<T>,
    (base, moment): (&Base, &Moment),
    rules: RestoreRules,
    counts: Arc<RestoreCounts>,
) -> Result<()> {
    Replay { repository, target, rules, counts }.run(base, moment).await
}
