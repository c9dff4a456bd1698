//! Attacks below the protocol: bytes on a socket.

use std::pin::Pin;
use std::time::Duration;
use stele_types::Prng;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time for which an attacker waits for a response, or continues to write.
const TIME_LIMIT: Duration = Duration::from_millis(150);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// First bytes of a peer's connection.
const PEER_MAGIC: &[u8] = b"STELEPR1";
const EMPTY_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

pub(crate) struct Attack {
    pub name: &'static str,
    pub run: for<'a> fn(&'a str, &'a mut Prng) -> Running<'a>,
}

macro_rules! attacks {
    ($($name:ident)*) => {
        /// All attacks.
        pub(crate) const ATTACKS: &[Attack] = &[$(Attack {
            name: stringify!($name),
            run: |address, prng| Box::pin($name(address, prng)),
        }),*];
    };
}

attacks! {
    random_bytes peer_magic_and_garbage peer_magic_and_huge_length peer_magic_cut_short
    http_junk http_endless_header http_two_lengths h2_random_frames h2_huge_frame
    h2_header_junk h2_rapid_reset h2_endless_headers h2_window_overflow silent_connections
}

/// Writes bytes, reads for a moment, and disconnects. The server may refuse.
async fn send_raw(address: &str, bytes: &[u8]) {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(bytes).await?;
        let mut answer = vec![0; 1 << 16];
        while stream.read(&mut answer).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(TIME_LIMIT, exchange).await;
}

fn noise(prng: &mut Prng, bytes_max: u64) -> Vec<u8> {
    (0..1 + prng.below(bytes_max)).map(|_| prng.draw() as u8).collect()
}

/// Builds an HTTP/2 frame: length (24 bits), type, flags, stream, payload.
fn frame(length: usize, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (length as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

fn h2(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &EMPTY_SETTINGS, &frames.concat()].concat()
}

async fn random_bytes(address: &str, prng: &mut Prng) {
    send_raw(address, &noise(prng, 100_000)).await;
}

async fn peer_magic_and_garbage(address: &str, prng: &mut Prng) {
    send_raw(address, &[PEER_MAGIC, &noise(prng, 100_000)].concat()).await;
}

async fn peer_magic_and_huge_length(address: &str, prng: &mut Prng) {
    let lengths = [[0xff; 8], [0x7f; 8], [0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0]];
    let length = lengths[prng.below(3) as usize];
    send_raw(address, &[PEER_MAGIC, &length, &length, &noise(prng, 64)].concat()).await;
}

async fn peer_magic_cut_short(address: &str, prng: &mut Prng) {
    let upto = prng.below(PEER_MAGIC.len() as u64) as usize;
    send_raw(address, &PEER_MAGIC[..upto]).await;
}

async fn http_junk(address: &str, prng: &mut Prng) {
    let lines = [
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "DELETE /metrics HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "a/../".repeat(20_000)),
        "GET /status HTTP/1.1\r\nHost: x\r\n\r\n".repeat(500),
        "POST /status HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n"
            .to_owned(),
        "\0\r\n\r\n".to_owned(),
    ];
    send_raw(address, lines[prng.below(lines.len() as u64) as usize].as_bytes()).await;
}

async fn http_endless_header(address: &str, _: &mut Prng) {
    send_raw(address, &[b"GET / HTTP/1.1\r\nX: ".as_slice(), &vec![b'a'; 8 << 20]].concat()).await;
}

async fn http_two_lengths(address: &str, _: &mut Prng) {
    let text = "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 4294967295\r\n\r\nhello";
    send_raw(address, text.as_bytes()).await;
}

async fn h2_random_frames(address: &str, prng: &mut Prng) {
    let mut frames = Vec::new();
    for _ in 0..50 {
        let payload = noise(prng, 300);
        let (kind, flags) = (prng.below(12) as u8, prng.draw() as u8);
        frames.push(frame(payload.len(), kind, flags, prng.below(9) as u32, &payload));
    }
    send_raw(address, &h2(&frames)).await;
}

async fn h2_huge_frame(address: &str, prng: &mut Prng) {
    let payload = vec![0; 1 << 20];
    send_raw(address, &h2(&[frame(0x00ff_ffff, prng.below(10) as u8, 0, 1, &payload)])).await;
}

/// Sends a header block that refers to entries missing from the table.
async fn h2_header_junk(address: &str, prng: &mut Prng) {
    let mut block = vec![0xff, 0xff, 0xff, 0xff, 0x7f];
    block.extend(noise(prng, 1_000));
    send_raw(address, &h2(&[frame(block.len(), 1, 0x4, 1, &block)])).await;
}

/// Opens streams and resets them immediately (CVE-2023-44487).
async fn h2_rapid_reset(address: &str, _: &mut Prng) {
    // `:method POST`, `:scheme http`, `:path /`, all from the static table.
    let block = [0x83, 0x86, 0x84];
    let mut frames = Vec::new();
    for stream in (1..20_001).step_by(2) {
        frames.push(frame(block.len(), 1, 0x4, stream, &block));
        frames.push(frame(4, 3, 0, stream, &[0, 0, 0, 8]));
    }
    send_raw(address, &h2(&frames)).await;
}

/// Sends a header block with continuations without end (CVE-2024-27316).
async fn h2_endless_headers(address: &str, _: &mut Prng) {
    let block = [&[0x40, 0x01, b'a', 0x7f, 0x80, 0x7f][..], &[b'b'; 16_000]].concat();
    let mut frames = vec![frame(block.len(), 1, 0, 1, &block)];
    frames.extend((0..400).map(|_| frame(block.len(), 9, 0, 1, &block)));
    send_raw(address, &h2(&frames)).await;
}

async fn h2_window_overflow(address: &str, _: &mut Prng) {
    let update = frame(4, 8, 0, 0, &[0x7f, 0xff, 0xff, 0xff]);
    send_raw(address, &h2(&[update.clone(), update.clone(), update])).await;
}

/// Opens connections that send nothing, or only part of the preface.
async fn silent_connections(address: &str, prng: &mut Prng) {
    let mut open = Vec::new();
    for _ in 0..100 {
        if let Ok(mut stream) = TcpStream::connect(address).await {
            let begun = &PREFACE[..prng.below(PREFACE.len() as u64) as usize];
            let _ = stream.write_all(begun).await;
            open.push(stream);
        }
    }
    tokio::time::sleep(TIME_LIMIT).await;
}
