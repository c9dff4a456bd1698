//! Handshakes of accepted connections. They have bounds of their own, so that silent peers do not use up
//! the connections of a node.

use super::{NodeTls, Principal, Rights, Socket};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use stele_tls::{HandshakeFailure, Protocol, peer_identity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;

/// Most handshakes at the same time; for a further one the oldest ends.
const HANDSHAKES_MAX: usize = 256;
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Time for a peer to read the alert and to close: some report a broken connection instead of the
/// reason if this end closes first.
const LINGER: Duration = Duration::from_secs(1);
/// Bytes that are read meanwhile, at most.
const LINGER_BYTES_MAX: u64 = 64 << 10;

/// A connection after its handshake.
pub struct Accepted {
    /// Its bytes.
    pub socket: Socket,
    /// What it speaks.
    pub protocol: Protocol,
    /// What its caller may do.
    pub rights: Rights,
}

/// Handshakes under way, the oldest first.
#[derive(Debug, Default)]
pub struct Handshakes(Mutex<Started>);

#[derive(Debug, Default)]
struct Started {
    next: u64,
    /// Dropping an entry ends its handshake.
    under_way: VecDeque<(u64, oneshot::Sender<()>)>,
}

impl Handshakes {
    /// Begins one. If there are too many, the oldest ends.
    fn begin(&self) -> UnderWay<'_> {
        let (ended, end) = oneshot::channel();
        let mut started = self.0.lock();
        // bug server.handshakes_unbounded: never
        if started.under_way.len() >= HANDSHAKES_MAX {
            started.under_way.pop_front();
        }
        let number = started.next;
        started.next += 1;
        started.under_way.push_back((number, ended));
        UnderWay { of: self, number, end }
    }

    /// Performs the handshake of an accepted connection. `None` after a failure, which is logged.
    pub async fn accept(&self, tls: &Arc<NodeTls>, stream: TcpStream) -> Option<Accepted> {
        let peer = stream.peer_addr().map_or("unknown".to_owned(), |address| address.to_string());
        let mut under_way = self.begin();
        let handshake = TlsAcceptor::from(tls.server().config()).accept(stream).into_fallible();
        let done = tokio::select! {
            done = timeout(HANDSHAKE_TIME, handshake) => done,
            // The sender is dropped, never used.
            _ = &mut under_way.end => {
                tls.note_failed(&peer, "displaced", "more than 256 handshakes at once: the oldest ends");
                return None;
            }
        };
        drop(under_way);
        let stream = match done {
            Ok(Ok(stream)) => stream,
            Ok(Err((error, stream))) => {
                let failure = HandshakeFailure::of(&error);
                tls.note_failed(&peer, failure.label(), &format!("{error}; {}", failure.remedy()));
                // The connection ends in any case.
                let _ = timeout(LINGER, linger(stream)).await;
                return None;
            }
            Err(_) => {
                tls.note_failed(&peer, "timeout", "no handshake in 5 s");
                return None;
            }
        };
        let session = stream.get_ref().1;
        let protocol = session.alpn_protocol().and_then(Protocol::of);
        let identity = peer_identity(session.peer_certificates());
        let caller = match identity {
            Ok(identity) => identity.map_or(Principal::Anonymous, Principal::Known),
            Err(error) => {
                tls.note_failed(&peer, "wrong_identity", &error.to_string());
                return None;
            }
        };
        // A client that states no protocol speaks HTTP/1.
        let protocol = protocol.unwrap_or(Protocol::Http1);
        tls.audit.connected(&caller, &peer);
        let rights = Rights::new(caller, tls.live_rules().clone())
            .recorded(tls.audit.clone(), peer.parse().ok());
        Some(Accepted { socket: Either::Right(Box::new(stream.into())), protocol, rights })
    }
}

struct UnderWay<'a> {
    of: &'a Handshakes,
    number: u64,
    end: oneshot::Receiver<()>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.of.0.lock().under_way.retain(|(number, _)| *number != self.number);
    }
}

/// Closes the write side, and reads until the peer closes.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(LINGER_BYTES_MAX);
    let mut page = [0; 1 << 10];
    while rest.read(&mut page).await? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot::error::TryRecvError;

    #[test]
    fn the_oldest_of_too_many_handshakes_ends() {
        let handshakes = Handshakes::default();
        let mut begun: Vec<_> = (0..HANDSHAKES_MAX).map(|_| handshakes.begin()).collect();
        let ends = |it: &mut UnderWay<'_>| it.end.try_recv() == Err(TryRecvError::Closed);
        assert!(!begun.iter_mut().any(ends));
        drop(begun.remove(1));
        let _further = handshakes.begin();
        assert!(!begun.iter_mut().any(ends), "there is room");
        let _one_too_many = handshakes.begin();
        assert!(ends(&mut begun[0]) && !ends(&mut begun[1]));
    }
}
