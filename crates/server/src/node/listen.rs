//! Listening port, and the signals that stop the process.

use crate::config::Config;
use std::net::SocketAddr;
use stele_types::{Error, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Bound of the search for a free port after the default one.
const PORTS_TRIED: u16 = 100;

/// Binds the port; returns the listener and the advertised address. If the default port is in use,
/// the next free one is used; a configured port is used or fails.
pub(super) async fn bind(config: &Config) -> Result<(TcpListener, String)> {
    let configured = config.listen.as_str();
    let is_default = configured == Config::default().listen;
    let mut result = TcpListener::bind(configured).await;
    if let (true, Ok(address)) = (is_default, configured.parse::<SocketAddr>()) {
        for port in address.port() + 1..address.port() + PORTS_TRIED {
            if !matches!(&result, Err(error) if error.kind() == std::io::ErrorKind::AddrInUse) {
                break;
            }
            result = TcpListener::bind((address.ip(), port)).await;
        }
    }
    let listener =
        result.map_err(|error| Error::invalid(format!("listen on {configured}: {error}")))?;
    let bound = listener.local_addr().map_err(|error| Error::io("listen", configured, error))?;
    let advertised = match config.advertise.is_empty() {
        true => bound.to_string(),
        false => config.advertise.clone(),
    };
    Ok((listener, advertised))
}

/// Waits for the first SIGTERM or SIGINT.
pub(super) async fn stop_signal() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else {
        return std::future::pending().await;
    };
    let Ok(mut interrupt) = signal(SignalKind::interrupt()) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
