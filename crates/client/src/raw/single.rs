//! Operations on one key.

use crate::Client;
use crate::call::RawCall;
use bytes::Bytes;
use stele_proto::kvrpcpb;
use stele_types::Result;

/// How long a pair lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ttl {
    /// Until it is deleted.
    Endless,
    /// So many seconds more.
    Seconds(u64),
}

/// What a compare-and-swap found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// The key had the expected value and has the new one.
    pub succeeded: bool,
    /// The value before; `None`: there was none.
    pub previous: Option<Bytes>,
}

impl Client {
    /// The value of a key, as every write that was answered before left it.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>> {
        let key = key.into();
        let cf = self.family_name();
        let request = kvrpcpb::RawGetRequest { key: key.clone(), cf, context: None };
        let response = self.send(&key, &request).await?;
        Ok((!response.not_found).then_some(response.value))
    }

    /// Sets a key.
    pub async fn put(&self, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Result<()> {
        self.put_with_ttl(key, value, Ttl::Endless).await
    }

    /// Sets a key for a time.
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

    /// Removes a key; no error if there is none.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<()> {
        let key = key.into();
        let request = kvrpcpb::RawDeleteRequest {
            key: key.clone(),
            cf: self.family_name(),
            ..kvrpcpb::RawDeleteRequest::default()
        };
        self.send(&key, &request).await.map(drop)
    }

    /// How long a key has still to live; `None`: there is no such key.
    pub async fn ttl(&self, key: impl Into<Bytes>) -> Result<Option<Ttl>> {
        let key = key.into();
        let cf = self.family_name();
        let request = kvrpcpb::RawGetKeyTtlRequest { key: key.clone(), cf, context: None };
        let response = self.send(&key, &request).await?;
        let ttl = if response.ttl == 0 { Ttl::Endless } else { Ttl::Seconds(response.ttl) };
        Ok((!response.not_found).then_some(ttl))
    }

    /// Sets a key (`new` of `None`: removes it) if its value is `expected` (`None`: if there is
    /// none). Never repeated once it may have taken effect: it then fails with `Undetermined`.
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

    /// Sends a call to the region of `key` until it is answered.
    async fn send<C: RawCall>(&self, key: &Bytes, call: &C) -> Result<C::Response> {
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
    /// The wire's form: 0 for no end.
    pub(crate) fn seconds(self) -> u64 {
        match self {
            Self::Endless => 0,
            Self::Seconds(seconds) => seconds.max(1),
        }
    }
}
