//! TCP connections to gRPC servers with readers that yield regularly.

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::{Channel, Endpoint, Error};
use tower::ServiceExt;

/// Flow-control windows, sized for a few large values in flight.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Maximum bytes of a frame in a response. Each frame is one write of the server. The limit is the
/// largest that, with its header, fits into what the kernel passes to its device at once: 64 KiB
/// with IP and TCP headers.
const FRAME_BYTES_MAX: u32 = 60 << 10;
/// Bytes after which the reader of a connection yields. The consumer copies messages out of the
/// frames: after so many bytes they are still in the processor's cache, after a whole window they
/// are not.
const YIELD_BYTES: usize = 64 << 10;

/// Connects as the client connects to its nodes, so that a benchmark of another server uses the
/// same settings.
pub async fn connect(endpoint: Endpoint) -> Result<Channel, Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let yielding =
        tcp.map_response(|stream| TokioIo::new(YieldingStream::new(stream.into_inner())));
    endpoint
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .connect_with_connector(yielding)
        .await
}

/// A stream that makes its reader yield after [`YIELD_BYTES`], even if more bytes are available.
struct YieldingStream<S> {
    stream: S,
    left_bytes: usize,
}

impl<S> YieldingStream<S> {
    fn new(stream: S) -> Self {
        Self { stream, left_bytes: YIELD_BYTES }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for YieldingStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left_bytes == 0 {
            self.left_bytes = YIELD_BYTES;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = into.filled().len();
        let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(cx, into) else {
            // Waiting for bytes lets other tasks run.
            self.left_bytes = YIELD_BYTES;
            return Poll::Pending;
        };
        self.left_bytes = self.left_bytes.saturating_sub(into.filled().len() - before);
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for YieldingStream<S> {
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
        let sent: Vec<u8> = (0..YIELD_BYTES * 3).map(|at| (at % 251) as u8).collect();
        let mut stream = YieldingStream::new(sent.as_slice());
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut got, mut bytes_in_turn, mut turns) = (Vec::new(), 0, Vec::new());
        let mut page = [0; 4096];
        loop {
            let mut into = ReadBuf::new(&mut page);
            match Pin::new(&mut stream).poll_read(&mut cx, &mut into) {
                Poll::Ready(read) => read.unwrap(),
                Poll::Pending => {
                    turns.push(bytes_in_turn);
                    bytes_in_turn = 0;
                    // The bytes are already there, so no other event would wake the reader.
                    assert_eq!(wakes.0.load(Relaxed), turns.len() as u64);
                    continue;
                }
            }
            if into.filled().is_empty() {
                break;
            }
            bytes_in_turn += into.filled().len();
            got.extend_from_slice(into.filled());
        }
        assert_eq!(turns, [YIELD_BYTES; 3]);
        assert!(got == sent);
    }
}
