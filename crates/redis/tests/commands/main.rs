//! Tests of the crate through its public interface: bytes in, replies out.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod collections;
mod keys;
mod names;
mod programs;
mod reader;
mod scripts;
mod strings;
mod sweeps;
mod transactions;

use bytes::{Bytes, BytesMut};
use stele_redis::{Protocol, ReadStep, Request, RequestReader};
use stele_redis_region::MemoryRegion;

/// A time in Unix milliseconds that is not a whole second.
const NOW_MS: u64 = 1_700_000_000_400;

/// Region with a clock.
struct Script {
    region: MemoryRegion,
    now_ms: u64,
}

impl Script {
    fn new() -> Self {
        Self::with(Protocol::Resp2)
    }

    fn with(protocol: Protocol) -> Self {
        Self { region: MemoryRegion::new(1, protocol), now_ms: NOW_MS }
    }

    fn wait(&mut self, ms: u64) {
        self.now_ms += ms;
    }

    /// Executes an inline request in database 0. In the reply `|` stands for the end of a line.
    fn reply(&mut self, request: &str) -> String {
        shown(&self.region.execute(0, &words(request), self.now_ms))
    }

    /// Executes requests one by one and compares the replies.
    fn check(&mut self, rows: &[(&str, &str)]) {
        for (request, expected) in rows {
            assert_eq!(self.reply(request), *expected, "{request}");
        }
    }

    /// Executes requests as one program.
    fn together(&mut self, requests: &[&str], is_exec: bool) -> String {
        let parse = |request: &&str| Request::parse(0, words(request)).unwrap();
        let requests: Vec<Request> = requests.iter().map(parse).collect();
        shown(&self.region.execute_all(&requests, is_exec, self.now_ms))
    }
}

fn shown(reply: &Bytes) -> String {
    String::from_utf8_lossy(reply).replace("\r\n", "|")
}

/// Returns the words of an inline request.
fn words(request: &str) -> Vec<Bytes> {
    let mut input = BytesMut::from(request);
    input.extend_from_slice(b"\r\n");
    match RequestReader::default().next(&mut input) {
        Ok(ReadStep::Request(words)) => words,
        other => panic!("{request}: {other:?}"),
    }
}
