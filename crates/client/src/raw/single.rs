//! Operations on one key.

use crate::Client;
use crate::call::RawCall;
use bytes::Bytes;
use stele_proto::kvrpcpb;
use stele_types::Result;

/// Time to live of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// The pair does not expire.
    Endless,
    /// The pair expires after so many seconds.
    Seconds(u64),
}

/// Result of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Whether the key had the expected value and now has the new one.
    pub succeeded: bool,
    /// Previous value; `None` if the key did not exist.
    pub previous: Option<Bytes>,
}

impl Client {
    /// Returns the value of a key. The read is linearizable.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>> {
        let key = key.into();
        let cf = self.family_name();
        let request = kvrpcpb::RawGetRequest { key: key.clone(), cf, context: None };
        let response = self.send(&key, &request).await?;
        Ok((!response.not_found).then_some(response.value))
    }

    /// Sets a key. The pair does not expire.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<()> {
        self.put_with_ttl(key, value, Ttl::Endless).await
    }

    /// Sets a key with a time to live.
    pub async fn put_with_ttl(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
    ) -> Result<()> {
        let (key, value) = (key.into(), value.into());
        let request = kvrpcpb::RawPutRequest {
            key: key.clone(),
            value,
            cf: self.family_name(),
            ttl: ttl.seconds(),
            ..kvrpcpb::RawPutRequest::default()
        };
        self.send(&key, &request).await.map(drop)
    }

    /// Deletes a key; succeeds if it does not exist.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<()> {
        let key = key.into();
        let request = kvrpcpb::RawDeleteRequest {
            key: key.clone(),
            cf: self.family_name(),
            ..kvrpcpb::RawDeleteRequest::default()
        };
        self.send(&key, &request).await.map(drop)
    }

    /// Returns the remaining time to live of a key; `None` if it does not exist.
    pub async fn ttl(&self, key: impl Into<Bytes>) -> Result<Option<Ttl>> {
        let key = key.into();
        let cf = self.family_name();
        let request = kvrpcpb::RawGetKeyTtlRequest { key: key.clone(), cf, context: None };
        let response = self.send(&key, &request).await?;
        let ttl = if response.ttl == 0 { Ttl::Endless } else { Ttl::Seconds(response.ttl) };
        Ok((!response.not_found).then_some(ttl))
    }

    /// Sets a key to `new` (`None` deletes it) if its value is `expected` (`None`: if it does not
    /// exist). Never retried once it may have taken effect: it then fails with `Undetermined`.
    pub async fn compare_and_swap(
        &self,
        key: impl Into<Bytes>,
        expected: Option<Bytes>,
        new: Option<Bytes>,
        ttl: Ttl,
    ) -> Result<Swap> {
        let key = key.into();
        let request = kvrpcpb::RawCasRequest {
            key: key.clone(),
            delete: new.is_none(),
            value: new.unwrap_or_default(),
            previous_not_exist: expected.is_none(),
            previous_value: expected.unwrap_or_default(),
            cf: self.family_name(),
            ttl: ttl.seconds(),
            context: None,
        };
        let response = self.send(&key, &request).await?;
        let previous = (!response.previous_not_exist).then_some(response.previous_value);
        Ok(Swap { succeeded: response.succeed, previous })
    }

    /// Sends a call to the region of `key` until a store responds.
    pub(super) async fn send<C: RawCall>(&self, key: &Bytes, call: &C) -> Result<C::Response> {
        let mut tries = self.tries();
        loop {
            let route = self.router.locate(key, &mut tries).await?;
            let answer = self.router.attempt(&route, call, &self.options, &mut tries).await?;
            if let Some(response) = answer {
                return Ok(response);
            }
        }
    }
}

impl Ttl {
    /// Returns the value on the wire: 0 for no expiry.
    pub(crate) fn seconds(self) -> u64 {
        match self {
            Self::Endless => 0,
            Self::Seconds(seconds) => seconds.max(1),
        }
    }
}
