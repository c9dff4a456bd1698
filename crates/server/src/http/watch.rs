//! Watch of a range as server-sent events. It reads the logs of regions as every watch does (docs/watch.md).
//!
//! ```text
//! id: TOKEN                       where the watch continues after all events before this line
//! event: put                      data: {"key": TEXT, "value": TEXT, "expires_at_s": SECONDS}
//! event: delete                   data: {"key": TEXT}
//! event: delete_range             data: {"start": TEXT, "end": TEXT}
//! event: resolved                 data: {}
//! event: error                    data: {"error": {...}}, and the end
//! ```
//!
//! A client that connects again sends the last `id` as `Last-Event-ID`, as browsers and libraries do. Events
//! after the last `id` that it received come again.
//!
//! Invariant: a token is sent after all events that the watch returned before it.
//! Test: `a_watch_over_http_continues_from_its_last_event_id`.
//!
//! Invariant: a right that is taken back ends the watch.
//! Test: `a_right_that_is_taken_back_ends_a_watch_over_http`.

use super::encoding::put_bytes;
use super::{Asked, HttpFailure, HttpService, may_read};
use crate::access::Rights;
use crate::memory::RequestMemory;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{FutureExt, stream};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use stele_client::{OldValue, Token, Watch, WatchEvent, WatchFrom, WatchOptions};
use stele_types::KeyRange;
use tokio::sync::{OwnedSemaphorePermit, watch as signal};
use tokio::time::{Instant, sleep};

/// Watches that a node serves at once.
pub(super) const WATCHES_MAX: usize = 256;
/// Regions of which a watch reads the logs at once.
const STREAMS_MAX: usize = 32;
/// Memory of a watch beside its events.
const WATCH_BYTES: u64 = 64 << 10;
/// Bytes of events that are sent together, unless one event has more.
const CHUNK_BYTES_MAX: usize = 32 << 10;
/// Time between two checks of the caller's rights.
const CHECK: Duration = Duration::from_secs(1);
/// Time after which a comment is sent: proxies close connections that are idle for longer.
const COMMENT_AFTER: Duration = Duration::from_secs(15);
/// Least time between two tokens of more than [`LONG_TOKEN_BYTES`].
const LONG_TOKEN_PAUSE: Duration = Duration::from_secs(1);
const LONG_TOKEN_BYTES: usize = 4 << 10;
const RESOLVED_INTERVAL: Duration = Duration::from_secs(1);
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

impl HttpService {
    /// GET of a stream that ends with its client, an error or the node.
    pub(super) async fn watch(&self, asked: Asked) -> Result<Response, HttpFailure> {
        let (range, family) = (asked.query.range()?, asked.family()?);
        let options = WatchOptions {
            resolved_interval: asked.query.flag("resolved")?.then_some(RESOLVED_INTERVAL),
            streams_max: STREAMS_MAX,
            old_values: asked.query.flag("old_values")?,
        };
        let from = from(&asked)?;
        asked.check_range(&range)?;
        let permit = Arc::clone(&self.0.watches).try_acquire_owned();
        let permit = permit.map_err(|_| HttpFailure::too_many_watches())?;
        asked.memory.charge(WATCH_BYTES)?;
        let client = self.client(family).await?;
        let watch = client.watch_with(range.clone(), from, options).await?;
        let events = Events {
            watch,
            range,
            rights: asked.rights,
            stop: self.0.stop.clone(),
            sent_at: Instant::now(),
            long_token_at: None,
            is_begun: false,
            has_ended: false,
            _permit: permit,
            _memory: asked.memory,
        };
        let chunks = stream::unfold(events, async |mut events| {
            let chunk = events.next_chunk().await?;
            Some((Ok::<_, Infallible>(chunk), events))
        });
        let mut response = Response::new(Body::from_stream(chunks));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

async fn stopped(stop: &mut signal::Receiver<bool>) {
    // Without a sender the node has ended.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Returns where a watch begins: after the last event that the caller has, or now.
fn from(asked: &Asked) -> Result<WatchFrom, HttpFailure> {
    let last = asked.headers.get(LAST_EVENT_ID).filter(|last| !last.is_empty());
    let text = match last {
        // A client that connects again repeats its parameters too.
        Some(last) => Some(last.to_str().map_err(|_| {
            HttpFailure::invalid("the header Last-Event-ID is no token of a watch".to_owned())
        })?),
        None => asked.query.text("after")?,
    };
    match text {
        Some(text) => Ok(WatchFrom::Token(text.parse::<Token>()?)),
        None => Ok(WatchFrom::Now),
    }
}

/// Events of a watch on their way to the client. The next ones are taken when the connection has room.
struct Events {
    watch: Watch,
    range: KeyRange,
    rights: Rights,
    stop: signal::Receiver<bool>,
    sent_at: Instant,
    /// Time of the last token, if it was long.
    long_token_at: Option<Instant>,
    is_begun: bool,
    has_ended: bool,
    _permit: OwnedSemaphorePermit,
    _memory: Arc<RequestMemory>,
}

impl Events {
    /// Returns the next bytes; `None` at the end.
    async fn next_chunk(&mut self) -> Option<Bytes> {
        if self.has_ended {
            return None;
        }
        let mut chunk = Vec::new();
        if !std::mem::replace(&mut self.is_begun, true) {
            // The client continues from here if the connection ends before the first event.
            self.put_token(&mut chunk);
        }
        while chunk.is_empty() {
            if let Err(failure) = self.check() {
                self.end(&mut chunk, &failure);
                break;
            }
            tokio::select! {
                event = self.watch.next() => self.put(&mut chunk, event),
                () = sleep(CHECK) => {}
                () = stopped(&mut self.stop) => return None,
            }
            if chunk.is_empty() && self.sent_at.elapsed() >= COMMENT_AFTER {
                chunk.extend_from_slice(b":\n\n");
            }
        }
        // What is there already is sent together, and has one token.
        let has_events = chunk.starts_with(b"event");
        while has_events && !self.has_ended && chunk.len() < CHUNK_BYTES_MAX {
            let Some(event) = self.watch.next().now_or_never() else { break };
            self.put(&mut chunk, event);
        }
        if has_events && !self.has_ended {
            self.put_token(&mut chunk);
        }
        self.sent_at = Instant::now();
        Some(chunk.into())
    }

    /// Fails unless the caller may still read the range.
    fn check(&self) -> Result<(), HttpFailure> {
        // bug server.http_watch_after_revocation: return Ok(());
        self.rights.check("/v1/watch").map_err(|denied| HttpFailure::denied(&denied))?;
        may_read(&self.rights, &self.range)
    }

    fn put(&mut self, chunk: &mut Vec<u8>, event: Option<stele_types::Result<WatchEvent>>) {
        match event {
            Some(Ok(event)) => put_event(chunk, &event),
            Some(Err(error)) => self.end(chunk, &error.into()),
            None => self.has_ended = true,
        }
    }

    fn end(&mut self, chunk: &mut Vec<u8>, failure: &HttpFailure) {
        self.has_ended = true;
        chunk.extend_from_slice(b"event: error\ndata: ");
        chunk.extend_from_slice(&failure.object());
        chunk.extend_from_slice(b"\n\n");
    }

    fn put_token(&mut self, chunk: &mut Vec<u8>) {
        let now = Instant::now();
        let is_early = |at: Instant| now.duration_since(at) < LONG_TOKEN_PAUSE;
        if self.long_token_at.is_some_and(is_early) {
            return;
        }
        // A watch that has ended has a token too.
        let Ok(token) = self.watch.token() else { return };
        let token = token.to_string();
        self.long_token_at = (token.len() > LONG_TOKEN_BYTES).then_some(now);
        chunk.extend_from_slice(format!("id: {token}\n\n").as_bytes());
    }
}

/// Appends an event. JSON has no line end within strings.
fn put_event(out: &mut Vec<u8>, event: &WatchEvent) {
    let name = match event {
        WatchEvent::Put { .. } => "put",
        WatchEvent::Delete { .. } => "delete",
        WatchEvent::DeletedRange { .. } => "delete_range",
        WatchEvent::Resolved => "resolved",
    };
    out.extend_from_slice(format!("event: {name}\ndata: {{").as_bytes());
    match event {
        WatchEvent::Put { key, value, expires_at_s, old } => {
            put_bytes(out, "key", key);
            out.push(b',');
            put_bytes(out, "value", value);
            if *expires_at_s > 0 {
                out.extend_from_slice(format!(",\"expires_at_s\":{expires_at_s}").as_bytes());
            }
            put_old(out, old);
        }
        WatchEvent::Delete { key, old } => {
            put_bytes(out, "key", key);
            put_old(out, old);
        }
        WatchEvent::DeletedRange { start, end } => {
            put_bytes(out, "start", start);
            out.push(b',');
            put_bytes(out, "end", end);
        }
        WatchEvent::Resolved => {}
    }
    out.extend_from_slice(b"}\n\n");
}

fn put_old(out: &mut Vec<u8>, old: &OldValue) {
    match old {
        OldValue::Unknown => {}
        OldValue::Absent => out.extend_from_slice(b",\"old_value\":null"),
        OldValue::Present(value) => {
            out.push(b',');
            put_bytes(out, "old_value", value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(event: &WatchEvent) -> String {
        let mut out = Vec::new();
        put_event(&mut out, event);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_event_is_one_line_of_json() {
        let put = |value: &'static [u8], expires_at_s, old| WatchEvent::Put {
            key: "a\n\r\u{2028}".into(),
            value: Bytes::from_static(value),
            expires_at_s,
            old,
        };
        let rows = [
            (put(b"1\n", 0, OldValue::Unknown), "put", r#"{"key":"a\n\r\u2028","value":"1\n"}"#),
            (
                put(&[255], 9, OldValue::Absent),
                "put",
                r#"{"key":"a\n\r\u2028","value64":"_w","expires_at_s":9,"old_value":null}"#,
            ),
            (
                WatchEvent::Delete { key: "k".into(), old: OldValue::Present("v".into()) },
                "delete",
                r#"{"key":"k","old_value":"v"}"#,
            ),
            (
                WatchEvent::DeletedRange { start: "a".into(), end: Bytes::new() },
                "delete_range",
                r#"{"start":"a","end":""}"#,
            ),
            (WatchEvent::Resolved, "resolved", "{}"),
        ];
        for (event, name, data) in rows {
            let text = text(&event);
            let lines: Vec<&str> = text.split('\n').collect();
            let [first, second, "", ""] = lines[..] else { panic!("{text:?}") };
            assert_eq!(first, format!("event: {name}"));
            let found: serde_json::Value =
                serde_json::from_str(second.strip_prefix("data: ").unwrap()).unwrap();
            assert_eq!(found, serde_json::from_str::<serde_json::Value>(data).unwrap());
            assert!(!second.contains('\r'));
        }
    }
}
