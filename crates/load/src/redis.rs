//! The part of Redis's protocol (RESP 2) that the load needs. A put counts once `WAIT` reports that
//! enough replicas have it. `WAIT` blocks its connection, so each client uses one of its own.

use crate::server::unavailable;
use bytes::Bytes;
use parking_lot::Mutex;
use stele_types::{Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

/// Time limit for the replicas to acknowledge a write, in milliseconds.
const WAIT_MS: u64 = 5_000;
const LINE_BYTES_MAX: usize = 4096;
const BULK_BYTES_MAX: usize = 512 << 20;

enum Reply {
    Done,
    Number(i64),
    Value(Option<u64>),
}

/// Client of a primary, with one connection per concurrent call.
pub struct Redis {
    address: String,
    replicas: u64,
    idle: Mutex<Vec<BufStream<TcpStream>>>,
}

impl Redis {
    /// Creates the client of the primary at `address`; so many replicas must acknowledge a write.
    pub fn new(address: String, replicas: u64) -> Self {
        Self { address, replicas, idle: Mutex::default() }
    }

    /// Returns the length of a value.
    pub async fn get(&self, key: Bytes) -> Result<Option<u64>> {
        let mut connection = self.take().await?;
        send(&mut connection, &[b"GET", &key]).await?;
        let Reply::Value(found) = receive(&mut connection).await? else { return Err(unexpected()) };
        self.idle.lock().push(connection);
        Ok(found)
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
        send(&mut connection, parts).await?;
        if self.replicas > 0 {
            let (replicas, wait) = (self.replicas.to_string(), WAIT_MS.to_string());
            send(&mut connection, &[b"WAIT", replicas.as_bytes(), wait.as_bytes()]).await?;
        }
        receive(&mut connection).await?;
        if self.replicas > 0 {
            match receive(&mut connection).await? {
                Reply::Number(have) if have >= self.replicas as i64 => {}
                Reply::Number(have) => {
                    return Err(unavailable(format!("{have} replicas have the write")));
                }
                _ => return Err(unexpected()),
            }
        }
        self.idle.lock().push(connection);
        Ok(())
    }

    async fn take(&self) -> Result<BufStream<TcpStream>> {
        let idle = self.idle.lock().pop();
        if let Some(connection) = idle {
            return Ok(connection);
        }
        let stream = TcpStream::connect(&self.address).await.map_err(unavailable)?;
        stream.set_nodelay(true).map_err(unavailable)?;
        Ok(BufStream::new(stream))
    }
}

fn unexpected() -> Error {
    unavailable("a reply of an unexpected type")
}

async fn send(connection: &mut BufStream<TcpStream>, parts: &[&[u8]]) -> Result<()> {
    let mut head = format!("*{}\r\n", parts.len());
    for part in parts {
        head.push_str(&format!("${}\r\n", part.len()));
        connection.write_all(head.as_bytes()).await.map_err(unavailable)?;
        connection.write_all(part).await.map_err(unavailable)?;
        "\r\n".clone_into(&mut head);
    }
    connection.write_all(head.as_bytes()).await.map_err(unavailable)
}

async fn receive(connection: &mut BufStream<TcpStream>) -> Result<Reply> {
    connection.flush().await.map_err(unavailable)?;
    let mut line = String::new();
    let mut bounded = (&mut *connection).take(LINE_BYTES_MAX as u64);
    bounded.read_line(&mut line).await.map_err(unavailable)?;
    let line = line.trim_end();
    let number = || line.get(1..).and_then(|rest| rest.parse::<i64>().ok()).ok_or_else(unexpected);
    match line.as_bytes().first() {
        Some(b'+') => Ok(Reply::Done),
        Some(b':') => Ok(Reply::Number(number()?)),
        Some(b'$') => {
            let Ok(bytes) = usize::try_from(number()?) else { return Ok(Reply::Value(None)) };
            if bytes > BULK_BYTES_MAX {
                return Err(unexpected());
            }
            let mut value = vec![0; bytes + 2];
            connection.read_exact(&mut value).await.map_err(unavailable)?;
            Ok(Reply::Value(Some(bytes as u64)))
        }
        Some(b'-') => Err(Error::Refused(line.to_owned())),
        _ => Err(unexpected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
