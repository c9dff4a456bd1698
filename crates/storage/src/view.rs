//! Consistent views of a store, and what scans of them take and return. A view returns a bounded
//! number of pairs at a time, so iteration over a range goes page by page. A store's own pairs, its
//! identity and its regions, are read that way.

use crate::{PairSink, Passed};
use bytes::Bytes;
use std::sync::Arc;
use stele_types::{Error, KeyRange, Locator, Region, Result, StoreIdent, key_after, keyspace};

/// Direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Ascending keys.
    Forward,
    /// Descending keys.
    Reverse,
}

/// One pair of a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Bytes,
    /// The value; empty in a keys-only scan.
    pub value: Bytes,
    /// Expiry in Unix seconds; 0 for none.
    pub expires_at_s: u64,
}

impl Pair {
    /// Returns what is known of the pair without its value.
    pub fn meta(&self) -> PairMeta {
        PairMeta { value_bytes: self.value.len() as u64, expires_at_s: self.expires_at_s }
    }
}

/// What is known of a pair without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairMeta {
    /// Bytes of the value.
    pub value_bytes: u64,
    /// Expiry in Unix seconds; 0 for none.
    pub expires_at_s: u64,
}

/// Range, order and limits of a scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanOptions {
    /// Keys to scan.
    pub range: KeyRange,
    /// Direction of the scan.
    pub order: Order,
    /// Maximum number of pairs.
    pub limit: usize,
    /// Maximum bytes of keys and values; the first pair is returned even if it is larger.
    pub bytes_max: usize,
    /// Return no values, and read none.
    pub keys_only: bool,
    /// Pairs that the caller wants of this scan and of those that continue it: the device may read later
    /// ones meanwhile. 0 where it does not know. Changes no result.
    pub wanted: usize,
}

impl ScanOptions {
    /// Returns options for all of `range`, forward, with values, up to `limit` pairs and 64 MiB.
    pub fn new(range: KeyRange, limit: usize) -> Self {
        let (order, bytes_max) = (Order::Forward, 64 << 20);
        Self { range, order, limit, bytes_max, keys_only: false, wanted: 0 }
    }
}

/// Result of a read that must not wait for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cached<T> {
    /// The result, from memory.
    Ready(T),
    /// The device must be read: repeat the read where it may wait.
    NeedsIo,
}

/// Result of a get that must not wait for the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CachedGet {
    /// The pair, from memory.
    Ready(Option<Pair>),
    /// The device must be read: pass this to [`EngineView::get_many`] of the same view.
    NeedsIo(PendingGet),
}

/// Get that needs the device, with what was found of its pair in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingGet {
    /// The key.
    pub key: Bytes,
    /// Location of the value and expiry of the pair, if only the value must be read; `None` if the index
    /// must be searched first.
    ///
    /// Invariant: only the view that found a location reads it. The view keeps its file.
    /// Test: `a_located_value_is_read_by_its_view_after_its_file_would_have_been_removed`.
    pub located: Option<(Locator, u64)>,
}

impl CachedGet {
    /// Creates the result of a get of which nothing was found in memory.
    pub fn needs_io(key: &[u8]) -> Self {
        Self::NeedsIo(PendingGet::of_key(Bytes::copy_from_slice(key)))
    }
}

impl PendingGet {
    /// Creates the get of a key that was not found in memory.
    pub fn of_key(key: Bytes) -> Self {
        Self { key, located: None }
    }
}

/// Result of a read that asks before it uses memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admitted<T> {
    /// The result.
    Read(T),
    /// The memory was refused; no value was read with it.
    Refused,
}

impl<T> Admitted<T> {
    /// Returns the result of a read of which all memory was admitted; an error otherwise.
    pub fn read(self) -> Result<T> {
        match self {
            Self::Read(read) => Ok(read),
            Self::Refused => Err(Error::invalid("the memory of a read was refused")),
        }
    }
}

/// Pair of a key, or none, if its memory was admitted.
pub type GotAdmitted = Admitted<Option<Pair>>;

/// Decides whether the memory of values may be used. Called before they are read, with the number of
/// pairs that are read together and the bytes of their keys and values.
pub type Admit<'a> = &'a mut dyn FnMut(usize, u64) -> bool;

/// One point in time of a whole store, without later writes. Expired pairs are returned; the
/// request threads, which know the time, hide them.
pub trait EngineView: Send + Sync {
    /// Returns the pair of `key`.
    fn get(&self, key: &[u8]) -> Result<Option<Pair>>;
    /// Returns the pair of `key` if that needs no read of the device. Never waits for the device.
    fn get_cached(&self, key: &[u8]) -> Result<CachedGet>;
    /// Announces gets of these keys by this thread: an engine may start to load what they will read from
    /// memory. Changes no result.
    fn prefetch(&self, keys: &[Bytes]) {
        let _ = keys;
    }
    /// Returns pairs in order.
    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>>;
    /// Returns the pairs of many keys, each with its own result, in the order of `gets`. Values are read
    /// together, if their memory is admitted; asked for each part that is read together. After a refusal
    /// no further value is read. An engine that does not know the length of a value before it reads it
    /// asks afterwards.
    fn get_many(&self, gets: Vec<PendingGet>, admit: Admit<'_>) -> Vec<Result<GotAdmitted>> {
        let mut is_refused = false;
        let get = |get: PendingGet| {
            if is_refused {
                return Ok(Admitted::Refused);
            }
            let pair = self.get(&get.key)?;
            let got = admitted(pair.as_slice(), &mut *admit).then_read(pair);
            is_refused = got == Admitted::Refused;
            Ok(got)
        };
        gets.into_iter().map(get).collect()
    }
    /// Returns what is known of the pair of `key` without its value. An engine that has it with the value
    /// only reads the value.
    fn get_meta(&self, key: &[u8]) -> Result<Option<PairMeta>> {
        Ok(self.get(key)?.as_ref().map(Pair::meta))
    }
    /// Like [`EngineView::get_meta`], if that needs no read of the device. Never waits for the device.
    fn get_meta_cached(&self, key: &[u8]) -> Result<Cached<Option<PairMeta>>> {
        Ok(match self.get_cached(key)? {
            CachedGet::Ready(pair) => Cached::Ready(pair.as_ref().map(Pair::meta)),
            CachedGet::NeedsIo(_) => Cached::NeedsIo,
        })
    }
    /// Passes pairs to `sink` in order, if their memory is admitted; asked for each part of the scan that
    /// is read together, and announced to the sink once it is admitted.
    fn scan_into(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Admitted<Passed>> {
        let pairs = self.scan(options)?;
        let is_admitted = admitted(&pairs, admit);
        if is_admitted == Admitted::Read(()) {
            pairs.iter().for_each(|pair| sink.take(pair.into()));
        }
        Ok(is_admitted.then_read(Passed::of(&pairs)))
    }
    /// Like [`EngineView::scan_into`], for a short scan that needs no read of the device. Never waits for
    /// the device. Some engines always answer [`Cached::NeedsIo`], and each does for a long scan.
    fn scan_cached(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Cached<Admitted<Passed>>> {
        let (_, _, _) = (options, admit, sink);
        Ok(Cached::NeedsIo)
    }
    /// Records that a user scanned these pairs: what is scanned often is worth sorting. Not called for
    /// reads of the system itself.
    fn note_scan(&self, scanned: &Passed) {
        let _ = scanned;
    }
}

impl<V: EngineView> EngineView for Arc<V> {
    fn get(&self, key: &[u8]) -> Result<Option<Pair>> {
        (**self).get(key)
    }

    fn get_cached(&self, key: &[u8]) -> Result<CachedGet> {
        (**self).get_cached(key)
    }

    fn prefetch(&self, keys: &[Bytes]) {
        (**self).prefetch(keys);
    }

    fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
        (**self).scan(options)
    }

    fn get_many(&self, gets: Vec<PendingGet>, admit: Admit<'_>) -> Vec<Result<GotAdmitted>> {
        (**self).get_many(gets, admit)
    }

    fn get_meta(&self, key: &[u8]) -> Result<Option<PairMeta>> {
        (**self).get_meta(key)
    }

    fn get_meta_cached(&self, key: &[u8]) -> Result<Cached<Option<PairMeta>>> {
        (**self).get_meta_cached(key)
    }

    fn scan_into(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Admitted<Passed>> {
        (**self).scan_into(options, admit, sink)
    }

    fn scan_cached(
        &self,
        options: &ScanOptions,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Cached<Admitted<Passed>>> {
        (**self).scan_cached(options, admit, sink)
    }

    fn note_scan(&self, scanned: &Passed) {
        (**self).note_scan(scanned);
    }
}

fn admitted(pairs: &[Pair], admit: Admit<'_>) -> Admitted<()> {
    let bytes = pairs.iter().map(|pair| (pair.key.len() + pair.value.len()) as u64).sum();
    match pairs.is_empty() || admit(pairs.len(), bytes) {
        true => Admitted::Read(()),
        false => Admitted::Refused,
    }
}

impl Admitted<()> {
    fn then_read<T>(self, read: T) -> Admitted<T> {
        match self {
            Self::Read(()) => Admitted::Read(read),
            Self::Refused => Admitted::Refused,
        }
    }
}

/// Most pairs of a page; `options` may ask for fewer.
const PAGE_PAIRS: usize = 1024;

/// Iterator over the pages of one scan.
pub struct Pages<'a, V> {
    view: &'a V,
    options: ScanOptions,
}

impl<'a, V: EngineView> Pages<'a, V> {
    /// Creates the pages of a scan; the bounds in `options` apply to each page.
    pub fn new(view: &'a V, mut options: ScanOptions) -> Self {
        options.limit = options.limit.min(PAGE_PAIRS);
        Self { view, options }
    }

    /// Creates the pages of all pairs of `range`.
    pub fn of_range(view: &'a V, range: KeyRange) -> Self {
        Self::new(view, ScanOptions::new(range, PAGE_PAIRS))
    }

    /// Changes the bounds from the next page on: the pairs that all pages may still have, and the bytes of
    /// each.
    pub fn bound(&mut self, pairs_max: usize, bytes_max: usize) {
        self.options.limit = pairs_max.min(PAGE_PAIRS);
        self.options.wanted = pairs_max;
        self.options.bytes_max = bytes_max.max(1);
    }

    /// Returns the next pairs, at least one; `None` at the end.
    pub fn next_page(&mut self) -> Result<Option<Vec<Pair>>> {
        if self.options.range.is_empty() {
            return Ok(None);
        }
        let page = self.view.scan(&self.options)?;
        self.advance(page.last().map(|last| &last.key));
        Ok(Some(page).filter(|page| !page.is_empty()))
    }

    /// Passes the next pairs to `sink`, at least one, if `admit` allows their memory; `None` at the end.
    pub fn next_into(
        &mut self,
        admit: Admit<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<Admitted<Option<Passed>>> {
        if self.options.range.is_empty() {
            return Ok(Admitted::Read(None));
        }
        let Admitted::Read(passed) = self.view.scan_into(&self.options, admit, sink)? else {
            return Ok(Admitted::Refused);
        };
        self.advance(passed.last_key());
        Ok(Admitted::Read(Some(passed).filter(|passed| passed.pairs > 0)))
    }

    /// Moves behind a page that ends with this key.
    fn advance(&mut self, last: Option<&Bytes>) {
        match (last, self.options.order) {
            (None, _) => {}
            (Some(last), Order::Forward) => self.options.range.start = key_after(last),
            (Some(last), Order::Reverse) => self.options.range.end = last.clone(),
        }
    }

    /// Returns the range that no page has covered yet.
    pub fn rest(self) -> KeyRange {
        self.options.range
    }
}

/// Reads the identity of a store; `None` before it is written.
pub fn read_ident(view: &impl EngineView) -> Result<Option<StoreIdent>> {
    let Some(own) = view.get(&keyspace::ident_key())? else { return Ok(None) };
    let tick = view.get(&keyspace::tick_key())?;
    StoreIdent::decode(&own.value, tick.as_ref().map(|pair| &pair.value[..])).map(Some)
}

/// Reads the descriptors of all regions of a store, also those of regions that it left.
pub fn read_regions(view: &impl EngineView) -> Result<Vec<Region>> {
    let mut pages = Pages::of_range(view, keyspace::region_keys());
    let mut regions = Vec::new();
    while let Some(page) = pages.next_page()? {
        for pair in &page {
            regions.push(Region::decode(&pair.value)?);
        }
    }
    Ok(regions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    /// Keys `0` to `9`, one byte each.
    struct Digits;

    impl EngineView for Digits {
        fn get(&self, _: &[u8]) -> Result<Option<Pair>> {
            Ok(None)
        }

        fn get_cached(&self, _: &[u8]) -> Result<CachedGet> {
            Ok(CachedGet::Ready(None))
        }

        fn scan(&self, options: &ScanOptions) -> Result<Vec<Pair>> {
            let pair = |digit: u8| Pair {
                key: Bytes::from(vec![digit]),
                value: Bytes::new(),
                expires_at_s: 0,
            };
            let mut digits: Vec<u8> = (b'0'..=b'9').collect();
            if options.order == Order::Reverse {
                digits.reverse();
            }
            let inside = digits.into_iter().filter(|digit| options.range.contains(&[*digit]));
            Ok(inside.take(options.limit).map(pair).collect())
        }
    }

    fn all(mut pages: Pages<'_, Digits>) -> (String, usize) {
        let (mut keys, mut count) = (String::new(), 0);
        while let Some(page) = pages.next_page().unwrap() {
            assert!(!page.is_empty());
            count += 1;
            keys.extend(page.iter().map(|pair| char::from(pair.key[0])));
        }
        (keys, count)
    }

    #[test]
    fn pages_give_each_pair_once_in_both_orders() {
        for limit in 1..12 {
            let range = KeyRange::new("2", "8");
            let mut options = ScanOptions::new(range, limit);
            let pages = 6usize.div_ceil(limit);
            assert_eq!(all(Pages::new(&Digits, options.clone())), ("234567".to_owned(), pages));
            options.order = Order::Reverse;
            let (keys, count) = all(Pages::new(&Digits, options));
            assert_eq!(keys, "765432");
            assert!(count == pages, "{count} pages of {limit}");
        }
    }

    #[test]
    fn what_is_left_begins_after_the_last_page() {
        let mut pages = Pages::of_range(&Digits, KeyRange::all());
        pages.bound(4, 100);
        assert_eq!(pages.next_page().unwrap().map(|page| page.len()), Some(4));
        assert_eq!(pages.rest().start, &b"3\0"[..]);
    }
}
