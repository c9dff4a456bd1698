//! Iteration over all pairs of a range, page by page: a view returns a bounded number at a time. And
//! what is read that way of a store's own pairs: its identity and its regions.

use crate::{Admit, Admitted, EngineView, Order, Pair, ScanOptions};
use stele_types::{KeyRange, Region, Result, StoreIdent, key_after, keyspace};

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

    /// Changes the bounds from the next page on.
    pub fn bound(&mut self, pairs_max: usize, bytes_max: usize) {
        self.options.limit = pairs_max.min(PAGE_PAIRS);
        self.options.bytes_max = bytes_max.max(1);
    }

    /// Returns the next pairs, at least one; `None` at the end.
    pub fn next_page(&mut self) -> Result<Option<Vec<Pair>>> {
        if self.options.range.is_empty() {
            return Ok(None);
        }
        let page = self.view.scan(&self.options)?;
        Ok(self.advance(page))
    }

    /// Like [`Pages::next_page`], if `admit` allows the memory of the page.
    pub fn next_admitted(&mut self, admit: Admit<'_>) -> Result<Admitted<Option<Vec<Pair>>>> {
        if self.options.range.is_empty() {
            return Ok(Admitted::Read(None));
        }
        Ok(match self.view.scan_admitted(&self.options, admit)? {
            Admitted::Read(page) => Admitted::Read(self.advance(page)),
            Admitted::Refused => Admitted::Refused,
        })
    }

    /// Moves behind a page; `None` for an empty one.
    fn advance(&mut self, page: Vec<Pair>) -> Option<Vec<Pair>> {
        let last = page.last()?;
        match self.options.order {
            Order::Forward => self.options.range.start = key_after(&last.key),
            Order::Reverse => self.options.range.end = last.key.clone(),
        }
        Some(page)
    }

    /// Returns the range that no page has covered yet.
    pub fn rest(self) -> KeyRange {
        self.options.range
    }
}

/// Reads the identity of a store; `None` before it is written.
pub fn read_ident(view: &impl EngineView) -> Result<Option<StoreIdent>> {
    let pair = view.get(&keyspace::ident_key())?;
    pair.map(|pair| StoreIdent::decode(&pair.value)).transpose()
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

        fn get_cached(&self, _: &[u8]) -> Result<crate::Cached<Option<Pair>>> {
            Ok(crate::Cached::Ready(None))
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
