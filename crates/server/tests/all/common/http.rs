//! HTTP/1.1 by hand: targets are sent as they are written, which libraries do not.

use super::LIMIT;
use serde_json::Value;
use std::time::Instant;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let header = self.headers.iter().find(|(known, _)| known == name);
        header.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Returns code and outcome of the error.
    pub(crate) fn error(&self) -> (u16, String, String) {
        let error = &self.json()["error"];
        let text = |name: &str| error[name].as_str().unwrap_or_default().to_owned();
        assert_eq!(self.header("content-type"), Some("application/json"));
        assert!(!text("message").is_empty(), "{self:?}");
        (self.status, text("code"), text("outcome"))
    }
}

/// Request in the making.
pub(crate) struct Ask<'a> {
    pub address: &'a str,
    pub method: &'a str,
    pub target: &'a str,
    pub headers: Vec<(&'a str, &'a str)>,
    pub body: &'a [u8],
}

impl<'a> Ask<'a> {
    pub(crate) fn new(address: &'a str, method: &'a str, target: &'a str) -> Self {
        Self { address, method, target, headers: Vec::new(), body: b"" }
    }

    pub(crate) fn with(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn body(self, body: &'a [u8]) -> Self {
        Self { body, ..self }
    }

    /// Sends the request; returns the connection.
    async fn begin(&self) -> BufReader<TcpStream> {
        let Self { address, method, target, headers, body } = self;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let mut head = format!("{method} {target} HTTP/1.1\r\nconnection: close\r\n");
        let has = |wanted: &str| headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(wanted));
        if !has("host") {
            head += &format!("host: {address}\r\n");
        }
        if !body.is_empty() && !has("content-length") && !has("transfer-encoding") {
            head += &format!("content-length: {}\r\n", body.len());
        }
        headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        head += "\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        // The node may refuse it before it has the whole body.
        let _ = stream.write_all(body).await;
        BufReader::new(stream)
    }

    pub(crate) async fn send(self) -> Answer {
        let mut stream = self.begin().await;
        let (status, headers) = head(&mut stream).await;
        let mut answer = Answer { status, headers, body: Vec::new() };
        if self.method != "HEAD" && ![204, 304].contains(&status) {
            match answer.header("content-length").map(|length| length.parse().unwrap()) {
                Some(length) => {
                    answer.body = vec![0; length];
                    stream.read_exact(&mut answer.body).await.unwrap();
                }
                None => while chunk(&mut stream, &mut answer.body).await {},
            }
        }
        answer
    }

    /// Sends the request, of which the answer is a stream of events.
    pub(crate) async fn stream(self) -> Events {
        let mut stream = self.begin().await;
        let (status, headers) = head(&mut stream).await;
        assert_eq!(status, 200, "{headers:?}");
        assert!(headers.contains(&("content-type".to_owned(), "text/event-stream".to_owned())));
        Events { stream, bytes: Vec::new(), last_id: String::new() }
    }
}

async fn head(stream: &mut BufReader<TcpStream>) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
        let Some((name, value)) = line.trim_end().split_once(':') else {
            return (status, headers);
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// Appends the next chunk; returns whether more may follow.
async fn chunk(stream: &mut BufReader<TcpStream>, into: &mut Vec<u8>) -> bool {
    let mut line = String::new();
    if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
        return false;
    }
    let bytes = usize::from_str_radix(line.trim(), 16).unwrap();
    let mut piece = vec![0; bytes + 2];
    stream.read_exact(&mut piece).await.unwrap();
    into.extend_from_slice(&piece[..bytes]);
    bytes > 0
}

/// Server-sent events.
pub(crate) struct Events {
    stream: BufReader<TcpStream>,
    bytes: Vec<u8>,
    pub last_id: String,
}

impl Events {
    /// Returns name and data of the next event; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            let (mut name, mut data) = (String::new(), None);
            for line in self.block().await?.lines() {
                match line.split_once(": ") {
                    Some(("id", id)) => self.last_id = id.to_owned(),
                    Some(("event", event)) => name = event.to_owned(),
                    Some(("data", text)) => data = Some(serde_json::from_str(text).unwrap()),
                    _ => assert!(line.starts_with(':'), "{line}"),
                }
            }
            if let Some(data) = data {
                return Some((name, data));
            }
        }
    }

    /// Waits for the id after the events that were returned.
    pub(crate) async fn id(&mut self) -> String {
        let before = std::mem::take(&mut self.last_id);
        let began = Instant::now();
        while self.last_id.is_empty() {
            assert!(began.elapsed() < LIMIT, "after {before}");
            let block = self.block().await.unwrap();
            let id = block.strip_prefix("id: ").unwrap_or_else(|| panic!("{block}"));
            self.last_id = id.to_owned();
        }
        self.last_id.clone()
    }

    async fn block(&mut self) -> Option<String> {
        loop {
            let end = self.bytes.windows(2).position(|pair| pair == b"\n\n");
            if let Some(end) = end {
                let rest = self.bytes.split_off(end + 2);
                let block = std::mem::replace(&mut self.bytes, rest);
                return Some(String::from_utf8(block).unwrap().trim_end().to_owned());
            }
            if !chunk(&mut self.stream, &mut self.bytes).await {
                return None;
            }
        }
    }
}
