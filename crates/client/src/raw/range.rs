//! Operations on whole ranges, region by region.

use crate::Client;
use crate::call::RawCall;
use bytes::Bytes;
use stele_proto::kvrpcpb;
use stele_types::command::check_user_key;
use stele_types::{Error, KeyRange, Partial, Result, Unit};

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
    /// Deletes every key of a range, region after region, within the time limit of one call. Fails with
    /// `Partial` if the keys of some regions are deleted and others are not, or may not be.
    pub async fn delete_range(&self, range: KeyRange) -> Result<()> {
        check_user_key(&range.start)?;
        check_user_key(&range.end)?;
        let cf = self.family_name();
        let call = |within: KeyRange| kvrpcpb::RawDeleteRangeRequest {
            start_key: within.start,
            end_key: within.end,
            cf: cf.clone(),
            context: None,
        };
        self.each_region_once(range, call).await
    }

    /// Makes a call for each region's part of a range, within the time limit of one call. Fails with `Partial`
    /// if the call is done for some regions and not for others, or may not be.
    pub(crate) async fn each_region_once<C: RawCall>(
        &self,
        range: KeyRange,
        call: impl Fn(KeyRange) -> C,
    ) -> Result<()> {
        let done = self.each_region(range, call, |_| {}, TimeLimit::Call).await;
        done.map_err(|(progress, first)| progress.into_error(first))
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
        let added = self.each_region(range, call, add, TimeLimit::Region).await;
        added.map(|()| total).map_err(|(_, error)| error)
    }

    /// Makes a call for each region's part of a range, ascending. A failure comes with the progress
    /// until then.
    async fn each_region<C: RawCall>(
        &self,
        range: KeyRange,
        call: impl Fn(KeyRange) -> C,
        mut done: impl FnMut(C::Response),
        limit: TimeLimit,
    ) -> Result<(), (Progress, Error)> {
        let mut progress = Progress { rest: range, ..Progress::default() };
        let mut tries = self.tries();
        while !progress.rest.is_empty() {
            let route = match self.router.locate(&progress.rest.start, &mut tries).await {
                Ok(route) => route,
                Err(error) => return Err((progress, error)),
            };
            let within = progress.rest.within(&route.region.range);
            let call = call(within.clone());
            let answer = self.router.attempt(&route, &call, &self.options, &mut tries).await;
            progress.tried(within, tries.is_ambiguous());
            match answer {
                Ok(Some(response)) => done(response),
                Ok(None) => continue,
                Err(error) => return Err((progress, error)),
            }
            if route.region.range.end.is_empty() {
                break;
            }
            progress.done_below(route.region.range.end.clone());
            // bug client.range_renews_its_time: always
            if limit == TimeLimit::Region {
                tries = self.tries();
            }
            tries.continue_with(progress.is_ambiguous);
        }
        Ok(())
    }
}

/// What has a time limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeLimit {
    Call,
    Region,
}

#[derive(Debug, Default)]
struct Progress {
    regions_done: u64,
    /// Keys that are not known to be done.
    rest: KeyRange,
    /// Keys of the last try in `rest`; if any may have taken effect, of all tries: regions change in
    /// between.
    tried: Option<KeyRange>,
    is_ambiguous: bool,
}

impl Progress {
    fn tried(&mut self, within: KeyRange, is_ambiguous: bool) {
        let end = match self.tried.take().filter(|_| is_ambiguous) {
            Some(before) if before.is_below_end(&within.end) && !within.end.is_empty() => {
                before.end
            }
            _ => within.end,
        };
        self.tried = Some(KeyRange { start: within.start, end });
        self.is_ambiguous = is_ambiguous;
    }

    fn done_below(&mut self, end: Bytes) {
        self.regions_done += 1;
        self.rest.start = end.clone();
        let tried = self.tried.take().map(|tried| KeyRange { start: end, ..tried });
        self.tried = tried.filter(|tried| self.is_ambiguous && !tried.is_empty());
        self.is_ambiguous = self.tried.is_some();
    }

    fn into_error(self, first: Error) -> Error {
        let (not_done, unknown) = match (&self.tried, self.is_ambiguous) {
            (None, _) => (0, 0),
            (Some(_), false) => (1, 0),
            (Some(_), true) => (0, 1),
        };
        let not_reached = match self.tried {
            None => Some(self.rest),
            Some(tried) if tried.end.is_empty() => None,
            Some(tried) => Some(KeyRange { start: tried.end, end: self.rest.end }),
        };
        let not_reached = not_reached.filter(|range| !range.is_empty());
        let (unit, done) = (Unit::Regions, self.regions_done);
        Partial { unit, done, not_done, unknown, not_reached, first }.into_error()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(progress: Progress) -> String {
        let text = progress.into_error(Error::Refused("no".to_owned())).to_string();
        text.split_once(';').map_or(text.clone(), |(counts, _)| counts.to_owned())
    }

    #[test]
    fn a_range_done_in_part_tells_what_is_done_unknown_and_not_reached() {
        let mut progress = Progress { rest: KeyRange::new("a", "z"), ..Progress::default() };
        progress.tried(KeyRange::new("a", "c"), false);
        progress.done_below("c".into());
        // A try for [c, p) may have taken effect. Then the region was split at g.
        progress.tried(KeyRange::new("c", "p"), true);
        progress.tried(KeyRange::new("c", "g"), true);
        progress.done_below("g".into());
        assert!(progress.is_ambiguous, "the first try may delete the keys from g to p later");
        progress.tried(KeyRange::new("g", "k"), true);
        assert_eq!(
            error(progress),
            "not all was done: 2 regions done, 0 not done, 1 of unknown outcome, none from key \"p\" on"
        );
        let mut progress = Progress { rest: KeyRange::new("a", ""), ..Progress::default() };
        progress.tried(KeyRange::new("a", "c"), true);
        progress.done_below("c".into());
        assert!(!progress.is_ambiguous, "all its keys are done");
        progress.tried(KeyRange::new("c", ""), false);
        assert_eq!(error(progress), "not all was done: 1 region done, 1 not done");
        let progress = Progress { rest: KeyRange::new("a", ""), ..Progress::default() };
        assert_eq!(error(progress), "refused: no");
    }
}
