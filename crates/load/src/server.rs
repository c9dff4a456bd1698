//! Servers under load. A put to Redis counts once `WAIT` reports that enough replicas have it. `WAIT` blocks
//! its connection, so each client uses one of its own.

use crate::args::Wire;
use crate::driver::Run;
use crate::resp::{RespConnection, RespReply, unexpected};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;
use std::fmt::Display;
use std::future::Future;
use stele_client::{Client, Options, ScanOptions};
use stele_types::{Error, KeyRange, Result, address};

/// A server under load.
pub trait Target: Send + Sync + 'static {
    /// What its processes have used up to a moment.
    type Used;

    /// Returns the length of a value; `None` if the key does not exist.
    fn get(&self, key: Bytes) -> impl Future<Output = Result<Option<u64>>> + Send;
    /// Writes a value.
    fn put(&self, key: Bytes, value: Bytes) -> impl Future<Output = Result<()>> + Send;
    /// Deletes a key.
    fn delete(&self, key: Bytes) -> impl Future<Output = Result<()>> + Send;
    /// Returns the bytes of at most `limit` pairs from `key` on.
    fn scan(&self, key: Bytes, limit: usize) -> impl Future<Output = Result<u64>> + Send;
    /// Reads what its processes have used so far.
    fn used(&self) -> impl Future<Output = Result<Self::Used>>;
    /// Returns what its processes have used since `before`, for the operations of `run`.
    fn used_since(&self, before: Self::Used, run: &Run) -> impl Future<Output = Result<Value>>;
}

/// Client of a server that Stele's own benchmark knows.
pub enum Server {
    /// Stele or TiKV, which share a protocol.
    Tikv(Box<Client>),
    /// Redis with replicas.
    Redis(Redis),
}

/// Splits `scheme://address,address…`.
pub fn parse(url: &str) -> Result<(&str, Vec<String>)> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| not_a_target(url))?;
    let addresses = rest.split(',').map(|text| address::to_connect(text).map(str::to_owned));
    Ok((scheme, addresses.collect::<Result<_>>()?))
}

fn not_a_target(url: &str) -> Error {
    let kinds = "stele://, tikv:// or redis:// and HOST:PORT,…";
    Error::invalid(format!("`{url}` is not a target: write {kinds}"))
}

impl Server {
    /// Connects to `scheme://address,address…`.
    pub async fn connect(url: &str, args: &Wire) -> Result<Self> {
        let (scheme, addresses) = parse(url)?;
        match scheme {
            "stele" | "tikv" => {
                let connections_per_node = usize::try_from(args.connections).unwrap_or(1);
                let options = Options {
                    connections_per_node,
                    repeat_undetermined: true,
                    ..Options::default()
                };
                Ok(Self::Tikv(Box::new(args.tls.connect(&addresses, options).await?)))
            }
            "redis" => {
                let address = addresses.into_iter().next().ok_or_else(|| not_a_target(url))?;
                Ok(Self::Redis(Redis::new(address, args.redis_replicas)))
            }
            _ => Err(not_a_target(url)),
        }
    }
}

impl Target for Server {
    /// A client does not know the processes of its server.
    type Used = ();

    async fn get(&self, key: Bytes) -> Result<Option<u64>> {
        match self {
            Self::Tikv(client) => Ok(client.get(key).await?.map(|value| value.len() as u64)),
            Self::Redis(redis) => redis.get(key).await,
        }
    }

    async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        match self {
            Self::Tikv(client) => client.put(key, value).await,
            Self::Redis(redis) => redis.put(key, value).await,
        }
    }

    async fn delete(&self, key: Bytes) -> Result<()> {
        match self {
            Self::Tikv(client) => client.delete(key).await,
            Self::Redis(redis) => redis.delete(key).await,
        }
    }

    async fn scan(&self, key: Bytes, limit: usize) -> Result<u64> {
        let Self::Tikv(client) = self else {
            return Err(Error::invalid("redis has no scan in key order"));
        };
        let range = KeyRange { start: key, end: Bytes::new() };
        let options = ScanOptions { limit: Some(limit), ..ScanOptions::default() };
        let mut scan = client.scan(range, options);
        let mut bytes = 0;
        while let Some(page) = scan.next_page().await? {
            bytes += page.iter().map(|pair| pair.key.len() + pair.value.len()).sum::<usize>();
        }
        Ok(bytes as u64)
    }

    async fn used(&self) -> Result<()> {
        Ok(())
    }

    async fn used_since(&self, (): (), _run: &Run) -> Result<Value> {
        Ok(Value::Null)
    }
}

/// Makes the error of a call without a valid reply.
pub fn unavailable(reason: impl Display) -> Error {
    Error::Unavailable(reason.to_string())
}

/// Time limit for the replicas to acknowledge a write, in milliseconds.
const WAIT_MS: u64 = 5_000;
const BULK_BYTES_MAX: usize = 512 << 20;

/// Client of a primary, with one connection per concurrent call.
pub struct Redis {
    address: String,
    replicas: u64,
    idle: Mutex<Vec<RespConnection>>,
}

impl Redis {
    /// Creates the client of the primary at `address`; so many replicas must acknowledge a write.
    pub fn new(address: String, replicas: u64) -> Self {
        Self { address, replicas, idle: Mutex::default() }
    }

    /// Returns the length of a value.
    pub async fn get(&self, key: Bytes) -> Result<Option<u64>> {
        let mut connection = self.take().await?;
        connection.send(&["GET".as_bytes(), &key]).await?;
        let RespReply::Bulk(found) = receive(&mut connection).await? else {
            return Err(unexpected());
        };
        self.idle.lock().push(connection);
        Ok(found.map(|value| value.len() as u64))
    }

    /// Writes a value.
    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        self.write(&[b"SET", &key, &value]).await
    }

    /// Deletes a key.
    pub async fn delete(&self, key: Bytes) -> Result<()> {
        self.write(&[b"DEL", &key]).await
    }

    async fn write(&self, parts: &[&[u8]]) -> Result<()> {
        let mut connection = self.take().await?;
        connection.send(parts).await?;
        if self.replicas > 0 {
            let (replicas, wait) = (self.replicas.to_string(), WAIT_MS.to_string());
            connection.send(&["WAIT", &replicas, &wait]).await?;
        }
        receive(&mut connection).await?;
        if self.replicas > 0 {
            match receive(&mut connection).await? {
                RespReply::Integer(have) if have >= self.replicas as i64 => {}
                RespReply::Integer(have) => {
                    return Err(unavailable(format!("{have} replicas have the write")));
                }
                _ => return Err(unexpected()),
            }
        }
        self.idle.lock().push(connection);
        Ok(())
    }

    async fn take(&self) -> Result<RespConnection> {
        let idle = self.idle.lock().pop();
        match idle {
            Some(connection) => Ok(connection),
            None => RespConnection::connect(&self.address, None, BULK_BYTES_MAX).await,
        }
    }
}

/// Receives a reply; an error of the server is one of the call.
async fn receive(connection: &mut RespConnection) -> Result<RespReply> {
    connection.flush().await?;
    match connection.receive().await? {
        RespReply::Error(text) => Err(Error::Refused(text)),
        reply => Ok(reply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Starts a server for one connection that expects these calls in order and sends these
    /// replies.
    async fn scripted(script: Vec<(&'static str, &'static str)>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            for (call, answer) in script {
                let mut received = vec![0; call.len()];
                stream.read_exact(&mut received).await.unwrap();
                assert_eq!(String::from_utf8_lossy(&received), call);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        address
    }

    #[tokio::test]
    async fn a_put_counts_once_replicas_have_it() {
        let set = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$2\r\nvv\r\n\
                   *3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$4\r\n5000\r\n";
        let get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
        let script = vec![
            (set, "+OK\r\n:1\r\n"),
            (get, "$2\r\nvv\r\n"),
            (get, "$-1\r\n"),
            (set, "+OK\r\n:0\r\n"),
        ];
        let redis = Redis::new(scripted(script).await, 1);
        let (key, value) = (Bytes::from("k"), Bytes::from("vv"));
        redis.put(key.clone(), value.clone()).await.unwrap();
        assert_eq!(redis.get(key.clone()).await.unwrap(), Some(2));
        assert_eq!(redis.get(key.clone()).await.unwrap(), None);
        let error = redis.put(key, value).await.unwrap_err();
        assert!(error.to_string().contains("0 replicas have the write"), "{error}");
    }

    #[tokio::test]
    async fn refusals_and_nonsense_are_errors() {
        for answer in ["-ERR no\r\n", "what\r\n", "$99999999999\r\n"] {
            let get = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
            let redis = Redis::new(scripted(vec![(get, answer)]).await, 0);
            assert!(redis.get(Bytes::from("k")).await.is_err(), "{answer}");
        }
    }
}
