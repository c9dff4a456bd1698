//! Operations on one key. A read-modify-write is not retried once it may have taken effect: it then
//! fails with `Undetermined`.

use crate::Client;
use crate::call::RawCall;
use bytes::Bytes;
use stele_proto::kvrpcpb;
use stele_proto::stele::kv::v1 as kv;
use stele_proto::stele::kv::v1::modify_request::Change;
use stele_types::command::Unfit;
use stele_types::{Error, Result};

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

    /// Returns the value of a key with the time that it has left, as one view has both. The read is
    /// linearizable.
    pub async fn get_with_ttl(&self, key: impl Into<Bytes>) -> Result<Option<(Bytes, Ttl)>> {
        let key = key.into();
        let cf = self.family_name();
        let request = kv::GetPairRequest { key: key.clone(), cf, context: None };
        let response = self.send(&key, &request).await?;
        let ttl = Ttl::of_seconds(response.ttl);
        Ok((!response.not_found).then_some((response.value, ttl)))
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
        Ok((!response.not_found).then_some(Ttl::of_seconds(response.ttl)))
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

    /// Sets or deletes a key of this handle's column family if the digest of its value meets the conditions
    /// of `request`, which has no context. Never retried once it may have taken effect: it then fails with
    /// `Undetermined`.
    pub async fn write_if(&self, request: kv::WriteIfRequest) -> Result<kv::WriteIfResponse> {
        let key = request.key.clone();
        let request = kv::WriteIfRequest { cf: self.family_name(), ..request };
        self.send(&key, &request).await
    }

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

    fn of_seconds(wire: u64) -> Self {
        if wire == 0 { Self::Endless } else { Self::Seconds(wire) }
    }
}

impl Client {
    /// Sets a key if it has no value. Returns the value that it has; `None` if it was set. The pair
    /// does not expire.
    pub async fn put_if_absent(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<Option<Bytes>> {
        self.put_if_absent_with_ttl(key, value, Ttl::Endless).await
    }

    /// Like [`Client::put_if_absent`], with a time to live.
    pub async fn put_if_absent_with_ttl(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
    ) -> Result<Option<Bytes>> {
        let put = kv::PutIfAbsent { value: value.into(), ttl: ttl.seconds() };
        Ok(self.modify(key.into(), Change::PutIfAbsent(put)).await?.previous)
    }

    /// Sets a key if it has a value. Returns the value that it had; `None` if it had none and nothing
    /// changed. The pair does not expire.
    pub async fn put_if_present(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<Option<Bytes>> {
        self.put_if_present_with_ttl(key, value, Ttl::Endless).await
    }

    /// Like [`Client::put_if_present`], with a time to live.
    pub async fn put_if_present_with_ttl(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
        ttl: Ttl,
    ) -> Result<Option<Bytes>> {
        let put = kv::PutIfPresent { value: value.into(), ttl: ttl.seconds() };
        Ok(self.modify(key.into(), Change::PutIfPresent(put)).await?.previous)
    }

    /// Adds to the number that a key holds as decimal text, and returns the sum. A key without a value
    /// counts as 0; a time to live goes on. Fails with `Invalid` if the value is not a number of 64
    /// bits with sign, or the sum is not.
    pub async fn increment(&self, key: impl Into<Bytes>, by: i64) -> Result<i64> {
        let increment = kv::Increment { by };
        Ok(self.modify(key.into(), Change::Increment(increment)).await?.number)
    }

    /// Adds bytes to the end of a value, and returns its length in bytes. A key without a value counts
    /// as empty; a time to live goes on. Fails with `Invalid` if the value would exceed 64 KiB.
    pub async fn append(&self, key: impl Into<Bytes>, bytes: impl Into<Bytes>) -> Result<u64> {
        let append = kv::Append { value: bytes.into() };
        Ok(self.modify(key.into(), Change::Append(append)).await?.length)
    }

    /// Deletes a key and returns the value that it had; `None` if it had none.
    pub async fn get_and_delete(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>> {
        let delete = kv::GetAndDelete {};
        Ok(self.modify(key.into(), Change::GetAndDelete(delete)).await?.previous)
    }

    async fn modify(&self, key: Bytes, change: Change) -> Result<kv::ModifyResponse> {
        let cf = self.family_name();
        let request =
            kv::ModifyRequest { context: None, cf, key: key.clone(), change: Some(change) };
        checked(self.send(&key, &request).await?)
    }
}

/// Fails if the value of the key did not allow the change.
pub(super) fn checked(response: kv::ModifyResponse) -> Result<kv::ModifyResponse> {
    match response.refusal() {
        kv::Refusal::None => Ok(response),
        kv::Refusal::NotANumber => Err(Unfit::NotANumber.error()),
        kv::Refusal::Overflow => Err(Unfit::Overflow.error()),
        kv::Refusal::TooLong => Err(Unfit::TooLong { bytes: response.length }.error()),
        kv::Refusal::Deadline => {
            let time_s = response.cluster_time_s;
            let text = format!("the deadline of the request does not allow it at {time_s} s");
            Err(Error::Refused(text))
        }
    }
}
