//! Changes in the window that are related to a scan.

use std::cmp::Ordering;
use std::collections::VecDeque;
use stele_storage::{KeyChange, Pair};
use stele_types::LogIndex;

/// Changes that decide which pairs a scan of `limit` pairs returns: in key order up to the
/// `limit`-th put, and all if there are fewer puts.
///
/// Invariant: the scan returns no key after the last one of these if they hold `limit` puts, so the
/// other entries of the window have no effect on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Related {
    pub(super) changes: VecDeque<KeyChange>,
    /// `k`, the deletes among them.
    pub deletes: u64,
    /// `rr`, the last entry of them; 0 without any.
    pub relaxed: LogIndex,
}

impl Related {
    /// Selects the related ones of `changes`, which ascend by key.
    pub fn of(changes: impl Iterator<Item = KeyChange>, limit: usize) -> Self {
        let mut related = Self::default();
        let mut puts = 0;
        for change in changes {
            if puts == limit {
                break;
            }
            match &change.pair {
                Some(_) => puts += 1,
                // Deletes do not count as pairs of the scan.
                None => related.deletes += 1,
            }
            related.relaxed = related.relaxed.max(change.index);
            related.changes.push_back(change);
        }
        related
    }

    /// Merges the changes with `limit` + `k` pairs of the view, or all that it has. Returns the
    /// first `limit` pairs of the result.
    pub fn merge(mut self, view: Vec<Pair>, limit: usize) -> Vec<Pair> {
        let mut merged = Vec::with_capacity(limit);
        let mut view = view.into_iter().peekable();
        while merged.len() < limit {
            let is_change_next = match (self.changes.front(), view.peek()) {
                (Some(change), Some(pair)) => change.key <= pair.key,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            if !is_change_next {
                merged.extend(view.next());
                continue;
            }
            let Some(change) = self.changes.pop_front() else { break };
            // The change is newer than the pair of the view.
            view.next_if(|pair| pair.key == change.key);
            merged.extend(change.pair);
        }
        merged
    }
}

/// Joins changes of entries that wait before an engine with those of later entries, both by key. A later
/// change replaces an earlier one of its key.
pub fn both(
    waiting: impl Iterator<Item = KeyChange>,
    later: impl Iterator<Item = KeyChange>,
) -> impl Iterator<Item = KeyChange> {
    let (mut waiting, mut later) = (waiting.peekable(), later.peekable());
    std::iter::from_fn(move || {
        let order = match (waiting.peek(), later.peek()) {
            (Some(one), Some(other)) => one.key.cmp(&other.key),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        if order.is_eq() {
            waiting.next();
        }
        if order.is_lt() { waiting.next() } else { later.next() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use std::collections::BTreeMap;
    use stele_types::Prng;

    fn change(key: &str, index: u64, value: Option<&str>) -> KeyChange {
        let key = Bytes::from(key.to_owned());
        let pair = value.map(|value| pair(&key, value));
        KeyChange { key, index: LogIndex(index), pair }
    }

    fn pair(key: &Bytes, value: &str) -> Pair {
        Pair { key: key.clone(), value: Bytes::from(value.to_owned()), expires_at_s: 0 }
    }

    /// Parses "x:9 y-": a put of 9 and a delete, by entries 1, 2, ...
    fn changes(text: &str) -> Vec<KeyChange> {
        let one = |(index, word): (u64, &str)| match word.split_once(':') {
            Some((key, value)) => change(key, index, Some(value)),
            None => change(word.trim_end_matches('-'), index, None),
        };
        (1..).zip(text.split_whitespace()).map(one).collect()
    }

    fn text(pairs: &[Pair]) -> String {
        let words = pairs.iter().map(|pair| {
            let word = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
            format!("{}:{}", word(&pair.key), word(&pair.value))
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_log_read_ends_at_the_limit_and_counts_deletes_apart() {
        // Changes; limit; changes within reach, deletes among them, last entry.
        let rows = [
            ("", 2, 0, 0, 0),
            ("x:9 y-", 2, 2, 1, 2),
            ("a- b- c:1 d:2 e:3 f-", 2, 4, 2, 4),
            ("a:1 b- c:2 d-", 2, 3, 1, 3),
            ("a:1 b-", 9, 2, 1, 2),
            ("a:1 b-", 0, 0, 0, 0),
        ];
        for (log, limit, taken, deletes, relaxed) in rows {
            let related = Related::of(changes(log).into_iter(), limit);
            let found = (related.changes.len(), related.deletes, related.relaxed.0);
            assert_eq!(found, (taken, deletes, relaxed), "{log}, {limit}");
        }
    }

    #[test]
    fn a_later_change_replaces_one_that_waits() {
        let waiting = vec![change("a", 1, Some("1")), change("b", 2, None), change("d", 3, None)];
        let later = vec![change("b", 4, Some("4")), change("c", 5, None)];
        let joined: Vec<KeyChange> = both(waiting.into_iter(), later.into_iter()).collect();
        let found: Vec<_> = joined.iter().map(|it| (it.key.as_ref(), it.index.0)).collect();
        assert_eq!(found, [(&b"a"[..], 1), (b"b", 4), (b"c", 5), (b"d", 3)]);
    }

    #[test]
    fn the_relaxed_index_is_the_last_entry_and_not_that_of_the_last_key() {
        let log = vec![change("a", 8, None), change("b", 3, Some("1"))];
        assert_eq!(Related::of(log.into_iter(), 5).relaxed, LogIndex(8));
    }

    #[test]
    fn merges_of_the_papers_examples() {
        // Log, pairs of the view, limit, result: examples 5.4 and 5.5, and the edges.
        let rows = [
            ("x:9 z:7", "x:0 y:0", 2, "x:9 y:0"),
            ("x:9 y- z:7", "x:0 y:0 z:0", 2, "x:9 z:7"),
            ("x:9 y-", "x:0 y:0 z:0", 2, "x:9 z:0"),
            ("a- b-", "a:0 b:0", 2, ""),
            ("", "a:0 b:0", 2, "a:0 b:0"),
            ("a:1 b:2", "", 2, "a:1 b:2"),
            ("b:1", "a:0 c:0", 2, "a:0 b:1"),
        ];
        for (log, view, limit, expected) in rows {
            let view = changes(view).into_iter().filter_map(|change| change.pair).collect();
            let merged = Related::of(changes(log).into_iter(), limit).merge(view, limit);
            assert_eq!(text(&merged), expected, "{log} over {view:?}", view = expected);
        }
    }

    #[test]
    fn k_more_pairs_suffice_in_every_random_case() {
        let mut random = Prng::new(7);
        for case in 0..20_000 {
            let keys: Vec<Bytes> = (0..12).map(|key| Bytes::from(format!("{key:02}"))).collect();
            let mut view = BTreeMap::new();
            let (mut log, mut state) = (Vec::new(), BTreeMap::new());
            for key in &keys {
                if random.below(2) == 0 {
                    view.insert(key.clone(), pair(key, "old"));
                    state.insert(key.clone(), pair(key, "old"));
                }
                let index = LogIndex(1 + random.below(9));
                let (key, new) = (key.clone(), pair(key, "new"));
                match random.below(3) {
                    0 => {
                        state.remove(&key);
                        log.push(KeyChange { key, index, pair: None });
                    }
                    1 => {
                        state.insert(key.clone(), new.clone());
                        log.push(KeyChange { key, index, pair: Some(new) });
                    }
                    _ => {}
                }
            }
            let limit = random.below(8) as usize;
            let related = Related::of(log.into_iter(), limit);
            let read = view.into_values().take(limit + related.deletes as usize);
            let merged = related.merge(read.collect(), limit);
            let expected: Vec<Pair> = state.into_values().take(limit).collect();
            assert_eq!(text(&merged), text(&expected), "case {case}, {limit} pairs");
        }
    }
}
