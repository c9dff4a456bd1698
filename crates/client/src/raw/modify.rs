//! Read-modify-writes of one key. None is retried once it may have taken effect: it then fails with
//! `Undetermined`.

use crate::{Client, Ttl};
use bytes::Bytes;
use stele_proto::stele::kv::v1 as kv;
use stele_proto::stele::kv::v1::modify_request::Change;
use stele_types::Result;
use stele_types::command::Unfit;

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
        let response = self.send(&key, &request).await?;
        match response.refusal() {
            kv::Refusal::None => Ok(response),
            kv::Refusal::NotANumber => Err(Unfit::NotANumber.error()),
            kv::Refusal::Overflow => Err(Unfit::Overflow.error()),
            kv::Refusal::TooLong => Err(Unfit::TooLong { bytes: response.length }.error()),
        }
    }
}
