//! Checks that damage of a run hides no key: a lookup finds what it found before the damage, or fails.

use bytes::Bytes;
use std::fmt::Debug;
use stele_engine::Store as Engine;
use stele_index::Direction;
use stele_types::{KeyRange, keyspace};

/// Entries of an index, found by lookups.
pub struct Entries(Vec<(Bytes, String)>);

impl Entries {
    /// Looks up all keys of clients and of the placement group.
    pub fn of(engine: &Engine) -> Self {
        let range = KeyRange::new(vec![keyspace::LOCAL + 1], Vec::new());
        let mut entries = Vec::new();
        let Ok(mut iter) = engine.index().view().iter(range, Direction::Forward) else {
            return Self(entries);
        };
        while let Ok(Some((key, ..))) = iter.next() {
            if let Ok(found) = engine.index().get(&key) {
                entries.push((Bytes::copy_from_slice(&key), text(&found)));
            }
        }
        Self(entries)
    }

    /// Returns the first key of which a lookup now succeeds with another result.
    pub fn hidden(&self, engine: &Engine) -> Option<String> {
        self.0.iter().find_map(|(key, before)| {
            let now = engine.index().get(key).ok().map(|found| text(&found))?;
            (now != *before).then(|| format!("{key:?} was {before} and is {now}"))
        })
    }
}

fn text(found: &impl Debug) -> String {
    format!("{found:?}")
}
