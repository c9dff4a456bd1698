//! Compares the commands with a real server: the same random requests to both, and equal replies.
//!
//! ```text
//! redis-server --port 7399 --save ''
//! cargo run -p stele-redis --example compare -- 127.0.0.1:7399 1 100000
//! ```
//!
//! Arguments: address of the server (**its data is deleted**), seed, number of requests. An even seed
//! compares RESP2, an odd one RESP3. Exits with 1 after the first difference, which it prints.
//!
//! Intended differences from redis-server 7.0.15, of which no request is drawn:
//! - SET IFEQ and DELEX: this server has neither.
//! - Values of APPEND and SETRANGE above 1 MiB; names and fields above 8 KiB; RENAME and COPY of more than
//!   1,024 members: limits of the store.
//! - Times in milliseconds may differ by the duration of a request: up to 50 ms are allowed.
//! - HGETALL, HKEYS, HVALS, SMEMBERS, KEYS and SCAN are compared without order.
//! - PEXPIREAT of times of which the seconds, rounded, do not fit into 64 bits.

use bytes::Bytes;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use stele_redis::{Glob, KindFilter, NamesWanted, Protocol, Reply, Request, walk_names};
use stele_redis_region::{MemoryRegion, encode_request};
use stele_storage::Admitted;
use stele_types::Prng;

const NAMES: &[&str] = &["a", "b", "c", "{t}x", "{t}y", "", "a\0b"];
const FIELDS: &[&str] = &["f", "g", "h", "", "a long field with spaces", "\0"];
const VALUES: &[&str] = &[
    "",
    "0",
    "1",
    "-1",
    "10",
    "41",
    "hello",
    "9223372036854775807",
    "-9223372036854775808",
    "3.5",
    "0.1",
    "1e400",
    " 1",
    "01",
    "-0",
    "+1",
    "inf",
    "0x10",
    ".5",
    "1e-18",
    "123456789.123456789",
    "1.",
    "abc\r\n\0",
    "9223372036854775808",
    "1e20",
    "0.30000000000000004",
    "-2.5e3",
];
const INTEGERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "2",
    "5",
    "-3",
    "100",
    "9223372036854775807",
    "-9223372036854775808",
    "x",
    "",
    "1.0",
    "9223372036854775808",
    "-9223372036854775807",
];
const PLACES: &[&str] =
    &["0", "1", "-1", "2", "5", "-3", "20", "100", "-100", "600000000", "x", "9223372036854775807"];
const SECONDS: &[&str] = &[
    "100",
    "1000",
    "5000",
    "0",
    "-1",
    "9223372036854775",
    "9223372036854775807",
    "x",
    "-9223372036854775808",
    "9223372036854776",
    "-9223372036854775",
];
const MILLISECONDS: &[&str] =
    &["100000", "100499", "5000000", "0", "-1", "9223372036854775807", "x", "-9223372036854775808"];
const UNIX_SECONDS: &[&str] =
    &["4102444800", "4102444801", "4202444800", "1", "0", "-1", "9223372036854775807", "x"];
const UNIX_MILLISECONDS: &[&str] =
    &["4102444800000", "4102444800001", "4102444800700", "1", "0", "-1", "x"];

/// Parts of forms that become one of these words.
const WORDS: &[(&str, &[&str])] = &[
    ("N", NAMES),
    ("F", FIELDS),
    ("V", VALUES),
    ("I", INTEGERS),
    ("P", PLACES),
    ("SEC", SECONDS),
    ("MS", MILLISECONDS),
    ("USEC", UNIX_SECONDS),
    ("UMS", UNIX_MILLISECONDS),
];

/// Parts of forms that become one of these forms.
const OPTIONS: &[(&str, &[&str])] = &[
    ("NV", &["N V"]),
    ("FV", &["F V"]),
    (
        "SETOPTIONS",
        &[
            "nx",
            "XX",
            "get",
            "keepttl",
            "EX SEC",
            "px MS",
            "exat USEC",
            "PXAT UMS",
            "ex",
            "persist",
        ],
    ),
    (
        "GETOPTIONS",
        &["", "persist", "EX SEC", "px MS", "exat USEC", "PXAT UMS", "PXAT UMS PERSIST", "nx"],
    ),
    ("EXPIREOPTIONS", &["", "", "nx", "XX", "gt", "lt", "xx GT", "XX lt", "nx gt", "gt lt", "q"]),
    (
        "COPYOPTIONS",
        &[
            "",
            "replace",
            "db 0",
            "DB 1 replace",
            "db 16",
            "db x",
            "db",
            "db -1",
            "q",
            "db 99999999999",
        ],
    ),
];

/// Parts of patterns of names.
const PATTERN_PARTS: &[&str] = &[
    "*", "*", "**", "?", "a", "b", "x", "{t}", "\\{", "[a-c]", "[c-a]", "[^a]", "[{a]", "[]a]",
    "[^", "[b", "[a-", "[\\]]", "\\", "\0", "",
];
const TYPES: &[&str] = &["string", "hash", "SET", "zset", "nosuch"];

/// Forms of requests. `D` is a number with decimals; a `*` repeats what precedes it; other capitals are
/// explained above.
const FORMS: &[&str] = &[
    "get N",
    "set N V",
    "set N V SETOPTIONS",
    "set N V SETOPTIONS SETOPTIONS",
    "setnx N V",
    "setex N SEC V",
    "psetex N MS V",
    "getset N V",
    "getdel N",
    "getex N GETOPTIONS",
    "mget N*",
    "mset NV*",
    "msetnx NV*",
    "append N V",
    "strlen N",
    "getrange N P P",
    "setrange N P V",
    "incr N",
    "decr N",
    "incrby N I",
    "decrby N I",
    "incrbyfloat N D",
    "set N D",
    "hset N F D",
    "incrbyfloat N D",
    "del N*",
    "unlink N*",
    "exists N*",
    "type N",
    "copy N N COPYOPTIONS",
    "rename N N",
    "renamenx N N",
    "touch N*",
    "expire N SEC EXPIREOPTIONS",
    "pexpire N MS EXPIREOPTIONS",
    "expireat N USEC EXPIREOPTIONS",
    "pexpireat N UMS EXPIREOPTIONS",
    "ttl N",
    "pttl N",
    "expiretime N",
    "pexpiretime N",
    "persist N",
    "hset N FV*",
    "hset N FV*",
    "hmset N FV*",
    "hsetnx N F V",
    "hget N F",
    "hmget N F*",
    "hgetall N",
    "hdel N F*",
    "hexists N F",
    "hlen N",
    "hstrlen N F",
    "hkeys N",
    "hvals N",
    "hincrby N F I",
    "hincrbyfloat N F D",
    "sadd N F*",
    "sadd N F*",
    "srem N F*",
    "sismember N F",
    "smismember N F*",
    "smembers N",
    "scard N",
    "nosuch N V",
];

struct Requests {
    rng: Prng,
}

impl Requests {
    fn below(&mut self, bound: usize) -> usize {
        self.rng.below(bound as u64) as usize
    }

    fn one_of<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }

    fn request(&mut self) -> Vec<Bytes> {
        let form = self.one_of(FORMS);
        let mut words = Vec::new();
        for part in form.split(' ') {
            self.part(part, &mut words);
        }
        match self.below(60) {
            0 => drop(words.pop()),
            1 => words.push("extra".to_owned()),
            2 => words[0].make_ascii_uppercase(),
            _ => {}
        }
        words.into_iter().map(Bytes::from).collect()
    }

    fn part(&mut self, part: &str, words: &mut Vec<String>) {
        if let Some(repeated) = part.strip_suffix('*') {
            for _ in 0..=self.below(3) {
                self.part(repeated, words);
            }
            return;
        }
        if part == "D" {
            return words.push(self.float());
        }
        let of = |table: &'static [(&str, &[&'static str])]| {
            table.iter().find(|(name, _)| *name == part).map(|(_, texts)| *texts)
        };
        if let Some(texts) = of(WORDS) {
            words.push(self.one_of(texts).to_owned());
        } else if let Some(forms) = of(OPTIONS) {
            let form = self.one_of(forms);
            form.split(' ').for_each(|part| self.part(part, words));
        } else if !part.is_empty() {
            words.push(part.to_owned());
        }
    }

    fn float(&mut self) -> String {
        let digits = self.rng.draw() >> self.below(64);
        let sign = self.one_of(&["", "-", "+"]);
        match self.below(6) {
            0 => self.one_of(VALUES).to_owned(),
            1 => format!("{sign}{digits}"),
            2 => format!("{sign}0.{digits}"),
            3 => format!("{sign}{}.{digits:06}", self.below(100_000)),
            4 => format!("{sign}{digits}e{}", self.below(60) as i64 - 40),
            _ => format!("{sign}0x{digits:x}p{}", self.below(140) as i64 - 120),
        }
    }
}

/// Connection to the real server.
struct Server {
    reader: BufReader<TcpStream>,
}

impl Server {
    fn send(&mut self, requests: &[Vec<Bytes>]) -> Result<()> {
        let bytes: Vec<u8> = requests.iter().flat_map(|words| encode_request(words)).collect();
        self.reader.get_mut().write_all(&bytes)
    }

    fn ask(&mut self, request: &[Bytes]) -> Result<Vec<u8>> {
        self.send(&[request.to_vec()])?;
        read_reply(&mut self.reader)
    }

    /// Executes requests together. Returns the server's time in Unix milliseconds, and the replies.
    fn execute(&mut self, requests: &[Vec<Bytes>]) -> Result<(u64, Vec<Vec<u8>>)> {
        let mut sent = vec![words("multi"), words("time")];
        sent.extend_from_slice(requests);
        sent.push(words("exec"));
        self.send(&sent)?;
        for _ in 0..sent.len() - 1 {
            read_reply(&mut self.reader)?;
        }
        let mut replies = elements(&read_reply(&mut self.reader)?)?;
        let time = elements(&replies.remove(0))?;
        let number = |reply: &Vec<u8>| {
            let text = String::from_utf8_lossy(reply);
            text.lines().nth(1).and_then(|line| line.parse::<u64>().ok())
        };
        match &time[..] {
            [seconds, micros] => match (number(seconds), number(micros)) {
                (Some(seconds), Some(micros)) => Ok((seconds * 1000 + micros / 1000, replies)),
                _ => Err(Error::from(ErrorKind::InvalidData)),
            },
            _ => Err(Error::from(ErrorKind::InvalidData)),
        }
    }
}

fn words(text: &str) -> Vec<Bytes> {
    text.split(' ').map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

/// Reads the bytes of one reply.
fn read_reply(reader: &mut impl BufRead) -> Result<Vec<u8>> {
    let mut reply = Vec::new();
    if reader.read_until(b'\n', &mut reply)? == 0 {
        return Err(Error::from(ErrorKind::UnexpectedEof));
    }
    let length = String::from_utf8_lossy(&reply[1..]).trim().parse::<i64>().unwrap_or(0);
    let length = u64::try_from(length).ok();
    match (reply[0], length) {
        (b'$' | b'=', Some(length)) => {
            reader.take(length + 2).read_to_end(&mut reply)?;
        }
        (b'*' | b'~' | b'%' | b'>', Some(length)) => {
            let elements = if reply[0] == b'%' { 2 * length } else { length };
            for _ in 0..elements {
                reply.extend(read_reply(reader)?);
            }
        }
        _ => {}
    }
    Ok(reply)
}

/// Returns the elements of an array, set or map.
fn elements(mut reply: &[u8]) -> Result<Vec<Vec<u8>>> {
    let mut header = Vec::new();
    reply.read_until(b'\n', &mut header)?;
    let mut found = Vec::new();
    while !reply.is_empty() {
        found.push(read_reply(&mut reply)?);
    }
    Ok(found)
}

/// Compares the names that match a random pattern, of random types.
fn compare_names(
    server: &mut Server,
    requests: &mut Requests,
    region: &MemoryRegion,
) -> Result<bool> {
    let parts = (0..=requests.below(4)).map(|_| requests.one_of(PATTERN_PARTS));
    let pattern = parts.collect::<Vec<_>>().concat();
    let kind = requests.one_of(TYPES);
    let keys = ["keys", &pattern].map(|word| Bytes::copy_from_slice(word.as_bytes()));
    let scan = ["scan", "0", "match", &pattern, "count", "1000", "type", kind];
    let scan = scan.map(|word| Bytes::copy_from_slice(word.as_bytes()));
    let (now_ms, theirs) = server.execute(&[keys.to_vec(), scan.to_vec()])?;
    let examined_max = 1 + requests.below(5);
    let of_scan = elements(&theirs[1])?.remove(1);
    let filters = [KindFilter::Any, KindFilter::named(kind.as_bytes())];
    for (kind, reply) in filters.into_iter().zip([&theirs[0], &of_scan]) {
        let pattern = Glob::new(Bytes::copy_from_slice(pattern.as_bytes()));
        let pattern = pattern.map_err(|error| Error::other(error.to_string()))?;
        let wanted = NamesWanted {
            examined_max,
            pattern: Some(pattern),
            kind,
            is_counted_only: false,
            now_ms,
        };
        let mut ours = names(region, &wanted)?;
        let mut theirs = elements(reply)?;
        ours.sort();
        theirs.sort();
        if ours != theirs {
            println!(
                "pattern {pattern:?}, {kind:?}: ours {ours:?}, theirs {theirs:?}",
                pattern = keys[1]
            );
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the names of database 0, as elements of a reply.
fn names(region: &MemoryRegion, wanted: &NamesWanted) -> Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    let prefixes = wanted
        .pattern
        .iter()
        .flat_map(|pattern| stele_types::redis_key::prefix_ranges(0, &pattern.literal().bytes));
    for range in prefixes {
        let mut range = stele_types::ColumnFamily::Redis.engine_range(&range);
        loop {
            let walked = walk_names(&region.view(), range.clone(), wanted, &mut |_| true);
            let page = walked.and_then(Admitted::read).map_err(Error::other)?;
            let element = |name| Reply::Bulk(name).encoded(Protocol::Resp2).to_vec();
            names.extend(page.names.into_iter().map(element));
            match page.next_key {
                Some(next_key) => range.start = next_key,
                None => break,
            }
        }
    }
    Ok(names)
}

/// Whether two replies to a request mean the same.
fn are_equal(command: &str, ours: &[u8], theirs: &[u8]) -> Result<bool> {
    const TOLERANCE: i64 = 50;
    let number = |reply: &[u8]| {
        let text = String::from_utf8_lossy(reply).into_owned();
        text.strip_prefix(':').and_then(|number| number.trim().parse::<i64>().ok())
    };
    let width = match command {
        "hgetall" => 2,
        "hkeys" | "hvals" | "smembers" => 1,
        "ttl" | "pttl" | "expiretime" | "pexpiretime" => {
            return Ok(match (number(ours), number(theirs)) {
                (Some(ours), Some(theirs)) if ours > 0 && theirs > 0 => {
                    ours.abs_diff(theirs) <= TOLERANCE.unsigned_abs()
                }
                _ => ours == theirs,
            });
        }
        _ => return Ok(ours == theirs),
    };
    let sorted = |reply: &[u8]| -> Result<Vec<Vec<u8>>> {
        let mut parts: Vec<Vec<u8>> = elements(reply)?.chunks(width).map(<[_]>::concat).collect();
        parts.sort();
        Ok(parts)
    };
    Ok(ours.first() == theirs.first() && sorted(ours)? == sorted(theirs)?)
}

fn differ(history: &[String], request: &[Bytes], ours: &[u8], theirs: &[u8]) -> bool {
    let recent = history.len().saturating_sub(30);
    for line in &history[recent..] {
        println!("  {line}");
    }
    println!("request {request:?}");
    println!("ours    {:?}", Bytes::copy_from_slice(ours));
    println!("theirs  {:?}", Bytes::copy_from_slice(theirs));
    false
}

/// Returns whether all replies were equal.
fn compare(server: &mut Server, seed: u64, count: usize) -> Result<bool> {
    let protocol = if seed.is_multiple_of(2) { Protocol::Resp2 } else { Protocol::Resp3 };
    server.ask(&words(if seed.is_multiple_of(2) { "hello 2" } else { "hello 3" }))?;
    server.ask(&words("flushall"))?;
    let mut requests = Requests { rng: Prng::new(seed) };
    let mut region = MemoryRegion::new(seed, protocol);
    let mut history = Vec::new();
    let (mut executed, mut errors) = (0, 0);
    while executed < count {
        if requests.below(400) == 0 {
            server.ask(&words("flushall"))?;
            region = MemoryRegion::new(seed, protocol);
            history.clear();
        }
        if requests.below(8) == 0 && !compare_names(server, &mut requests, &region)? {
            return Ok(false);
        }
        let drawn: Vec<Vec<Bytes>> = (0..=requests.below(4)).map(|_| requests.request()).collect();
        executed += drawn.len();
        let mut checked = Vec::new();
        for request in drawn {
            match Request::parse(0, request.clone()) {
                Ok(request) => checked.push(request),
                Err(_) => {
                    let (ours, theirs) = (region.execute(0, &request, 0), server.ask(&request)?);
                    if ours != theirs {
                        return Ok(differ(&history, &request, &ours, &theirs));
                    }
                }
            }
        }
        let sent: Vec<Vec<Bytes>> =
            checked.iter().map(|request| request.arguments().to_vec()).collect();
        let (now_ms, theirs) = server.execute(&sent)?;
        let ours = elements(&region.execute_all(&checked, true, now_ms))?;
        for (place, request) in checked.iter().enumerate() {
            let (ours, theirs) = (&ours[place], &theirs[place]);
            if !are_equal(request.spec().name, ours, theirs)? {
                return Ok(differ(&history, request.arguments(), ours, theirs));
            }
            errors += usize::from(ours.first() == Some(&b'-'));
            let shown = Bytes::copy_from_slice(ours);
            history.push(format!("{:?} {shown:?}", request.arguments()));
        }
    }
    println!("{executed} requests, all replies equal; {errors} of them errors");
    Ok(true)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &arguments[..] {
        [address, seed, count] => seed.parse().ok().zip(count.parse().ok()).map(|n| (address, n)),
        _ => None,
    };
    let Some((address, (seed, count))) = parsed else {
        eprintln!("usage: compare ADDRESS SEED COUNT");
        return ExitCode::from(2);
    };
    println!("seed {seed}");
    let server = TcpStream::connect(address).and_then(|stream| {
        stream.set_nodelay(true)?;
        Ok(Server { reader: BufReader::new(stream) })
    });
    match server.and_then(|mut server| compare(&mut server, seed, count)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{address}: {error}");
            ExitCode::FAILURE
        }
    }
}
