//! The listener of probes: `/healthz` and `/readyz`, answered by a status code alone, without TLS and without
//! an identity. A probe of a container platform has no certificate, and learns whether to restart the node
//! or to send it clients, and nothing else.

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Most connections; further ones wait in the listener's queue.
const CONNECTIONS_MAX: usize = 64;
/// Longest life of a connection: a probe asks once.
const CONNECTION_TIME: Duration = Duration::from_secs(5);
const HEADER_BYTES_MAX: usize = 8 << 10;

/// Serves `routes` on the listener until `stop` turns true.
///
/// Invariant: the listener answers nothing but the state of the node, and holds a bounded number of
/// connections for a bounded time.
/// Tests: `probes_get_a_status_code_and_nothing_else`.
pub async fn serve(listener: TcpListener, routes: Router, mut stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        // The semaphore is never closed.
        let Some((place, accepted)) = accepted else { return };
        let Ok((stream, _)) = accepted else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let routes = routes.clone();
        tokio::spawn(async move {
            // An error of the connection concerns only the probe.
            let _ = timeout(CONNECTION_TIME, answer(stream, routes)).await;
            drop(place);
        });
    }
}

async fn answer(stream: TcpStream, routes: Router) {
    let mut builder = Builder::new(hyper_util::rt::TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(CONNECTION_TIME)
        .max_buf_size(HEADER_BYTES_MAX);
    let connection =
        builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // An error of the connection concerns only the probe.
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::StatusCode;
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn asked(address: std::net::SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = timeout(2 * CONNECTION_TIME, stream.read_to_string(&mut answer)).await;
        read.expect("the listener closes it").map_or_else(|error| error.to_string(), |_| answer)
    }

    #[tokio::test]
    async fn probes_get_a_status_code_and_nothing_else() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = watch::channel(false);
        let routes = Router::new()
            .route("/healthz", get(|| async { StatusCode::OK }))
            .route("/readyz", get(|| async { StatusCode::SERVICE_UNAVAILABLE }));
        let serving = tokio::spawn(serve(listener, routes, stopped));
        // Silent connections take no place for long.
        let mut silent = Vec::new();
        for _ in 0..2 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let request =
            |path: &str| format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        drop(silent);
        for (path, code) in
            [("/healthz", "200"), ("/readyz", "503"), ("/metrics", "404"), ("/", "404")]
        {
            let answer = asked(address, &request(path)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{path}: {answer}");
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            assert_eq!(body, "", "{path}");
        }
        let magic = String::from_utf8(crate::transport::MAGIC.to_vec()).unwrap();
        let answer = asked(address, &format!("{magic}\r\n\r\n")).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{answer}");
        stop.send_replace(true);
        timeout(Duration::from_secs(2), serving).await.unwrap().unwrap();
    }
}
