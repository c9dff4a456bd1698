//! A cluster as the target of a restore: writes that are repeated until they are done, and regions that are
//! split before there is data, so that all nodes write.

use super::{RestoredKeys, Target};
use crate::format::{Base, Moment};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::future::Future;
use std::iter::Peekable;
use std::time::{Duration, Instant};
use stele_client::{
    Client, Control, Copied, CopiedPair, KeyWrite, Options, RegionRow, ScanOptions,
};
use stele_types::{ColumnFamily, Error, KeyRange, Result, StoreId, key_after};

/// Time limit of one try of a write, at the client and at the nodes.
const TRY_TIMEOUT: Duration = Duration::from_secs(20);
/// Tries of a write; with the pauses between them, minutes without a majority of nodes.
const TRIES_MAX: u32 = 12;
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Keys of one split, at most: a limit of the cluster.
const SPLIT_KEYS_MAX: usize = 64;
/// Time in which at least one split must end.
const SPLIT_WITHIN: Duration = Duration::from_secs(60);
const SPLIT_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Most regions made before a restore: more are made by their size.
const REGIONS_MAX: u64 = 4096;

/// Target that is a cluster.
pub struct ClusterTarget {
    client: Client,
}

impl ClusterTarget {
    /// Makes a target of a client.
    pub fn new(client: &Client) -> Self {
        let options = Options { timeout: TRY_TIMEOUT, ..Options::default() };
        Self { client: client.with(options) }
    }
}

impl Target for ClusterTarget {
    async fn write(&self, family: ColumnFamily, writes: Vec<KeyWrite>) -> Result<()> {
        let client = self.client.family(family);
        repeated(|| client.write(writes.clone())).await
    }

    async fn missing(&self, family: ColumnFamily, writes: Vec<KeyWrite>) -> Vec<KeyWrite> {
        let (Some(first), Some(last)) = (writes.first(), writes.last()) else { return writes };
        let range = KeyRange::new(first.key.clone(), key_after(&last.key));
        let mut copy = self.client.family(family).copy(range);
        let mut compared = Compared { left: writes.into_iter().peekable(), missing: Vec::new() };
        // What cannot be read is written.
        while let Ok(Some(copied)) = copy.next().await {
            if let Copied::Pairs(pairs) = copied {
                pairs.into_iter().for_each(|pair| compared.take(pair));
            }
        }
        compared.missing.extend(compared.left);
        compared.missing
    }

    async fn delete_range(
        &self,
        family: ColumnFamily,
        range: KeyRange,
        keys: &RestoredKeys,
    ) -> Result<()> {
        let client = self.client.family(family);
        if family == ColumnFamily::Redis {
            return delete_pairs(&client, range, keys).await;
        }
        repeated(|| client.delete_range(range.clone())).await
    }
}

/// Deletes the pairs of Redis keys of a range one by one: a cluster takes no delete of such a range from clients.
async fn delete_pairs(client: &Client, range: KeyRange, keys: &RestoredKeys) -> Result<()> {
    let options = ScanOptions { keys_only: true, ..ScanOptions::default() };
    let mut pages = client.scan(range, options);
    while let Some(page) = pages.next_page().await? {
        let wanted = page.into_iter().filter(|pair| keys.delete(ColumnFamily::Redis, &pair.key));
        let deletes = wanted.map(|pair| KeyWrite { key: pair.key, put: None });
        let deletes: Vec<KeyWrite> = deletes.collect();
        if deletes.is_empty() {
            continue;
        }
        repeated(|| client.write(deletes.clone())).await?;
    }
    Ok(())
}

/// Writes, compared with the pairs that a cluster has.
struct Compared {
    /// Writes of keys after that of the last pair.
    left: Peekable<std::vec::IntoIter<KeyWrite>>,
    /// Writes that the cluster lacks.
    missing: Vec<KeyWrite>,
}

impl Compared {
    /// Takes the next pair of the cluster, in the order of keys.
    fn take(&mut self, pair: CopiedPair) {
        let there = KeyWrite { key: pair.key, put: Some((pair.value, pair.expires_at_s)) };
        while let Some(write) = self.left.next_if(|write| write.key <= there.key) {
            // Invariant: a write is left out only if the cluster has the same value with the same expiry.
            // Tests: `a_write_is_left_out_only_if_value_and_expiry_are_there`.
            // bug backup.continues_by_keys_alone: `write != there` is `write.key != there.key`
            if write != there {
                self.missing.push(write);
            }
        }
    }
}

/// Repeats a write, which has the same effect again.
async fn repeated<F: Future<Output = Result<()>>>(write: impl Fn() -> F) -> Result<()> {
    let mut tries = 1;
    loop {
        let error = match write().await {
            Ok(()) => return Ok(()),
            Err(error) if tries < TRIES_MAX && is_transient(&error) => error,
            Err(error) => return Err(error),
        };
        tries += 1;
        // Invariant: a write of unknown outcome takes effect before the next write of its key, or never. Nodes
        // propose no request after its deadline, which is over after this pause; what they proposed before is
        // in the log before the repetition, or is replaced there.
        // Tests: `a_write_of_unknown_outcome_is_repeated_after_its_deadline`.
        let pause = if error.is_undetermined() { TRY_TIMEOUT } else { RETRY_PAUSE };
        // bug backup.repeated_before_the_deadline: let pause = RETRY_PAUSE;
        tokio::time::sleep(pause).await;
    }
}

fn is_transient(error: &Error) -> bool {
    match error {
        Error::Busy(_) | Error::Unavailable(_) | Error::Undetermined(_) => true,
        Error::Partial(partial) => partial.unknown > 0 || is_transient(&partial.first),
        _ => false,
    }
}

/// Returns whether any family has a pair in a range.
pub async fn has_data(client: &Client, range: &KeyRange) -> Result<bool> {
    for family in ColumnFamily::ALL {
        let options = ScanOptions { keys_only: true, limit: Some(1), ..ScanOptions::default() };
        if client.family(family).scan(range.clone(), options).next_page().await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the keys at which the regions of a moment began.
pub fn keys_of_moment(moment: &Moment) -> Vec<Bytes> {
    let starts: BTreeSet<Bytes> = moment.vector.iter().map(|cut| cut.range.start.clone()).collect();
    starts.into_iter().filter(|start| !start.is_empty()).take(REGIONS_MAX as usize).collect()
}

/// Returns keys that divide the pairs of a base into `regions` parts of about as many bytes.
pub fn keys_by_bytes(base: &Base, regions: u64) -> Vec<Bytes> {
    let regions = regions.clamp(1, REGIONS_MAX);
    let mut chunks: Vec<(&Bytes, u64)> =
        base.chunks().map(|chunk| (&chunk.first_key, chunk.bytes)).collect();
    chunks.sort();
    let total: u64 = chunks.iter().map(|(_, bytes)| bytes).sum();
    let (mut keys, mut before) = (Vec::new(), 0);
    for (key, bytes) in chunks {
        let part = u128::from(before) * u128::from(regions) / u128::from(total.max(1));
        let is_next = part > keys.len() as u128;
        if is_next && !key.is_empty() && keys.last() != Some(key) {
            keys.push(key.clone());
        }
        before += bytes;
    }
    keys
}

/// Splits the regions of a cluster at keys, and distributes their leaders over the stores. Returns the number of
/// regions. Fails with `Unavailable` if no split ends for a minute.
pub async fn presplit(control: &Control, keys: Vec<Bytes>) -> Result<usize> {
    let mut last_change = Instant::now();
    let mut missing_before = usize::MAX;
    let mut refusal = None;
    let rows = loop {
        let rows = control.regions(&KeyRange::all(), false).await?;
        let splits = splits(&rows, &keys);
        let missing = splits.iter().map(|(_, keys)| keys.len()).sum();
        if missing == 0 {
            drop(splits);
            break rows;
        }
        if missing < missing_before {
            (missing_before, last_change) = (missing, Instant::now());
        } else if last_change.elapsed() > SPLIT_WITHIN {
            let reason = refusal.unwrap_or_else(|| "no split has ended for a minute".to_owned());
            return Err(Error::Unavailable(format!("{missing} splits are missing: {reason}")));
        }
        for (row, keys) in splits.into_iter().filter(|(row, _)| row.operator.is_none()) {
            let keys = keys.into_iter().take(SPLIT_KEYS_MAX).collect();
            if let Err(error) = control.split(row.region.id, keys).await {
                refusal = Some(error.to_string());
            }
        }
        tokio::time::sleep(SPLIT_POLL_INTERVAL).await;
    };
    spread_leaders(control, &rows).await;
    Ok(rows.len())
}

/// Returns the regions with the keys at which they must be split.
fn splits<'a>(rows: &'a [RegionRow], keys: &[Bytes]) -> Vec<(&'a RegionRow, Vec<Bytes>)> {
    let inside = |row: &RegionRow| -> Vec<Bytes> {
        let range = &row.region.range;
        keys.iter().filter(|key| **key != range.start && range.contains(key)).cloned().collect()
    };
    let all = rows.iter().map(|row| (row, inside(row)));
    all.filter(|(_, keys)| !keys.is_empty()).collect()
}

/// Requests that the leaders of regions be on all their stores in turn. A refusal does no harm: placement
/// moves leaders by their load.
async fn spread_leaders(control: &Control, rows: &[RegionRow]) {
    for (turn, row) in rows.iter().enumerate() {
        let mut stores: Vec<StoreId> = row.region.peers.iter().map(|peer| peer.store).collect();
        stores.sort();
        if let Some(store) = stores.get(turn % stores.len().max(1))
            && row.leader_store.is_some_and(|leader| leader != *store)
        {
            let _ = control.transfer_leader(row.region.id, *store).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ChunkName, ChunkRef, Cut, Family, Part};
    use std::cell::Cell;
    use stele_types::{LogIndex, RegionId, Term};

    fn base(chunks: &[(&'static str, u64)]) -> Base {
        let chunk = |(first_key, bytes): &(&'static str, u64)| ChunkRef {
            name: ChunkName([1; 32]),
            first_key: (*first_key).into(),
            pairs: 1,
            bytes: *bytes,
        };
        let part = Part {
            family: Family::Default,
            range: KeyRange::all(),
            region: RegionId(2),
            index: LogIndex(9),
            chunks: chunks.iter().map(chunk).collect(),
        };
        Base { parts: vec![part], ..Base::default() }
    }

    #[test]
    fn regions_have_about_as_many_bytes_each() {
        let even = base(&[("a", 4), ("b", 4), ("c", 4), ("d", 4), ("e", 4), ("f", 4)]);
        assert_eq!(keys_by_bytes(&even, 3), ["c", "e"]);
        assert_eq!(keys_by_bytes(&even, 6), ["b", "c", "d", "e", "f"]);
        assert_eq!(keys_by_bytes(&even, 100).len(), 5);
        assert!(keys_by_bytes(&even, 1).is_empty() && keys_by_bytes(&base(&[]), 4).is_empty());
        let skewed = base(&[("a", 80), ("b", 10), ("c", 10)]);
        assert_eq!(keys_by_bytes(&skewed, 2), ["b"]);
    }

    #[test]
    fn the_regions_of_a_moment_begin_where_they_did() {
        let cut = |start: &'static str, end: &'static str| Cut {
            range: KeyRange::new(start, end),
            region: RegionId(2),
            term: Term(6),
            index: LogIndex(9),
        };
        let vector = vec![cut("m", ""), cut("", "c"), cut("c", "m")];
        assert_eq!(keys_of_moment(&Moment { vector, ..Moment::default() }), ["c", "m"]);
    }

    #[test]
    fn a_write_is_left_out_only_if_value_and_expiry_are_there() {
        let write = |key: &'static str, value: &'static str, expires_at_s| KeyWrite {
            key: key.into(),
            put: Some((value.into(), expires_at_s)),
        };
        let pair = |key: &'static str, value: &'static str, expires_at_s| CopiedPair {
            key: key.into(),
            value: value.into(),
            expires_at_s,
        };
        let writes = vec![
            write("a", "same", 0),
            write("b", "absent", 0),
            write("c", "other value", 0),
            write("d", "other expiry", 0),
            write("e", "same", 9),
            write("f", "no expiry", 9),
            write("g", "behind all", 0),
        ];
        let mut compared = Compared { left: writes.into_iter().peekable(), missing: Vec::new() };
        let there = [
            pair("a", "same", 0),
            pair("aa", "of another", 0),
            pair("c", "changed", 0),
            pair("d", "other expiry", 9),
            pair("e", "same", 9),
            pair("f", "no expiry", 0),
        ];
        there.into_iter().for_each(|pair| compared.take(pair));
        let keys: Vec<&Bytes> = compared.missing.iter().map(|write| &write.key).collect();
        assert_eq!(keys, ["b", "c", "d", "f"]);
        assert_eq!(compared.left.map(|write| write.key).collect::<Vec<_>>(), ["g"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_of_unknown_outcome_is_repeated_after_its_deadline() {
        let (calls, began) = (Cell::new(0), tokio::time::Instant::now());
        let write = || async {
            calls.set(calls.get() + 1);
            match calls.get() {
                1 => Err(Error::Busy("full".to_owned())),
                2 => Err(Error::Undetermined("no answer".to_owned())),
                _ => Ok(()),
            }
        };
        repeated(write).await.unwrap();
        assert_eq!((calls.get(), began.elapsed()), (3, RETRY_PAUSE + TRY_TIMEOUT));
        calls.set(0);
        let refused = repeated(|| async {
            calls.set(calls.get() + 1);
            Err(Error::invalid("a key that is too long"))
        });
        assert!(refused.await.is_err() && calls.get() == 1);
    }
}
