//! Where keys are stored: a directory or a cluster. [`Source`] has the commands that read,
//! [`Place`] those that write.

use crate::reader::Reader;
use crate::store::{Order, Pair, Store, Tuning, unix_seconds};
use crate::{args, runtime};
use bytes::Bytes;
use std::path::Path;
use stele_client::{Client, ScanOptions, Ttl};
use stele_load::TlsFiles;
use stele_types::{Error, KeyRange, Result};
use tokio::runtime::Runtime;

pub(crate) enum Source {
    /// A directory opened by this process, which is not changed.
    Directory(Box<Reader>),
    Cluster(Remote),
}

pub(crate) enum Place {
    Directory(Box<Store>),
    Cluster(Remote),
}

/// Client of a cluster; calls block.
pub(crate) struct Remote {
    runtime: Runtime,
    client: Client,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    Exactly(u64),
    MoreThan(u64),
}

/// Keys counted one by one at most.
const COUNTED_MAX: usize = 10_000;

pub(crate) struct Wanted {
    pub range: KeyRange,
    pub reverse: bool,
    pub keys_only: bool,
    pub limit: Option<usize>,
    /// Also the times at which pairs expire: a cluster is asked for each pair.
    pub expiry: bool,
}

/// Pairs of a cluster that are asked for their times to live at once.
const EXPIRIES_AT_ONCE: usize = 256;

impl Source {
    pub(crate) fn open(place: &args::StoreOrCluster) -> Result<Self> {
        match &place.store {
            Some(dir) => Ok(Self::Directory(Box::new(Reader::open(dir, &Tuning::default())?))),
            None => Remote::connect(&place.cluster, &place.tls).map(Self::Cluster),
        }
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Self::Directory(reader) => reader.get(key),
            Self::Cluster(remote) => remote.wait(remote.client.get(bytes(key))),
        }
    }

    pub(crate) fn exist(&self, keys: &[Vec<u8>]) -> Result<Vec<bool>> {
        match self {
            Self::Directory(reader) => reader.exist(keys),
            Self::Cluster(remote) => {
                let keys = keys.iter().map(|key| bytes(key)).collect();
                remote.wait(remote.client.exist(keys))
            }
        }
    }

    pub(crate) fn each_pair(
        &self,
        wanted: Wanted,
        mut each: impl FnMut(&Pair) -> Result<()>,
    ) -> Result<()> {
        let Wanted { range, reverse, keys_only, limit, expiry } = wanted;
        match self {
            Self::Directory(reader) => {
                let order = if reverse { Order::Reverse } else { Order::Forward };
                let mut pairs = reader.pairs(range, order, keys_only)?;
                pairs.by_ref().take(limit.unwrap_or(usize::MAX)).try_for_each(|pair| each(&pair?))
            }
            Self::Cluster(remote) => {
                let options = ScanOptions { reverse, keys_only, limit };
                let mut scan = remote.client.scan(range, options);
                while let Some(page) = remote.runtime.block_on(scan.next_page())? {
                    let pairs: Vec<Pair> = page
                        .into_iter()
                        .map(|pair| Pair { key: pair.key, value: pair.value, expires_at_s: 0 })
                        .collect();
                    let pairs = match expiry {
                        true => remote.wait(remote.with_expiries(pairs))?,
                        false => pairs,
                    };
                    pairs.iter().try_for_each(&mut each)?;
                }
                Ok(())
            }
        }
    }
}

impl Place {
    pub(crate) fn open(place: &args::StoreOrCluster) -> Result<Self> {
        Self::open_with(place, |dir| Store::open(dir, &Tuning::default()))
    }

    /// Opens a store and creates it if it does not exist, or connects to a cluster.
    pub(crate) fn open_or_create(place: &args::StoreOrCluster) -> Result<Self> {
        Self::open_with(place, |dir| Store::open_or_create(dir, &Tuning::default()))
    }

    fn open_with(
        place: &args::StoreOrCluster,
        open: impl Fn(&Path) -> Result<Store>,
    ) -> Result<Self> {
        match &place.store {
            Some(dir) => Ok(Self::Directory(Box::new(open(dir)?))),
            None => Remote::connect(&place.cluster, &place.tls).map(Self::Cluster),
        }
    }

    pub(crate) fn put(&self, key: &[u8], value: Vec<u8>, ttl_s: Option<u64>) -> Result<()> {
        match self {
            Self::Directory(store) => store.put(key, &value, ttl_s),
            Self::Cluster(remote) => {
                let ttl = ttl_s.map_or(Ttl::Endless, Ttl::Seconds);
                remote.wait(remote.client.put_with_ttl(bytes(key), value, ttl))
            }
        }
    }

    pub(crate) fn put_if_absent(
        &self,
        key: &[u8],
        value: Vec<u8>,
        ttl_s: Option<u64>,
    ) -> Result<bool> {
        match self {
            Self::Directory(store) => store.put_if_absent(key, &value, ttl_s),
            Self::Cluster(remote) => {
                let ttl = ttl_s.map_or(Ttl::Endless, Ttl::Seconds);
                let put = remote.client.put_if_absent_with_ttl(bytes(key), value, ttl);
                Ok(remote.wait(put)?.is_none())
            }
        }
    }

    pub(crate) fn put_if_present(
        &self,
        key: &[u8],
        value: Vec<u8>,
        ttl_s: Option<u64>,
    ) -> Result<bool> {
        match self {
            Self::Directory(store) => store.put_if_present(key, &value, ttl_s),
            Self::Cluster(remote) => {
                let ttl = ttl_s.map_or(Ttl::Endless, Ttl::Seconds);
                let put = remote.client.put_if_present_with_ttl(bytes(key), value, ttl);
                Ok(remote.wait(put)?.is_some())
            }
        }
    }

    pub(crate) fn increment(&self, key: &[u8], by: i64) -> Result<i64> {
        match self {
            Self::Directory(store) => store.increment(key, by),
            Self::Cluster(remote) => remote.wait(remote.client.increment(bytes(key), by)),
        }
    }

    pub(crate) fn append(&self, key: &[u8], value: Vec<u8>) -> Result<u64> {
        match self {
            Self::Directory(store) => store.append(key, &value),
            Self::Cluster(remote) => remote.wait(remote.client.append(bytes(key), value)),
        }
    }

    pub(crate) fn get_and_delete(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self {
            Self::Directory(store) => store.get_and_delete(key),
            Self::Cluster(remote) => remote.wait(remote.client.get_and_delete(bytes(key))),
        }
    }

    pub(crate) fn delete(&self, keys: &[Vec<u8>]) -> Result<()> {
        match self {
            Self::Directory(store) => keys.iter().try_for_each(|key| store.delete(key)),
            Self::Cluster(remote) => {
                let keys = keys.iter().map(|key| bytes(key)).collect();
                remote.wait(remote.client.batch_delete(keys))
            }
        }
    }

    pub(crate) fn keys_in(&self, range: &KeyRange) -> Result<Amount> {
        let counted = match self {
            Self::Directory(store) => {
                let mut keys = store.pairs(range.clone(), Order::Forward, true)?;
                let counted = keys.by_ref().take(COUNTED_MAX + 1);
                counted.map(|key| key.map(|_| 1_usize)).sum::<Result<usize>>()
            }
            Self::Cluster(remote) => remote.wait(remote.count_keys(range)),
        }?;
        Ok(match counted {
            0..=COUNTED_MAX => Amount::Exactly(counted as u64),
            _ => Amount::MoreThan(COUNTED_MAX as u64),
        })
    }

    pub(crate) fn delete_range(&self, range: &KeyRange) -> Result<()> {
        match self {
            Self::Directory(store) => store.delete_range(range),
            Self::Cluster(remote) => remote.wait(remote.client.delete_range(range.clone())),
        }
    }

    pub(crate) fn close(self) -> Result<()> {
        match self {
            Self::Directory(store) => store.close(),
            Self::Cluster(_) => Ok(()),
        }
    }
}

impl Remote {
    fn connect(addresses: &[String], tls: &TlsFiles) -> Result<Self> {
        let runtime = runtime::small()?;
        let client = runtime.block_on(runtime::connect(addresses, tls))?;
        Ok(Self { runtime, client })
    }

    async fn count_keys(&self, range: &KeyRange) -> Result<usize> {
        let limit = Some(COUNTED_MAX + 1);
        let options = ScanOptions { reverse: false, keys_only: true, limit };
        let mut scan = self.client.scan(range.clone(), options);
        let mut count = 0;
        while let Some(page) = scan.next_page().await? {
            count += page.len();
        }
        Ok(count)
    }

    /// Adds the times at which the pairs expire, to a second. A pair that has ended since it was read is
    /// left out: it may be one that expired.
    async fn with_expiries(&self, pairs: Vec<Pair>) -> Result<Vec<Pair>> {
        let mut found = Vec::with_capacity(pairs.len());
        let mut pairs = pairs.into_iter();
        loop {
            let mut calls = Vec::new();
            for pair in pairs.by_ref().take(EXPIRIES_AT_ONCE) {
                let client = self.client.clone();
                let key = pair.key.clone();
                let call = tokio::spawn(async move {
                    let ttl = client.ttl(key).await?;
                    Ok::<_, Error>((ttl, unix_seconds()))
                });
                calls.push((pair, call));
            }
            if calls.is_empty() {
                return Ok(found);
            }
            for (mut pair, call) in calls {
                let stopped = |_| Error::Busy("the command is stopping".to_owned());
                pair.expires_at_s = match call.await.map_err(stopped)?? {
                    (None, _) => continue,
                    (Some(Ttl::Endless), _) => 0,
                    (Some(Ttl::Seconds(ttl_s)), now_s) => now_s.saturating_add(ttl_s),
                };
                found.push(pair);
            }
        }
    }

    fn wait<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(call)
    }
}

fn bytes(bytes: &[u8]) -> Bytes {
    Bytes::copy_from_slice(bytes)
}
