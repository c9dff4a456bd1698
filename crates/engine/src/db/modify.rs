//! Read-modify-writes of one key, and the store modes of KV-SSD (section 3.1) made of them.
//!
//! A modification joins a group commit like a put. The group's leader decides it and logs its
//! result.
//!
//! Invariant: no write to the key takes effect between the decision and its result. One leader at a
//! time commits; all groups before its own are applied; and it decides after the other operations of
//! its group, in the order in which the modifications joined.
//! Test: `modifications_of_one_group_and_of_two_are_decided_one_after_the_other`.

use super::commit::Completion;
use super::{Db, Located, lookup, lookup_key};
use crate::store::{Shared, Store};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use stele_storage::{Decision, Modification, Modified, NewPair, Overlay, Pair, decide};
use stele_types::command::{self, Unfit};
use stele_types::size::APPENDED_VALUE_BYTES_MAX;
use stele_types::{CommandBuilder, Error, LogIndex, Result, is_expired};

/// Condition of a put (KV-SSD: store modes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Sets the key in any case.
    Post,
    /// Sets the key only if it has a value.
    UpdateOnly,
    /// Sets the key only if it has no value.
    NoOverwrite,
    /// Adds the bytes to the end of the value; an absent one counts as empty. The value has at most
    /// [`APPENDED_VALUE_BYTES_MAX`] bytes then, and its expiry stays.
    Append,
}

/// Result of a put with a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// The pair is durable.
    Done,
    /// Nothing changed: [`StoreMode::NoOverwrite`], and the key has a value.
    Exists,
    /// Nothing changed: [`StoreMode::UpdateOnly`], and the key has no value.
    Missing,
}

pub(crate) struct PendingModification {
    key: Bytes,
    change: Modification,
    /// Unix seconds of the call: a pair that expired before counts as absent.
    now_s: u64,
    /// Result of a lookup before the call joined its group: the leader rarely waits for the device.
    known: Option<Located>,
    /// The result says only whether the key had a value, so no value is read.
    keys_only: bool,
    result: Arc<OnceLock<Result<Modified>>>,
}

impl PendingModification {
    /// Returns the bytes that it adds to its group at most.
    pub(super) fn bytes_max(&self) -> usize {
        let value = match &self.change {
            Modification::Append { .. } => APPENDED_VALUE_BYTES_MAX,
            change => change.value_bytes(),
        };
        self.key.len() + value
    }

    fn is_live(&self, expires_at_s: u64) -> bool {
        !is_expired(expires_at_s, self.now_s)
    }

    fn committed(&self, shared: &Shared) -> Result<Option<Pair>> {
        // bug engine.modification_decided_early: return Ok(self.known.clone().map(|it| self.pair(it)));
        let is_live = |expires_at_s| self.is_live(expires_at_s);
        let located = match self.keys_only {
            true => lookup_key(shared, &self.key, is_live)?,
            false => lookup(shared, &self.key, is_live, self.known.as_ref())?,
        };
        Ok(located.map(|located| self.pair(located)))
    }

    fn pair(&self, located: Located) -> Pair {
        let Located { value, expires_at_s, .. } = located;
        Pair { key: self.key.clone(), value, expires_at_s }
    }

    fn decide(
        &self,
        shared: &Shared,
        before: &Overlay,
    ) -> Result<(Option<CommandBuilder>, Modified)> {
        let effect = before.effects().get(&self.key);
        // bug engine.modification_ignores_group: let effect = None;
        let pair = match effect {
            Some(pair) => pair,
            None => self.committed(shared)?,
        };
        let live = pair.filter(|pair| self.is_live(pair.expires_at_s));
        Ok(match decide(&self.change, live) {
            Decision::Change(new, result) => (Some(new.command(&self.key)?), result),
            Decision::Keep(result) => (None, result),
        })
    }
}

/// Decides the modifications of a group and adds their results to its operations. A failure is the
/// result of its own call only.
pub(super) fn decide_all(
    store: &Store,
    group: &mut CommandBuilder,
    modifications: Vec<PendingModification>,
) -> Result<()> {
    if modifications.is_empty() {
        return Ok(());
    }
    let mut before = Overlay::default();
    let mut index = LogIndex(1);
    if !group.is_empty() {
        before.push(index, group.clone().build().bytes())?;
    }
    for modification in modifications {
        let decided = modification.decide(store.shared(), &before).and_then(|(command, result)| {
            if let Some(command) = command {
                group.extend(&command)?;
                index = index.next();
                before.push(index, command.build().bytes())?;
            }
            Ok(result)
        });
        // Only this leader sets it.
        let _ = modification.result.set(decided);
    }
    Ok(())
}

struct PendingResult {
    completion: Completion,
    result: Arc<OnceLock<Result<Modified>>>,
}

impl PendingResult {
    /// Waits until the modification is durable and visible.
    fn wait(self) -> Result<Modified> {
        self.completion.wait()?;
        let result = Arc::into_inner(self.result).and_then(OnceLock::into_inner);
        result.unwrap_or_else(|| Err(Error::Busy("the modification was not decided".into())))
    }
}

impl Db {
    /// Changes the pair of `key` depending on its value, atomically; durable and visible on return.
    pub fn modify(&self, key: &[u8], change: Modification) -> Result<Modified> {
        let now_s = self.clock.unix_seconds();
        self.submit_modification(key, change, now_s, false)?.wait()
    }

    /// Sets `key` under the condition of `mode`, atomically; durable and visible on return. Fails
    /// with `Invalid` if an append makes a value that is too long.
    pub fn put_with_mode(&self, key: &[u8], value: &[u8], mode: StoreMode) -> Result<Stored> {
        command::check_user_pair(key, value)?;
        let new = || NewPair::Put { value: Bytes::copy_from_slice(value), expires_at_s: 0 };
        let (change, refused) = match mode {
            StoreMode::Post => return self.put(key, value).map(|()| Stored::Done),
            StoreMode::UpdateOnly => (Modification::Replace { new: new() }, Stored::Missing),
            StoreMode::NoOverwrite => {
                (Modification::Compare { expected: None, new: new() }, Stored::Exists)
            }
            StoreMode::Append => {
                let bytes = Bytes::copy_from_slice(value);
                return match self.modify(key, Modification::Append { bytes })? {
                    Modified::Unfit(unfit) => Err(Unfit::error(unfit)),
                    _ => Ok(Stored::Done),
                };
            }
        };
        let now_s = self.clock.unix_seconds();
        match self.submit_modification(key, change, now_s, true)?.wait()? {
            Modified::Unchanged { .. } => Ok(refused),
            _ => Ok(Stored::Done),
        }
    }

    /// Removes `key` and returns the value that it had, atomically (KV-SSD: retrieve and delete).
    pub fn retrieve_and_delete(&self, key: &[u8]) -> Result<Option<Bytes>> {
        match self.modify(key, Modification::GetAndDelete)? {
            Modified::Replaced { previous } => Ok(previous.map(|pair| pair.value)),
            _ => Ok(None),
        }
    }

    fn submit_modification(
        &self,
        key: &[u8],
        change: Modification,
        now_s: u64,
        keys_only: bool,
    ) -> Result<PendingResult> {
        match &change {
            Modification::Compare { new: NewPair::Put { value, .. }, .. }
            | Modification::Replace { new: NewPair::Put { value, .. } }
            | Modification::Set { new: NewPair::Put { value, .. } } => {
                command::check_user_pair(key, value)?;
            }
            _ => command::check_user_key(key)?,
        }
        let shared = self.store.shared();
        let is_live = |expires_at_s| !is_expired(expires_at_s, now_s);
        let known = if keys_only { None } else { lookup(shared, key, is_live, None)? };
        let result = Arc::new(OnceLock::new());
        let modification = PendingModification {
            key: Bytes::copy_from_slice(key),
            change,
            now_s,
            known,
            keys_only,
            result: result.clone(),
        };
        let completion = self.pipeline.submit_modification(modification)?;
        Ok(PendingResult { completion, result })
    }
}
