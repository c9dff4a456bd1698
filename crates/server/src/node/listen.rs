//! The port, and the signals that end the process.

use crate::config::Config;
use std::net::SocketAddr;
use stele_types::{Error, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// Ports tried after the default one when it is taken.
const PORTS_TRIED: u16 = 100;

/// Binds the port, and tells the address that others are given. A taken default port makes the next
/// free one be used; a port that was asked for is that one or none.
pub(super) async fn bind(config: &Config) -> Result<(TcpListener, String)> {
    let asked = config.listen.as_str();
    let is_default = asked == Config::default().listen;
    let mut result = TcpListener::bind(asked).await;
    if let (true, Ok(address)) = (is_default, asked.parse::<SocketAddr>()) {
        for port in address.port() + 1..address.port() + PORTS_TRIED {
            if !matches!(&result, Err(error) if error.kind() == std::io::ErrorKind::AddrInUse) {
                break;
            }
            result = TcpListener::bind((address.ip(), port)).await;
        }
    }
    let listener = result.map_err(|error| Error::invalid(format!("listen on {asked}: {error}")))?;
    let bound = listener.local_addr().map_err(|error| Error::io("listen", asked, error))?;
    let advertised = match config.advertise.is_empty() {
        true => bound.to_string(),
        false => config.advertise.clone(),
    };
    Ok((listener, advertised))
}

/// Ends with the first SIGTERM or SIGINT.
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
