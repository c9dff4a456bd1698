//! The bytes of a connection, plain or encrypted: what reads and writes them does not know which.

use parking_lot::Mutex;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use stele_tls::{Identity, NodeName, peer_identity};
use tokio::io::{AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_rustls::TlsStream;
use tokio_util::either::Either;

type Tls = Box<TlsStream<TcpStream>>;

/// Connection of either kind.
pub type Socket = Either<TcpStream, Tls>;

/// Half of a connection that is read.
pub type SocketReader = Either<OwnedReadHalf, ReadHalf<Tls>>;

/// Half of a connection that is written.
pub type SocketWriter = Either<OwnedWriteHalf, WriteHalf<Tls>>;

/// Returns a connection without TLS.
pub fn plain(stream: TcpStream) -> Socket {
    Either::Left(stream)
}

/// Returns the TCP connection below.
pub(crate) fn tcp(socket: &Socket) -> &TcpStream {
    match socket {
        Either::Left(tcp) => tcp,
        Either::Right(tls) => tls.get_ref().0,
    }
}

/// Returns the name of the node at the other end; `None` without TLS, and for a client.
pub(crate) fn node(socket: &Socket) -> Option<NodeName> {
    let Either::Right(tls) = socket else { return None };
    match peer_identity(tls.get_ref().1.peer_certificates()) {
        Ok(Some(Identity::Node { node, .. })) => Some(node),
        _ => None,
    }
}

/// Node at the other end of the last connection of a channel; none without TLS.
#[derive(Clone, Debug, Default)]
pub struct SeenNode(Arc<Mutex<Option<NodeName>>>);

impl SeenNode {
    pub(super) fn note(&self, socket: &Socket) {
        *self.0.lock() = node(socket);
    }

    /// Returns its name.
    pub(crate) fn get(&self) -> Option<NodeName> {
        self.0.lock().clone()
    }
}

/// Splits a connection into halves that two tasks may use.
pub(crate) fn into_halves(socket: Socket) -> (SocketReader, SocketWriter) {
    match socket {
        Either::Left(tcp) => {
            let (read, write) = tcp.into_split();
            (Either::Left(read), Either::Left(write))
        }
        Either::Right(tls) => {
            let (read, write) = split(tls);
            (Either::Right(read), Either::Right(write))
        }
    }
}

/// Writes `bytes` to the connection. An encrypted one may otherwise keep the last of them.
pub(crate) async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// Writes `bytes` if the connection takes all of them without a wait. Otherwise fails with `WouldBlock`;
/// then a part of them may be written, so that the connection must be closed.
pub(crate) fn send_now(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    match pin!(send(to, bytes)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(written) => written,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_connection_does_not_take_at_once_is_an_error_and_not_a_wait() {
        let (mut near, far) = tokio::io::duplex(16);
        send_now(&mut near, &[1; 16]).unwrap();
        let refused = send_now(&mut near, &[2]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(far);
    }
}
