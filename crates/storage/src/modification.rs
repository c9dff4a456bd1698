//! Read-modify-writes of one key: one definition for clusters and for single stores.

use crate::Pair;
use bytes::Bytes;
use stele_types::command::{self, Unfit};
use stele_types::{CommandBuilder, Result};

/// Change of a pair that depends on the pair. An expired pair counts as absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Modification {
    /// Makes a change if the key has the expected value.
    Compare {
        /// Required value; `None`: the key must have none.
        expected: Option<Bytes>,
        /// Change made if the comparison holds.
        new: NewPair,
    },
    /// Makes a change whatever the key has. Its result has no previous pair: none is read.
    Set {
        /// Change made.
        new: NewPair,
    },
    /// Makes a change if the key has a value.
    Replace {
        /// Change made if there is a value.
        new: NewPair,
    },
    /// Adds to a decimal number of 64 bits with sign; an absent one counts as 0. The expiry stays.
    Increment {
        /// Number to add.
        by: i64,
    },
    /// Adds bytes to the end of the value; an absent one counts as empty. The expiry stays.
    Append {
        /// Bytes to add.
        bytes: Bytes,
    },
    /// Removes the key and returns its pair.
    GetAndDelete,
}

/// What a modification makes of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewPair {
    /// Sets the key.
    Put {
        /// New value.
        value: Bytes,
        /// Expiry in Unix seconds; 0 disables it.
        expires_at_s: u64,
    },
    /// Removes the key.
    Delete,
}

/// Result of a modification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Modified {
    /// The comparison held, or the key was deleted.
    Replaced {
        /// Pair that the key had.
        previous: Option<Pair>,
    },
    /// The value was computed from the one before it.
    Updated {
        /// Value that the key has now.
        value: Bytes,
    },
    /// Nothing changed: the comparison failed, or there was no pair to delete.
    Unchanged {
        /// Pair that the key has.
        previous: Option<Pair>,
    },
    /// Nothing changed: the value of the key does not allow the change.
    Unfit(Unfit),
    /// A program was decided.
    Answered {
        /// Its answer.
        answer: Bytes,
    },
}

/// Decision on a modification.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// The key gets this pair; the result is known before the entry is proposed.
    Change(NewPair, Modified),
    /// Nothing changes.
    Keep(Modified),
}

impl Modification {
    /// Returns the bytes of the values that it carries.
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::Compare { expected, new } => {
                expected.as_ref().map_or(0, Bytes::len) + new.value_bytes()
            }
            Self::Replace { new } | Self::Set { new } => new.value_bytes(),
            Self::Append { bytes } => bytes.len(),
            Self::Increment { .. } | Self::GetAndDelete => 0,
        }
    }
}

impl NewPair {
    /// Returns the bytes of the value.
    pub fn value_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } => value.len(),
            Self::Delete => 0,
        }
    }

    /// Returns the command that makes the change. Fails with [`Error::Invalid`] above the limits.
    ///
    /// [`Error::Invalid`]: stele_types::Error::Invalid
    pub fn command(&self, key: &[u8]) -> Result<CommandBuilder> {
        let mut builder = CommandBuilder::new();
        match self {
            Self::Put { value, expires_at_s } => builder.put(key, value, *expires_at_s)?,
            Self::Delete => builder.delete(key)?,
        };
        Ok(builder)
    }
}

/// Decides a modification on the live pair of its key.
pub fn decide(change: &Modification, live: Option<Pair>) -> Decision {
    let changed =
        |new: &NewPair, previous| Decision::Change(new.clone(), Modified::Replaced { previous });
    match change {
        Modification::Compare { expected, new } => {
            let holds = live.as_ref().map(|pair| &pair.value) == expected.as_ref();
            match holds {
                true => changed(new, live),
                false => Decision::Keep(Modified::Unchanged { previous: live }),
            }
        }
        Modification::Set { new } => changed(new, None),
        Modification::Replace { new } => match live {
            Some(_) => changed(new, live),
            None => Decision::Keep(Modified::Unchanged { previous: None }),
        },
        Modification::GetAndDelete => match live {
            Some(_) => changed(&NewPair::Delete, live),
            None => Decision::Keep(Modified::Unchanged { previous: None }),
        },
        Modification::Increment { by } => {
            let sum = command::incremented(value_of(live.as_ref()), *by);
            updated(live.as_ref(), sum.map(|sum| sum.to_string().into()))
        }
        Modification::Append { bytes } => {
            let value = command::appended(value_of(live.as_ref()), bytes);
            updated(live.as_ref(), value.map(Bytes::from))
        }
    }
}

fn value_of(live: Option<&Pair>) -> Option<&[u8]> {
    live.map(|pair| &pair.value[..])
}

/// Decides on a value computed from the pair; its expiry stays.
fn updated(live: Option<&Pair>, value: Result<Bytes, Unfit>) -> Decision {
    let expires_at_s = live.map_or(0, |pair| pair.expires_at_s);
    // bug storage.modification_drops_expiry: let expires_at_s = 0;
    match value {
        Ok(value) => {
            let new = NewPair::Put { value: value.clone(), expires_at_s };
            Decision::Change(new, Modified::Updated { value })
        }
        Err(unfit) => Decision::Keep(Modified::Unfit(unfit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(value: &[u8], expires_at_s: u64) -> Pair {
        Pair { key: Bytes::from_static(b"k"), value: Bytes::copy_from_slice(value), expires_at_s }
    }

    #[test]
    fn a_comparison_a_replacement_and_a_get_and_delete_see_the_pair_and_change_it_or_not() {
        let new = NewPair::Put { value: Bytes::from_static(b"n"), expires_at_s: 7 };
        let compare = |expected: Option<&[u8]>| Modification::Compare {
            expected: expected.map(Bytes::copy_from_slice),
            new: new.clone(),
        };
        let old = || Some(pair(b"o", 3));
        let changes =
            |to: &NewPair, previous| Decision::Change(to.clone(), Modified::Replaced { previous });
        let keeps = |previous| Decision::Keep(Modified::Unchanged { previous });
        let rows = [
            (compare(None), None, changes(&new, None)),
            (compare(None), old(), keeps(old())),
            (compare(Some(b"o")), old(), changes(&new, old())),
            (compare(Some(b"x")), old(), keeps(old())),
            (compare(Some(b"o")), None, keeps(None)),
            (Modification::Replace { new: new.clone() }, old(), changes(&new, old())),
            (Modification::Replace { new: new.clone() }, None, keeps(None)),
            (Modification::Set { new: new.clone() }, old(), changes(&new, None)),
            (Modification::GetAndDelete, old(), changes(&NewPair::Delete, old())),
            (Modification::GetAndDelete, None, keeps(None)),
        ];
        for (change, live, expected) in rows {
            assert_eq!(decide(&change, live.clone()), expected, "{change:?} on {live:?}");
        }
    }

    #[test]
    fn a_computed_value_keeps_the_expiry() {
        let becomes = |value: &[u8], expires_at_s| {
            let value = Bytes::copy_from_slice(value);
            let new = NewPair::Put { value: value.clone(), expires_at_s };
            Decision::Change(new, Modified::Updated { value })
        };
        let increment = |by| Modification::Increment { by };
        let append = || Modification::Append { bytes: Bytes::from_static(b"5") };
        let unfit = |unfit| Decision::Keep(Modified::Unfit(unfit));
        let rows = [
            (increment(1), None, becomes(b"1", 0)),
            (increment(1), Some(pair(b"41", 9)), becomes(b"42", 9)),
            (increment(1), Some(pair(b"x", 9)), unfit(Unfit::NotANumber)),
            (append(), None, becomes(b"5", 0)),
            (append(), Some(pair(b"4", 9)), becomes(b"45", 9)),
            (append(), Some(pair(&[7; 64 << 10], 0)), unfit(Unfit::TooLong { bytes: 65_537 })),
        ];
        for (change, live, expected) in rows {
            assert_eq!(decide(&change, live.clone()), expected, "{change:?}");
        }
    }
}
