//! Calls with keys of their own, and what must be true of each once it has ended.

use super::network::{Network, key};
use crate::fake::Stored;
use bytes::Bytes;
use stele_client::{Client, PutPair, Ttl};
use stele_types::size::USER_KEY_BYTES_MAX;
use stele_types::{ColumnFamily, Error, KeyRange, Partial, Result};

/// Keys of a call, at most.
const KEYS_MAX: u32 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    LongPut,
    Delete,
    Swap,
    Increment,
    Append,
    PutIfAbsent,
    GetAndDelete,
    BatchPut,
    BatchDelete,
    BatchWithBadKey,
    DeleteRange,
}

use Kind::*;

const KINDS: [Kind; 11] = [
    Put,
    LongPut,
    Delete,
    Swap,
    Increment,
    Append,
    PutIfAbsent,
    GetAndDelete,
    BatchPut,
    BatchDelete,
    BatchWithBadKey,
];

/// One call. No other call has its keys.
#[derive(Debug)]
pub(super) struct Call {
    pub kind: Kind,
    keys: Vec<(String, u32)>,
}

impl Kind {
    fn deletes(self) -> bool {
        matches!(self, Delete | GetAndDelete | BatchDelete | DeleteRange)
    }

    fn family(self) -> ColumnFamily {
        if self == DeleteRange { ColumnFamily::Lock } else { ColumnFamily::Default }
    }

    fn family_name(self) -> String {
        if self == DeleteRange { "lock".to_owned() } else { String::new() }
    }

    /// Whether a repetition is another effect.
    fn is_once(self) -> bool {
        matches!(self, Swap | Increment | Append | PutIfAbsent | GetAndDelete)
    }
}

impl Call {
    /// Draws a call. The first of a run deletes a range: it is the only one with keys of its family.
    pub(super) fn draw(id: u32, network: &Network) -> Self {
        let kind = match id {
            0 => DeleteRange,
            _ => match KINDS[network.below(KINDS.len() as u64) as usize] {
                // Its bytes take time.
                LongPut if network.below(3) > 0 => Put,
                kind => kind,
            },
        };
        let count = match kind {
            BatchPut | BatchDelete | BatchWithBadKey => 2 + network.below(12) as u32,
            DeleteRange => 26,
            _ => 1,
        };
        let initial = |at: u32| match kind {
            DeleteRange => b'a' + at as u8,
            _ => b'a' + network.below(26) as u8,
        };
        let keys = (0..count).map(|at| {
            let number = id * KEYS_MAX + at;
            (key(initial(at), number), number)
        });
        let call = Self { kind, keys: keys.collect() };
        if kind.deletes() {
            for (key, _) in &call.keys {
                let key = (kind.family_name(), Bytes::from(key.clone()));
                let stored = Stored { value: Bytes::from_static(b"v"), ttl: 0 };
                network.state().pairs.insert(key, stored);
            }
        }
        call
    }

    fn range(&self) -> KeyRange {
        let [first, .., last] = &self.keys[..] else { panic!("a range of one key") };
        KeyRange::new(first.0.clone(), format!("{}+", last.0))
    }

    /// Makes the call. An answer of another effect than the call's is a panic.
    pub(super) async fn make(&self, client: &Client) -> Result<()> {
        let client = client.family(self.kind.family());
        let keys = || self.keys.iter().map(|(key, _)| Bytes::from(key.clone()));
        let key = keys().next().unwrap();
        let pairs = || keys().map(|key| PutPair::new(key, "v"));
        match self.kind {
            Put => client.put(key, "v").await,
            LongPut => client.put(key, vec![b'v'; 65 << 10]).await,
            Delete => client.delete(key).await,
            Swap => {
                let swap =
                    client.compare_and_swap(key, None, Some("v".into()), Ttl::Endless).await?;
                assert!(swap.succeeded, "{swap:?}");
                Ok(())
            }
            Increment => client.increment(key, 1).await.map(|sum| assert_eq!(sum, 1)),
            Append => client.append(key, "v").await.map(|length| assert_eq!(length, 1)),
            PutIfAbsent => client.put_if_absent(key, "v").await.map(|old| assert_eq!(old, None)),
            GetAndDelete => client.get_and_delete(key).await.map(|old| assert!(old.is_some())),
            BatchPut => client.batch_put(pairs().collect()).await,
            BatchDelete => client.batch_delete(keys().collect()).await,
            BatchWithBadKey => {
                let bad = PutPair::new(vec![b'z'; USER_KEY_BYTES_MAX + 1], "v");
                client.batch_put(pairs().chain([bad]).collect()).await
            }
            DeleteRange => client.delete_range(self.range()).await,
        }
    }

    fn times(&self, key: &str, network: &Network) -> u64 {
        let state = network.state();
        let found = state.pairs.get(&(self.kind.family_name(), Bytes::from(key.to_owned())));
        match (self.kind, found) {
            (Increment, Some(stored)) => String::from_utf8_lossy(&stored.value).parse().unwrap(),
            (Append, Some(stored)) => stored.value.len() as u64,
            (kind, found) => u64::from(found.is_some() != kind.deletes()),
        }
    }

    pub(super) fn check(&self, ended: &Result<()>, network: &Network) -> Result<(), String> {
        let times: Vec<u64> = self.keys.iter().map(|(key, _)| self.times(key, network)).collect();
        let executed = times.iter().filter(|times| **times > 0).count() as u64;
        let is_any_taken = self.keys.iter().any(|(_, number)| network.has_taken(*number));
        if self.kind.is_once() && times.iter().any(|times| *times > 1) {
            return Err(format!("executed {times:?} times"));
        }
        if self.kind == BatchWithBadKey {
            let is_refused = matches!(ended, Err(Error::Invalid(_)));
            return match is_refused && !is_any_taken {
                true => Ok(()),
                false => Err("a batch with a bad key was sent".to_owned()),
            };
        }
        match ended {
            Ok(()) if executed == times.len() as u64 => Ok(()),
            Ok(()) => Err(format!("done, and executed {times:?} times")),
            Err(Error::Undetermined(_)) if is_any_taken => Ok(()),
            Err(Error::Undetermined(_)) => Err("unknown, and never sent".to_owned()),
            Err(Error::Partial(partial)) => self.check_partial(partial, executed, network),
            Err(_) if executed == 0 => Ok(()),
            Err(_) => Err(format!("not done, and executed {times:?} times")),
        }
    }

    fn check_partial(
        &self,
        partial: &Partial,
        executed: u64,
        network: &Network,
    ) -> Result<(), String> {
        let Partial { done, not_done, unknown, .. } = *partial;
        if self.kind == DeleteRange {
            let range = partial.not_reached.as_ref();
            let mut not_reached = self
                .keys
                .iter()
                .filter(|(key, _)| range.is_some_and(|range| range.contains(key.as_bytes())));
            return match not_reached.find(|(key, _)| self.times(key, network) > 0) {
                None => Ok(()),
                Some((key, _)) => Err(format!("{key} is not reached, and deleted")),
            };
        }
        let taken = self.keys.iter().filter(|(_, number)| network.has_taken(*number)).count();
        if done + not_done + unknown != self.keys.len() as u64 {
            return Err("the counts are not those of the keys".to_owned());
        }
        if executed < done || executed > done + unknown {
            return Err(format!("executed for {executed} keys"));
        }
        if done + unknown > taken as u64 {
            return Err(format!("sent for {taken} keys"));
        }
        Ok(())
    }
}
