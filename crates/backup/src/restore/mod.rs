//! Restore: the state of a moment, written into another cluster or an embedded store; and the writes of one
//! key.

mod catalogue;
mod choice;
mod cluster;
mod history;
mod keys;
mod replay;
#[cfg(test)]
mod tests;

pub use catalogue::{access_grants, access_text, apply_access, apply_settings};
pub use choice::{ChosenMoment, MomentChoice, choose, clocks_ms, parse_time, time_text};
pub use cluster::{ClusterTarget, has_data, keys_by_bytes, keys_of_moment, presplit};
pub use history::{HistoryWrite, KeyHistory, history, state_at};
pub use keys::RestoredKeys;

use crate::Repository;
use crate::format::{Base, Moment};
use bytes::Bytes;
use keys::is_header;
use replay::Replay;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use stele_client::KeyWrite;
use stele_redis::transaction::expiring_later;
use stele_types::{ColumnFamily, Error, KeyRange, Result, is_expired};

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

    /// Deletes the keys of a range of a family that a restore of `keys` deletes.
    fn delete_range(
        &self,
        family: ColumnFamily,
        range: KeyRange,
        keys: &RestoredKeys,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// What is restored of a moment, and how.
#[derive(Clone, Debug)]
pub struct RestoreRules {
    /// Keys to restore.
    pub keys: RestoredKeys,
    /// Unix seconds: what expires until then is left out.
    pub now_s: u64,
    /// Seconds that are added to each expiry.
    pub shift_s: u64,
    /// Whether pairs of the base are compared with those of the target, and only what differs is written.
    pub compares: bool,
}

impl RestoreRules {
    /// Returns rules for some keys. With `shifts` what had so many seconds to live at the moment has them
    /// at `now_s` again.
    pub fn new(keys: RestoredKeys, now_s: u64, moment: &Moment, shifts: bool) -> Self {
        let at_ms = moment.clocks_between_unix_ms().map_or(0, |(_, latest)| latest);
        let age_s = || now_s.saturating_sub(at_ms / 1000);
        Self { keys, now_s, shift_s: if shifts { age_s() } else { 0 }, compares: false }
    }

    /// Returns the value and the Unix seconds at which it expires, 0 for never; `None` if it has. Fails with
    /// `Refused` for the pair of a Redis key that has an expiry which this build cannot read.
    ///
    /// Invariant: the pair of a Redis key expires with its header.
    /// Tests: `redis_keys_have_the_time_to_live_that_they_had`.
    pub fn kept(
        &self,
        (family, key): (ColumnFamily, &Bytes),
        value: Bytes,
        expires_at_s: u64,
    ) -> Result<Option<(Bytes, u64)>> {
        // bug backup.redis_expiry_stays: never
        if self.shift_s != 0 && is_header(family, key) {
            let (value, at_s) = expiring_later(&value, self.shift_s).map_err(|damage| {
                Error::Refused(format!(
                    "the expiry of a Redis key cannot be shifted: {damage}; or restore without --shift-expiry"
                ))
            })?;
            return Ok((!is_expired(at_s, self.now_s)).then_some((value, at_s)));
        }
        if expires_at_s == 0 {
            return Ok(Some((value, 0)));
        }
        let at_s = expires_at_s.saturating_add(self.shift_s);
        Ok((!is_expired(at_s, self.now_s)).then_some((value, at_s)))
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
