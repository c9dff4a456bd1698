//! Logs of the fake cluster's regions, and the streams that follow them.

use super::{Service, State, error, region};
use bytes::Bytes;
use std::pin::Pin;
use std::time::Duration;
use stele_proto::errorpb;
use stele_proto::metapb;
use stele_proto::stele::kv::v1::followed_write::Kind;
use stele_proto::stele::kv::v1::region_change::Kind as ChangeKind;
use stele_proto::stele::kv::v1::{
    FollowRequest, FollowResponse, FollowedEntry, FollowedPut, FollowedWrite, RegionChange,
};
use stele_types::Region;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

const FIRST_INDEX: u64 = 6;
const POLL: Duration = Duration::from_millis(2);

pub(crate) type Responses = Pin<Box<dyn Stream<Item = Result<FollowResponse, Status>> + Send>>;

#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: Vec<FollowedEntry>,
    /// Number of entries that no store has any longer.
    pub lost: u64,
}

impl Log {
    pub(crate) fn next_index(&self) -> u64 {
        FIRST_INDEX + self.entries.len() as u64
    }
}

pub(super) fn put(key: &Bytes, value: &Bytes) -> FollowedWrite {
    let put = FollowedPut { value: value.clone(), expires_at_s: 0 };
    FollowedWrite { cf: String::new(), key: key.clone(), kind: Some(Kind::Put(put)), old: None }
}

pub(super) fn delete(key: &Bytes) -> FollowedWrite {
    FollowedWrite { cf: String::new(), key: key.clone(), kind: Some(Kind::Delete(true)), old: None }
}

pub(super) fn delete_range(start: Bytes, end: Bytes) -> FollowedWrite {
    FollowedWrite { cf: String::new(), key: start, kind: Some(Kind::DeleteRangeTo(end)), old: None }
}

impl State {
    pub(super) fn log_write(&mut self, region: u64, write: FollowedWrite) {
        self.log(region, vec![write], None);
    }

    pub(super) fn log_change(&mut self, after: &Region, kind: ChangeKind) {
        let region = Some(region(after));
        self.log(after.id.0, Vec::new(), Some(RegionChange { region, kind: Some(kind) }));
    }

    fn log(&mut self, region: u64, writes: Vec<FollowedWrite>, change: Option<RegionChange>) {
        let log = self.logs.entry(region).or_default();
        let index = log.next_index();
        log.entries.push(FollowedEntry { index, term: 6, writes, change });
    }

    /// Returns the next response of a stream; `None` if there is nothing to send.
    fn follow(&mut self, request: &FollowRequest) -> Option<FollowResponse> {
        let id = request.context.as_ref().unwrap().region_id;
        if let Some(refused) = self.unfollowed.pop_front() {
            return Some(FollowResponse { region_error: Some(refused), ..Default::default() });
        }
        let known = self.regions.iter().find(|region| region.id.0 == id).map(region);
        let log = match (known.is_some(), self.logs.contains_key(&id)) {
            (false, false) => {
                let missing = errorpb::RegionNotFound { region_id: id };
                let refused = error(|error| error.region_not_found = Some(missing));
                return Some(FollowResponse { region_error: Some(refused), ..Default::default() });
            }
            _ => self.logs.entry(id).or_default(),
        };
        let (next_index, first) = (log.next_index(), FIRST_INDEX + log.lost);
        match request.next_index {
            0 => Some(FollowResponse { next_index, region: known, ..Default::default() }),
            next if next < first || (known.is_none() && next >= next_index) => {
                Some(FollowResponse { too_old: true, ..Default::default() })
            }
            next if next >= next_index => None,
            next => {
                let entries = log.entries.iter().filter(|entry| entry.index >= next);
                let entries: Vec<FollowedEntry> = entries.take(3).cloned().collect();
                let next_index = entries.last().map_or(next, |entry| entry.index + 1);
                Some(FollowResponse { entries, next_index, ..Default::default() })
            }
        }
    }
}

impl Service {
    pub(super) fn followed(&self, mut request: FollowRequest) -> Responses {
        let (service, (out, responses)) = (self.clone(), mpsc::channel(1));
        tokio::spawn(async move {
            loop {
                let response = service.state().follow(&request);
                let Some(response) = response else {
                    if out.is_closed() {
                        return;
                    }
                    tokio::time::sleep(POLL).await;
                    continue;
                };
                let has_ended = response.too_old || response.region_error.is_some();
                request.next_index = response.next_index;
                if out.send(Ok(response)).await.is_err() || has_ended {
                    return;
                }
            }
        });
        Box::pin(ReceiverStream::new(responses))
    }
}

/// Makes the descriptors of the regions that a split made.
pub(super) fn children(parts: &[&Region]) -> Vec<metapb::Region> {
    parts.iter().map(|part| region(part)).collect()
}
