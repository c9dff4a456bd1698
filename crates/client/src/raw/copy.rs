//! Copies: the pairs of a range with their expiry, region after region, each as one view of its leader.

use crate::Client;
use crate::backoff::{Pause, Tries};
use crate::call::Copying;
use crate::pd_rpc_client::status_text;
use crate::retry_decision::{decide_retry, text};
use bytes::Bytes;
use std::time::Duration;
use stele_proto::stele::kv::v1::{CopiedPair, CopyRequest, CopyResponse};
use stele_types::{KeyRange, RegionId, Result, key_after};
use tokio::time::timeout;

/// Longest wait for a response: the store repairs damaged pairs meanwhile.
const RESPONSE_WITHIN: Duration = Duration::from_secs(30);

/// What a copy returns: parts, one after the other, in key order. They tile the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Copied {
    /// The pairs that follow are those of one view of a region.
    Begin {
        /// First key of the part.
        start: Bytes,
        /// The region.
        region: RegionId,
        /// Index of its log that is at least that of each write in the view.
        index: u64,
    },
    /// The next pairs of the part.
    Pairs(Vec<CopiedPair>),
    /// The part has no more pairs.
    End {
        /// First key after the part; empty for no end. `None`: the part has no keys.
        end: Option<Bytes>,
    },
}

/// A running copy. Everything that was acknowledged before it was made is in it.
pub struct Copy {
    client: Client,
    /// Keys that no part has yet; `None` at the end.
    rest: Option<KeyRange>,
    part: Option<Part>,
    tries: Tries,
    /// Pause before the next part, after one that was interrupted.
    pause: Option<(Pause, String)>,
}

struct Part {
    stream: Copying,
    /// Whether the first response is still to be returned.
    is_first: bool,
    /// First key after the part; empty for no end.
    end: Bytes,
    /// Key after the last pair.
    after_last: Option<Bytes>,
    is_over: bool,
}

impl Client {
    /// Copies the pairs of a range in the column family of this handle. Fails as scans do.
    pub fn copy(&self, range: KeyRange) -> Copy {
        let rest = (!range.is_empty()).then_some(range);
        Copy { client: self.clone(), rest, part: None, tries: self.tries(), pause: None }
    }
}

impl Copy {
    /// Returns what comes next; `None` at the end. If a part is interrupted, it ends after its last pair, and
    /// another one begins. After an error no part is open, and another call goes on with the rest.
    pub async fn next(&mut self) -> Result<Option<Copied>> {
        loop {
            let Some(part) = &mut self.part else {
                match self.rest.clone() {
                    None => return Ok(None),
                    Some(rest) => match self.open(rest).await {
                        Ok(Some(begin)) => return Ok(Some(begin)),
                        Ok(None) => continue,
                        Err(error) => {
                            self.tries = self.client.tries();
                            return Err(error);
                        }
                    },
                }
            };
            if part.is_over {
                return Ok(Some(self.end_part()));
            }
            let response = match std::mem::take(&mut part.is_first) {
                true => Ok(Some(std::mem::take(&mut part.stream.first))),
                false => part.response().await,
            };
            let response = match response {
                Ok(Some(response)) => response,
                Ok(None) => {
                    let reason = "the stream ended".to_owned();
                    return Ok(Some(self.interrupted(Pause::Region, reason)));
                }
                Err(reason) => return Ok(Some(self.interrupted(Pause::Region, reason))),
            };
            if let Some(error) = &response.region_error {
                let pause = decide_retry(error).pause;
                return Ok(Some(self.interrupted(pause, text(error))));
            }
            if !response.error.is_empty() {
                return Ok(Some(self.interrupted(Pause::Region, response.error)));
            }
            part.is_over = response.is_last;
            if let Some(last) = response.pairs.last() {
                part.after_last = Some(key_after(&last.key));
                return Ok(Some(Copied::Pairs(response.pairs)));
            }
        }
    }

    async fn open(&mut self, rest: KeyRange) -> Result<Option<Copied>> {
        if let Some((pause, reason)) = self.pause.take() {
            self.tries.pause(pause, reason).await?;
        }
        let Self { client, tries, .. } = self;
        let route = client.router.locate(&rest.start, tries).await?;
        let within = rest.within(&route.region.range);
        let (start_key, end_key) = (within.start.clone(), within.end.clone());
        let request = CopyRequest { context: None, cf: client.family_name(), start_key, end_key };
        let opened = client.router.attempt(&route, &request, &client.options, tries).await?;
        let Some(stream) = opened else { return Ok(None) };
        let index = stream.first.index;
        let (is_first, is_over, after_last) = (true, false, None);
        // The store compared the epoch: its region has the keys of the route.
        self.part = Some(Part { stream, is_first, end: within.end, after_last, is_over });
        Ok(Some(Copied::Begin { start: within.start, region: route.region.id, index }))
    }

    /// Ends a part of which all pairs were returned.
    fn end_part(&mut self) -> Copied {
        let end = self.part.take().map(|part| part.end).unwrap_or_default();
        self.rest = self.rest.take().and_then(|rest| {
            let is_last = end.is_empty() || end == rest.end;
            (!is_last).then(|| KeyRange { start: end.clone(), end: rest.end })
        });
        self.tries = self.client.tries();
        Copied::End { end: Some(end) }
    }

    /// Ends a part after its last pair. The rest is copied from another view.
    fn interrupted(&mut self, pause: Pause, reason: String) -> Copied {
        let end = self.part.take().and_then(|part| part.after_last);
        if let (Some(rest), Some(end)) = (&mut self.rest, &end) {
            rest.start = end.clone();
            self.tries = self.client.tries();
        }
        if let Some(rest) = &self.rest {
            self.client.router.forget_key(&rest.start);
        }
        self.pause = Some((pause, reason));
        Copied::End { end }
    }
}

impl Part {
    async fn response(&mut self) -> Result<Option<CopyResponse>, String> {
        match timeout(RESPONSE_WITHIN, self.stream.rest.message()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(status)) => Err(status_text(&status)),
            Err(_) => Err("the store did not answer in time".to_owned()),
        }
    }
}
