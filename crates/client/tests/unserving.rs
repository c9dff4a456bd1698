//! A node that speaks HTTP/2 and executes nothing.

use bytes::Bytes;
use h2::Reason;
use h2::server::Builder;
use std::future::poll_fn;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unserving {
    RefusesStreams,
    /// Ends the connection, and names no stream that it processes.
    GoesAway,
    /// Takes two streams and 64 KiB of a connection and no more.
    TakesNoMore,
    /// Takes it, and resets its stream without a statement about it.
    Resets,
}

/// A running node. It stops when it is dropped.
pub(crate) struct Node {
    pub address: String,
    task: AbortHandle,
    taken: watch::Receiver<Taken>,
}

/// What a node has received on the connection that has sent it most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Taken {
    streams: usize,
    bytes: usize,
    /// The client knows the node's settings.
    has_settings: bool,
}

/// What a node that takes no more has taken: both streams and the window of the connection.
const FULL: Taken = Taken { streams: 2, bytes: 65_535, has_settings: true };

impl Unserving {
    pub(crate) async fn start(self) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (taking, taken) = watch::channel(Taken::default());
        let serve = async move {
            while let Ok((stream, _)) = listener.accept().await {
                let taking = taking.clone();
                // The client may end the connection at any time.
                tokio::spawn(async move {
                    match self {
                        Self::GoesAway => drop(go_away(stream).await),
                        _ => drop(self.serve(stream, taking).await),
                    }
                });
            }
        };
        Node { address, task: tokio::spawn(serve).abort_handle(), taken }
    }

    async fn serve(self, stream: TcpStream, taking: watch::Sender<Taken>) -> Result<(), h2::Error> {
        let mut builder = Builder::new();
        if self == Self::TakesNoMore {
            builder.max_concurrent_streams(FULL.streams as u32);
        }
        let mut connection = builder.handshake::<_, Bytes>(stream).await?;
        if let Some(mut pings) = connection.ping_pong() {
            let taking = taking.clone();
            // Frames are answered in their order: the settings come before the ping.
            tokio::spawn(async move {
                if pings.ping(h2::Ping::opaque()).await.is_ok() {
                    taking.send_modify(|taken| taken.has_settings = true);
                }
            });
        }
        let mut open = Vec::new();
        while let Some(accepted) = connection.accept().await {
            let (mut request, mut respond) = accepted?;
            match self {
                Self::RefusesStreams => respond.send_reset(Reason::REFUSED_STREAM),
                Self::Resets => {
                    tokio::spawn(async move {
                        // A client that gives up before is the same here.
                        drop(request.body_mut().data().await);
                        respond.send_reset(Reason::INTERNAL_ERROR);
                    });
                }
                Self::GoesAway | Self::TakesNoMore => {
                    taking.send_modify(|taken| taken.streams += 1);
                    open.push(respond);
                    let taking = taking.clone();
                    // Nothing releases the capacity that the body uses.
                    tokio::spawn(async move {
                        while let Some(Ok(data)) =
                            poll_fn(|cx| request.body_mut().poll_data(cx)).await
                        {
                            taking.send_modify(|taken| taken.bytes += data.len());
                        }
                    });
                }
            }
        }
        Ok(())
    }
}

/// Says after the client's first bytes that no stream is processed, and reads on: an end of the
/// connection could overtake that.
async fn go_away(mut stream: TcpStream) -> std::io::Result<()> {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    stream.read_exact(&mut [0; 24]).await?;
    stream.write_all(&[&SETTINGS[..], &GOAWAY].concat()).await?;
    copy(&mut stream, &mut sink()).await.map(drop)
}

impl Node {
    /// Waits until a node that takes no more has taken all.
    pub(crate) async fn full(&mut self) {
        self.taken.wait_for(|taken| *taken == FULL).await.unwrap();
    }

    /// Waits until the node has taken so many streams.
    pub(crate) async fn has_streams(&mut self, streams: usize) {
        self.taken.wait_for(|taken| taken.streams >= streams).await.unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}
