//! Search of payloads for their last effect on one key, for modifications.

use bytes::Bytes;
use stele_storage::Pair;
use stele_types::{Command, Op};

/// Operations that searches may read before others wait.
const OPS_MAX: u64 = 100_000;

/// Searches in one go of the loop.
#[derive(Debug, Default)]
pub(crate) struct KeySearch {
    ops: u64,
}

impl KeySearch {
    /// Returns whether so many operations were read that other work comes first.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.ops >= OPS_MAX
    }

    /// Returns a payload's effect on a key; `None` if it does not change the key. What is not a command
    /// has no effect: it changes the region, or stops the store when it is applied.
    pub(crate) fn last_effect(&mut self, payload: &Bytes, key: &[u8]) -> Option<Option<Pair>> {
        let mut effect = None;
        Command::each_op_of(payload, |op| {
            self.ops += 1;
            match op {
                Op::Put { key: put, value, expires_at_s, .. } if put == key => {
                    let (key, value) = (payload.slice_ref(put), payload.slice_ref(value));
                    effect = Some(Some(Pair { key, value, expires_at_s }));
                }
                Op::Delete { key: deleted } if deleted == key => effect = Some(None),
                Op::DeleteRange { start, end } => {
                    let is_below_end = end.is_empty() || key < end;
                    if start <= key && is_below_end {
                        effect = Some(None);
                    }
                }
                _ => {}
            }
        });
        effect
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::CommandBuilder;

    #[test]
    fn the_last_operation_on_a_key_counts() {
        let mut builder = CommandBuilder::new();
        builder.put(b"a", b"1", 0).unwrap();
        builder.put(b"a", b"2", 9).unwrap();
        builder.put(b"b", b"3", 0).unwrap();
        builder.delete_range(b"b", b"c").unwrap();
        let command = builder.build().bytes().clone();
        let at = |key: &'static [u8]| KeySearch::default().last_effect(&command, key);
        let pair = at(b"a").unwrap().unwrap();
        assert_eq!((&pair.value[..], pair.expires_at_s), (&b"2"[..], 9));
        assert_eq!(at(b"b"), Some(None));
        assert_eq!(at(b"c"), None);
    }

    #[test]
    fn searches_are_exhausted_by_the_operations_that_they_read() {
        let mut builder = CommandBuilder::new();
        (0..1_000).for_each(|_| drop(builder.delete(b"a")));
        let command = builder.build().bytes().clone();
        let mut search = KeySearch::default();
        for _ in 0..OPS_MAX / 1_000 {
            assert!(!search.is_exhausted());
            assert_eq!(search.last_effect(&command, b"b"), None);
        }
        assert!(search.is_exhausted());
    }
}
