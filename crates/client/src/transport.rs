//! The way to a gRPC server: TCP, read in turns.

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::{Channel, Endpoint, Error};
use tower::ServiceExt;

/// Flow-control windows: a few large values on their way.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Bytes in a frame of an answer. Each frame is a write of its node: the fewer the better, while it and
/// its head fit into what the kernel takes to its device at once, 64 KiB with the headers of IP and TCP.
const FRAME_BYTES_MAX: u32 = 60 << 10;
/// Bytes after which a connection's reader lets others run. Who takes the messages copies them out of the
/// frames: after a turn they are still in the processor's cache, after a whole window they are not.
const TURN_BYTES: usize = 64 << 10;

/// Connects as the client does to its nodes: so that a load on another server meets the same terms.
pub async fn connect(endpoint: Endpoint) -> Result<Channel, Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let in_turns = tcp.map_response(|stream| TokioIo::new(InTurns::new(stream.into_inner())));
    endpoint
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .connect_with_connector(in_turns)
        .await
}

/// A stream whose reader is told to come back later after [`TURN_BYTES`], though there may be more.
struct InTurns<S> {
    stream: S,
    left_bytes: usize,
}

impl<S> InTurns<S> {
    fn new(stream: S) -> Self {
        Self { stream, left_bytes: TURN_BYTES }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for InTurns<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left_bytes == 0 {
            self.left_bytes = TURN_BYTES;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, into) else {
            // Others run while it waits.
            self.left_bytes = TURN_BYTES;
            return Poll::Pending;
        };
        self.left_bytes = self.left_bytes.saturating_sub(into.filled().len() - before);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for InTurns<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Wakes(AtomicU64);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn a_reader_lets_others_run_after_a_turn_and_gets_each_byte() {
        let sent: Vec<u8> = (0..TURN_BYTES * 3).map(|at| (at % 251) as u8).collect();
        let mut stream = InTurns::new(sent.as_slice());
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut got, mut in_turn, mut turns) = (Vec::new(), 0, Vec::new());
        let mut page = [0; 4096];
        loop {
            let mut into = ReadBuf::new(&mut page);
            match Pin::new(&mut stream).poll_read(&mut cx, &mut into) {
                Poll::Ready(read) => read.unwrap(),
                Poll::Pending => {
                    turns.push(in_turn);
                    in_turn = 0;
                    // Nothing else would wake it: the bytes are there already.
                    assert_eq!(wakes.0.load(Relaxed), turns.len() as u64);
                    continue;
                }
            }
            if into.filled().is_empty() {
                break;
            }
            in_turn += into.filled().len();
            got.extend_from_slice(into.filled());
        }
        assert_eq!(turns, [TURN_BYTES; 3]);
        assert!(got == sent);
    }
}
