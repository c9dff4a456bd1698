//! Client requests that wait to be proposed, in order of arrival.

use crate::input::{AdminCall, Cas, CasNew, Header, RequestId, Write};
use std::collections::VecDeque;

/// Request that becomes a log entry.
pub(crate) enum Request {
    Write(Write),
    Cas(Cas),
    Admin(AdminCall),
}

impl Request {
    pub fn id(&self) -> RequestId {
        match self {
            Self::Write(write) => write.id,
            Self::Cas(cas) => cas.id,
            Self::Admin(call) => call.id,
        }
    }

    pub fn header(&self) -> &Header {
        match self {
            Self::Write(write) => &write.header,
            Self::Cas(cas) => &cas.header,
            Self::Admin(call) => &call.header,
        }
    }

    /// Returns the bytes of memory that count for it while it waits.
    pub fn bytes(&self) -> u64 {
        const OVERHEAD_BYTES: usize = 128;
        let payload = match self {
            Self::Write(write) => write.command.len(),
            Self::Cas(cas) => {
                let new = match &cas.new {
                    CasNew::Put { value, .. } => value.len(),
                    CasNew::Delete => 0,
                };
                cas.key.len() + cas.expected.as_ref().map_or(0, |value| value.len()) + new
            }
            Self::Admin(_) => 0,
        };
        (payload + OVERHEAD_BYTES) as u64
    }
}

/// Waiting requests. The store counts their bytes.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: VecDeque<(Request, Option<u64>)>,
}

impl Queue {
    pub fn push(&mut self, request: Request) {
        self.waiting.push_back((request, None));
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Removes the next request; returns it with the time at which a poll first saw it.
    pub fn pop(&mut self) -> Option<(Request, Option<u64>)> {
        self.waiting.pop_front()
    }

    /// Puts a request back at the front.
    pub fn push_front(&mut self, request: Request, seen_nanos: Option<u64>) {
        self.waiting.push_front((request, seen_nanos));
    }

    /// Records the arrival time of requests queued since the last poll.
    pub fn stamp_arrivals(&mut self, now_nanos: u64) {
        for (_, seen) in self.waiting.iter_mut().rev().take_while(|(_, seen)| seen.is_none()) {
            *seen = Some(now_nanos);
        }
    }

    /// Removes and returns requests past their deadline.
    pub fn expired(&mut self, now_nanos: u64) -> Vec<Request> {
        let over = |deadline: u64| deadline != 0 && deadline <= now_nanos;
        if !self.waiting.iter().any(|(request, _)| over(request.header().deadline_nanos)) {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.waiting);
        let (gone, kept): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(request, _)| over(request.header().deadline_nanos));
        self.waiting = kept.into();
        gone.into_iter().map(|(request, _)| request).collect()
    }
}
