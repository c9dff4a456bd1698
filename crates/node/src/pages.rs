//! Iteration over all pairs of a range, page by page: a view returns a bounded number at a time.

use bytes::Bytes;
use stele_storage::{Admit, Admitted, EngineView, Order, Pair, ScanOptions};
use stele_types::Result;

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
    pub fn of_range(view: &'a V, range: stele_types::KeyRange) -> Self {
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
            Order::Forward => self.options.range.start = after(&last.key),
            Order::Reverse => self.options.range.end = last.key.clone(),
        }
        Some(page)
    }

    /// Returns the range that no page has covered yet.
    pub fn rest(self) -> stele_types::KeyRange {
        self.options.range
    }
}

/// Returns the first key after `key`.
fn after(key: &[u8]) -> Bytes {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    Bytes::from(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::KeyRange;

    /// Keys `0` to `9`, one byte each.
    struct Digits;

    impl EngineView for Digits {
        fn get(&self, _: &[u8]) -> Result<Option<Pair>> {
            Ok(None)
        }

        fn get_cached(&self, _: &[u8]) -> Result<stele_storage::Cached<Option<Pair>>> {
            Ok(stele_storage::Cached::Here(None))
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
