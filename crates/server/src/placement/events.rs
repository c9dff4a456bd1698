//! Events: what the placement group recorded, from the log of its leader.

use super::PlacementService;
use super::forward::leader_calls;
use std::sync::Arc;
use stele_placement::events::recorded;
use stele_proto::stele::control::v1::{ListEventsRequest, ListEventsResponse, PlacementEvent};
use stele_types::LogIndex;
use tonic::Status;

leader_calls! {
    /// Returns what the placement group recorded from an entry of its log on.
    list_events, list_events(ListEventsRequest) -> ListEventsResponse = list_events_here;
}

impl PlacementService {
    async fn list_events_here(
        self: &Arc<Self>,
        request: ListEventsRequest,
    ) -> Result<ListEventsResponse, Status> {
        // What is read is applied here: a former leader returns less of it, and nothing else.
        let from = Some(request.next_index).filter(|index| *index > 0).map(LogIndex);
        let read = self.system.read_log(from).await;
        let log = read.map_err(|error| Status::unavailable(error.to_string()))?;
        let events = log.changes.iter().filter_map(|(index, change)| {
            // A record that a damaged node wrote hides no other one.
            let event = recorded(&change.key, change.value.as_deref()).ok()??;
            Some(PlacementEvent {
                index: index.0,
                subject: event.subject.as_str().to_owned(),
                name: event.name,
                what: event.what,
            })
        });
        Ok(ListEventsResponse {
            events: events.collect(),
            next_index: log.next.0,
            has_missed: log.has_missed,
            has_more: log.has_more,
        })
    }
}
