//! A server that speaks as much of S3 as a repository needs, and fails at random.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Mutex;
use stele_types::Prng;
use stele_types::checksum::crc32c;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Objects of a page of a list; few, so that short lists have pages.
const PAGE: usize = 7;
const DATE: &str = "Tue, 01 Dec 2026 05:00:00 GMT";

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// The connection ends before the request takes effect.
    Reset,
    /// The request takes effect, and the connection ends without an answer.
    LostAnswer,
    /// 500 before the request takes effect.
    Internal,
    /// 500 after it took effect.
    InternalAfter,
    /// 503 `SlowDown`.
    SlowDown,
    /// The connection ends in the middle of the answer's body.
    CutBody,
    /// A bit of the answer's body differs.
    ChangedBody,
}

const FAULTS: [Fault; 7] = [
    Fault::Reset,
    Fault::LostAnswer,
    Fault::Internal,
    Fault::InternalAfter,
    Fault::SlowDown,
    Fault::CutBody,
    Fault::ChangedBody,
];

/// What the server does, and what it did.
pub(crate) struct State {
    pub objects: BTreeMap<String, Vec<u8>>,
    prng: Prng,
    /// Of 100 requests, about so many fail.
    pub percent: u64,
    /// Number of requests that fail with `SlowDown` before any other takes effect.
    pub slow: u64,
    /// Objects that were changed in the last answer: the next one is right.
    changed: BTreeSet<String>,
    /// Faults that happened.
    pub faults: BTreeMap<Fault, u64>,
}

pub(crate) struct Server {
    pub address: SocketAddr,
    pub state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    /// Name of the object; empty for the bucket.
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

impl Server {
    /// Starts a server in tasks of the current runtime.
    pub(crate) async fn start(seed: u64, percent: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = State {
            objects: BTreeMap::new(),
            prng: Prng::new(seed),
            percent,
            slow: 0,
            changed: BTreeSet::new(),
            faults: BTreeMap::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, shared.clone()));
            }
        });
        Self { address, state }
    }
}

async fn serve(mut socket: TcpStream, state: Arc<Mutex<State>>) {
    let Some(request) = read(&mut socket).await else { return };
    let (fault, answer) = {
        let mut state = state.lock().unwrap();
        let fault = state.draw_fault(&request);
        (fault, state.answer_with(fault, &request))
    };
    let Some(answer) = answer else { return };
    let is_head = request.method == "HEAD";
    let mut bytes = format!(
        "HTTP/1.1 {}\r\n{}content-length: {}\r\nconnection: close\r\n\r\n",
        answer.status,
        answer.headers,
        answer.body.len()
    )
    .into_bytes();
    if !is_head {
        let end =
            if fault == Some(Fault::CutBody) { answer.body.len() / 2 } else { answer.body.len() };
        bytes.extend_from_slice(&answer.body[..end]);
    }
    let _ = socket.write_all(&bytes).await;
    let _ = socket.shutdown().await;
}

async fn read(socket: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).ok()?;
    let mut body = bytes.split_off(head_end + 4);
    let mut lines = head.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target) = (first.next()?.to_owned(), first.next()?);
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while body.len() < length {
        if socket.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key).to_owned();
    let query = query.split('&').map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name.to_owned(), value.replace("%2F", "/"))
    });
    Some(Request { method, key, query: query.collect(), headers, body })
}

impl State {
    fn draw_fault(&mut self, request: &Request) -> Option<Fault> {
        if self.slow > 0 {
            self.slow -= 1;
            return Some(Fault::SlowDown);
        }
        let is_fault = self.prng.below(100) < self.percent;
        let fault = FAULTS[self.prng.below(FAULTS.len() as u64) as usize];
        let is_read = request.method == "GET" && !request.key.is_empty();
        let is_of_body = matches!(fault, Fault::CutBody | Fault::ChangedBody);
        let was_changed = is_read && self.changed.remove(&request.key);
        if !is_fault || was_changed {
            return None;
        }
        (is_read || !is_of_body).then_some(fault)
    }

    /// Returns the answer; `None` if the connection ends without one.
    fn answer_with(&mut self, fault: Option<Fault>, request: &Request) -> Option<Answer> {
        if let Some(fault) = fault {
            *self.faults.entry(fault).or_default() += 1;
        }
        match fault {
            Some(Fault::Reset) => None,
            Some(Fault::LostAnswer) => {
                self.answer(request);
                None
            }
            Some(Fault::Internal) => Some(failed("500 Internal Server Error", "InternalError")),
            Some(Fault::InternalAfter) => {
                self.answer(request);
                Some(failed("500 Internal Server Error", "InternalError"))
            }
            Some(Fault::SlowDown) => Some(failed("503 Slow Down", "SlowDown")),
            Some(Fault::ChangedBody) => {
                self.changed.insert(request.key.clone());
                let mut answer = self.answer(request);
                let bits = answer.body.len() as u64 * 8;
                if bits > 0 {
                    let bit = self.prng.below(bits) as usize;
                    answer.body[bit / 8] ^= 1 << (bit % 8);
                }
                Some(answer)
            }
            Some(Fault::CutBody) | None => Some(self.answer(request)),
        }
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request.method.as_str() {
            "PUT" => self.put(request),
            "GET" if request.key.is_empty() => self.list(request),
            "GET" | "HEAD" => self.get(request),
            "POST" => self.delete(request),
            _ => failed("405 Method Not Allowed", "MethodNotAllowed"),
        }
    }

    fn put(&mut self, request: &Request) -> Answer {
        let is_create = request.headers.get("if-none-match").is_some_and(|tag| tag == "*");
        if is_create && self.objects.contains_key(&request.key) {
            return failed("412 Precondition Failed", "PreconditionFailed");
        }
        assert!(is_create, "a repository never replaces an object");
        self.objects.insert(request.key.clone(), request.body.clone());
        answered("200 OK", &tag(&request.body), Vec::new())
    }

    fn get(&self, request: &Request) -> Answer {
        let Some(object) = self.objects.get(&request.key) else {
            return failed("404 Not Found", "NoSuchKey");
        };
        let mut headers = format!("{}last-modified: {DATE}\r\n", tag(object));
        let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes="));
        let Some((from, to)) = range.and_then(|range| range.split_once('-')) else {
            return answered("200 OK", &headers, object.clone());
        };
        let from: usize = from.parse().unwrap();
        let to = to.parse().map_or(object.len(), |to: usize| (to + 1).min(object.len()));
        let _ = write!(headers, "content-range: bytes {from}-{}/{}\r\n", to - 1, object.len());
        answered("206 Partial Content", &headers, object[from..to].to_vec())
    }

    fn list(&self, request: &Request) -> Answer {
        let prefix = request.query.get("prefix").map_or("", String::as_str);
        let after = request.query.get("continuation-token").cloned().unwrap_or_default();
        let mut keys =
            self.objects.iter().filter(|(key, _)| key.starts_with(prefix) && **key > after);
        let page: Vec<_> = keys.by_ref().take(PAGE).collect();
        let mut xml = String::from("<ListBucketResult>");
        for (key, object) in &page {
            let size = object.len();
            let _ = write!(
                xml,
                "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-12-01T05:00:00.000Z</LastModified></Contents>"
            );
        }
        if let (Some((last, _)), Some(_)) = (page.last(), keys.next()) {
            let _ = write!(xml, "<NextContinuationToken>{last}</NextContinuationToken>");
        }
        xml.push_str("</ListBucketResult>");
        answered("200 OK", "content-type: application/xml\r\n", xml.into_bytes())
    }

    fn delete(&mut self, request: &Request) -> Answer {
        let body = String::from_utf8(request.body.clone()).unwrap();
        let mut xml = String::from("<DeleteResult>");
        for part in body.split("<Key>").skip(1) {
            let key = part.split("</Key>").next().unwrap();
            self.objects.remove(key);
            let _ = write!(xml, "<Deleted><Key>{key}</Key></Deleted>");
        }
        xml.push_str("</DeleteResult>");
        answered("200 OK", "content-type: application/xml\r\n", xml.into_bytes())
    }
}

fn tag(object: &[u8]) -> String {
    format!("etag: \"{:08x}\"\r\n", crc32c(object))
}

fn answered(status: &'static str, headers: &str, body: Vec<u8>) -> Answer {
    Answer { status, headers: headers.to_owned(), body }
}

fn failed(status: &'static str, code: &str) -> Answer {
    let body = format!("<Error><Code>{code}</Code><Message>a fault</Message></Error>");
    answered(status, "content-type: application/xml\r\n", body.into_bytes())
}
