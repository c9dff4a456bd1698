//! Operations on whole ranges, region by region.

use crate::Client;
use crate::call::RawCall;
use crate::convert::clamp;
use stele_proto::kvrpcpb;
use stele_types::{KeyRange, Result};

/// A checksum of pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checksum {
    /// Exclusive or of the CRC-64/XZ of each pair's key and value.
    pub sum: u64,
    /// Number of pairs.
    pub pairs: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

impl Client {
    /// Deletes every key of a range, region after region. On an error some may be deleted.
    pub async fn delete_range(&self, range: KeyRange) -> Result<()> {
        let cf = self.family_name();
        let call = |within: KeyRange| kvrpcpb::RawDeleteRangeRequest {
            start_key: within.start,
            end_key: within.end,
            cf: cf.clone(),
            context: None,
        };
        self.each_region(range, call, |_| {}).await
    }

    /// Computes the checksum of a range of the default column family. Each region's part is of some
    /// moment of the call.
    pub async fn checksum(&self, range: KeyRange) -> Result<Checksum> {
        let call = |within: KeyRange| {
            let range = kvrpcpb::KeyRange { start_key: within.start, end_key: within.end };
            kvrpcpb::RawChecksumRequest { ranges: vec![range], ..Default::default() }
        };
        let mut total = Checksum::default();
        let add = |part: kvrpcpb::RawChecksumResponse| {
            total.sum ^= part.checksum;
            total.pairs += part.total_kvs;
            total.bytes += part.total_bytes;
        };
        self.each_region(range, call, add).await?;
        Ok(total)
    }

    /// Makes a call for each region's part of a range, ascending.
    async fn each_region<C: RawCall>(
        &self,
        range: KeyRange,
        call: impl Fn(KeyRange) -> C,
        mut done: impl FnMut(C::Response),
    ) -> Result<()> {
        let mut rest = range;
        let mut tries = self.tries();
        while !rest.is_empty() {
            let route = self.router.locate(&rest.start, &mut tries).await?;
            let within = clamp(&rest, &route.region.range);
            let call = call(within);
            let answer = self.router.attempt(&route, &call, &self.options, &mut tries).await?;
            let Some(response) = answer else { continue };
            done(response);
            if route.region.range.end.is_empty() {
                break;
            }
            rest.start = route.region.range.end.clone();
            // The time limit is per region.
            tries = self.tries();
        }
        Ok(())
    }
}
