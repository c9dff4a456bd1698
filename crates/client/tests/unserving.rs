//! A node that speaks HTTP/2 and executes nothing.

use bytes::Bytes;
use h2::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
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
}

impl Unserving {
    pub(crate) async fn start(self) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = async move {
            while let Ok((stream, _)) = listener.accept().await {
                // The client may end the connection at any time.
                tokio::spawn(async move {
                    match self {
                        Self::GoesAway => drop(go_away(stream).await),
                        _ => drop(self.serve(stream).await),
                    }
                });
            }
        };
        Node { address, task: tokio::spawn(serve).abort_handle() }
    }

    async fn serve(self, stream: TcpStream) -> Result<(), h2::Error> {
        let mut builder = h2::server::Builder::new();
        if self == Self::TakesNoMore {
            builder.max_concurrent_streams(2);
        }
        let mut connection = builder.handshake::<_, Bytes>(stream).await?;
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
                // Nothing releases the capacity that the body uses.
                Self::GoesAway | Self::TakesNoMore => open.push((request, respond)),
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

impl Drop for Node {
    fn drop(&mut self) {
        self.task.abort();
    }
}
