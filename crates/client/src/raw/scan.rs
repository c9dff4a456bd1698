//! Scans: pairs in key order, page by page, across regions.

use crate::Client;
use crate::backoff::Tries;
use crate::route::Route;
use bytes::Bytes;
use stele_proto::kvrpcpb;
use stele_types::{Error, KeyRange, Result, key_after};

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Key of the pair.
    pub key: Bytes,
    /// Value of the pair; empty in a scan of keys only.
    pub value: Bytes,
}

/// Options of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScanOptions {
    /// Returns pairs from the last key to the first.
    pub reverse: bool,
    /// Returns keys without values.
    pub keys_only: bool,
    /// Maximum number of pairs in all pages; `None` for all pairs.
    pub limit: Option<usize>,
}

/// Pairs of the first page, of unknown length; keys of a page of keys; maximum of any page.
const FIRST_PAGE: u32 = 16;
const KEYS_PAGE: u32 = 4096;
const PAGE_MAX: u32 = 4096;
const PAGE_BYTES: u64 = 4 << 20;

/// A running scan. The pairs of each page are those of some moment of its call.
pub struct Scan {
    client: Client,
    options: ScanOptions,
    /// Range that has not been read; `None` at the end.
    rest: Option<KeyRange>,
    returned: usize,
    /// Pairs to request for the next page.
    page: u32,
}

impl Client {
    /// Starts a scan of the pairs of a range, in key order.
    pub fn scan(&self, range: KeyRange, options: ScanOptions) -> Scan {
        let page = if options.keys_only { KEYS_PAGE } else { FIRST_PAGE };
        let rest = (!range.is_empty()).then_some(range);
        Scan { client: self.clone(), options, rest, returned: 0, page }
    }
}

impl Scan {
    /// Returns the next pairs, at least one; `None` at the end.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Pair>>> {
        let mut tries = self.client.tries();
        while let Some(rest) = self.rest.clone() {
            let left =
                self.options.limit.map_or(usize::MAX, |limit| limit - self.returned.min(limit));
            if left == 0 {
                break;
            }
            let route = match self.options.reverse {
                false => self.client.router.locate(&rest.start, &mut tries).await?,
                true => self.client.router.locate_below(&rest.end, &mut tries).await?,
            };
            let count = self.page.min(u32::try_from(left).unwrap_or(u32::MAX));
            let Some(pairs) = self.page_of(&route, &rest, count, &mut tries).await? else {
                continue;
            };
            self.rest = self.remaining(&route, &rest, &pairs, count);
            if !pairs.is_empty() {
                self.returned += pairs.len();
                self.adapt(&pairs);
                return Ok(Some(pairs));
            }
            // The time limit is per region, also for empty ones.
            tries = self.client.tries();
        }
        self.rest = None;
        Ok(None)
    }

    /// Returns all pairs.
    pub async fn collect(mut self) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        while let Some(page) = self.next_page().await? {
            pairs.extend(page);
        }
        Ok(pairs)
    }

    async fn page_of(
        &mut self,
        route: &Route,
        rest: &KeyRange,
        count: u32,
        tries: &mut Tries,
    ) -> Result<Option<Vec<Pair>>> {
        let within = rest.within(&route.region.range);
        let (start_key, end_key) = match self.options.reverse {
            false => (within.start, within.end),
            true => (within.end, within.start),
        };
        let request = kvrpcpb::RawScanRequest {
            start_key,
            end_key,
            limit: count,
            key_only: self.options.keys_only,
            reverse: self.options.reverse,
            cf: self.client.family_name(),
            context: None,
        };
        let client = &self.client;
        match client.router.attempt(route, &request, &client.options, tries).await {
            Ok(None) => Ok(None),
            Ok(Some(response)) => {
                let pair = |pair: kvrpcpb::KvPair| Pair { key: pair.key, value: pair.value };
                Ok(Some(response.kvs.into_iter().map(pair).collect()))
            }
            // The page exceeds the maximum length of a message: request fewer pairs.
            Err(Error::Invalid(_)) if count > 1 && tries.take_too_long() => {
                self.page = (count / 4).max(1);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the range left after a page. A page that is not full contains all pairs of the
    /// region's part.
    fn remaining(
        &self,
        route: &Route,
        rest: &KeyRange,
        pairs: &[Pair],
        count: u32,
    ) -> Option<KeyRange> {
        let region = &route.region.range;
        let is_full = pairs.len() >= count as usize;
        let rest = match (self.options.reverse, pairs.last().filter(|_| is_full)) {
            (false, Some(last)) => KeyRange { start: key_after(&last.key), end: rest.end.clone() },
            (true, Some(last)) => KeyRange { start: rest.start.clone(), end: last.key.clone() },
            (false, None) if region.end.is_empty() => return None,
            (false, None) => KeyRange { start: region.end.clone(), end: rest.end.clone() },
            (true, None) if region.start.is_empty() => return None,
            (true, None) => KeyRange { start: rest.start.clone(), end: region.start.clone() },
        };
        // No key is below the empty key, and an empty end would mean unbounded.
        let is_done = rest.is_empty() || (self.options.reverse && rest.end.is_empty());
        (!is_done).then_some(rest)
    }

    fn adapt(&mut self, pairs: &[Pair]) {
        let bytes: usize = pairs.iter().map(|pair| pair.key.len() + pair.value.len()).sum();
        let each = (bytes as u64 / pairs.len().max(1) as u64).max(1);
        let aimed = u32::try_from(PAGE_BYTES / each).unwrap_or(u32::MAX);
        self.page = aimed.clamp(1, PAGE_MAX).min(self.page.saturating_mul(8));
    }
}
