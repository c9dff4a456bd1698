//! Redis's protocol (RESP 2), as far as the load needs it. A put counts once `WAIT` says that replicas
//! have it, which blocks its connection: each client has its own.

use super::target::lost;
use bytes::Bytes;
use parking_lot::Mutex;
use stele_types::{Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

/// A replica has so long to take a write.
const WAIT_MS: u64 = 5_000;
const LINE_BYTES_MAX: usize = 4096;
const BULK_BYTES_MAX: usize = 512 << 20;

enum Reply {
    Done,
    Number(i64),
    Value(Option<u64>),
}

/// A primary, with as many connections as there are calls at a time.
pub struct Redis {
    address: String,
    replicas: u64,
    idle: Mutex<Vec<BufStream<TcpStream>>>,
}

impl Redis {
    pub fn new(address: String, replicas: u64) -> Self {
        Self { address, replicas, idle: Mutex::default() }
    }

    /// Length of a value.
    pub async fn get(&self, key: Bytes) -> Result<Option<u64>> {
        let mut connection = self.take().await?;
        send(&mut connection, &[b"GET", &key]).await?;
        let Reply::Value(found) = receive(&mut connection).await? else { return Err(unexpected()) };
        self.idle.lock().push(connection);
        Ok(found)
    }

    pub async fn put(&self, key: Bytes, value: Bytes) -> Result<()> {
        self.write(&[b"SET", &key, &value]).await
    }

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
                Reply::Number(have) => return Err(lost(format!("{have} replicas have the write"))),
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
        let stream = TcpStream::connect(&self.address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        Ok(BufStream::new(stream))
    }
}

fn unexpected() -> Error {
    lost("an answer of another kind than asked for")
}

async fn send(connection: &mut BufStream<TcpStream>, parts: &[&[u8]]) -> Result<()> {
    let mut head = format!("*{}\r\n", parts.len());
    for part in parts {
        head.push_str(&format!("${}\r\n", part.len()));
        connection.write_all(head.as_bytes()).await.map_err(lost)?;
        connection.write_all(part).await.map_err(lost)?;
        "\r\n".clone_into(&mut head);
    }
    connection.write_all(head.as_bytes()).await.map_err(lost)
}

async fn receive(connection: &mut BufStream<TcpStream>) -> Result<Reply> {
    connection.flush().await.map_err(lost)?;
    let mut line = String::new();
    let mut bounded = (&mut *connection).take(LINE_BYTES_MAX as u64);
    bounded.read_line(&mut line).await.map_err(lost)?;
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
            connection.read_exact(&mut value).await.map_err(lost)?;
            Ok(Reply::Value(Some(bytes as u64)))
        }
        Some(b'-') => Err(Error::Refused(line.to_owned())),
        _ => Err(unexpected()),
    }
}
