//! Compare-and-swap, decided when it is proposed: the entry directly follows the log that was
//! compared, so wherever it commits the comparison holds (log matching).

use super::Peer;
use crate::input::Cas;
use bytes::Bytes;
use stele_storage::{EngineView, Pair, StorageEngine};
use stele_types::{Command, KeyRange, Op, Result};

/// Result of a comparison.
pub(super) struct Comparison {
    pub holds: bool,
    /// Live pair of the key.
    pub previous: Option<Pair>,
}

impl<E: StorageEngine> Peer<E> {
    /// Compares with the state after the whole log: entries about to be proposed, then unapplied
    /// entries, then the engine, newest first. An expired pair counts as absent.
    pub(super) fn compare(
        &self,
        engine: &E,
        cas: &Cas,
        proposing: &[Bytes],
        unix_seconds: u64,
    ) -> Result<Comparison> {
        let newest = proposing.iter().rev();
        let unapplied = newest.chain(self.log().newest_first(self.applied().0));
        let overlay = match stele_types::mutant::active("raftstore.cas_without_overlay") {
            true => None,
            false => unapplied.filter_map(|payload| last_effect(payload, &cas.key)).next(),
        };
        let found = match overlay {
            Some(effect) => effect,
            None => engine.view()?.get(&cas.key)?,
        };
        let live = |pair: &Pair| pair.expires_at_s == 0 || pair.expires_at_s > unix_seconds;
        let previous = found.filter(live);
        let holds = previous.as_ref().map(|pair| &pair.value) == cas.expected.as_ref();
        Ok(Comparison { holds, previous })
    }
}

/// Returns a command's effect on a key; `None` if it does not change the key.
fn last_effect(payload: &Bytes, key: &Bytes) -> Option<Option<Pair>> {
    let mut effect = None;
    Command::each_op_of(payload, |op| match op {
        Op::Put { key: put, value, expires_at_s, value_offset, .. } if put == &key[..] => {
            let at = value_offset as usize;
            let value = payload.slice(at..at + value.len());
            effect = Some(Some(Pair { key: key.clone(), value, expires_at_s }));
        }
        Op::Delete { key: deleted } if deleted == &key[..] => effect = Some(None),
        Op::DeleteRange { start, end } => {
            let range = KeyRange::new(start.to_vec(), end.to_vec());
            if range.contains(key) {
                effect = Some(None);
            }
        }
        _ => {}
    });
    effect
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
        let at = |key: &'static [u8]| last_effect(&command, &Bytes::from_static(key));
        let pair = at(b"a").unwrap().unwrap();
        assert_eq!((&pair.value[..], pair.expires_at_s), (&b"2"[..], 9));
        assert_eq!(at(b"b"), Some(None));
        assert_eq!(at(b"c"), None);
    }
}
