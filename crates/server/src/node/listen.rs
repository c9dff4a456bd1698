//! Listening port, and the signals that a node obeys.

use crate::config::Config;
use std::net::SocketAddr;
use stele_types::{Error, Result};
use tokio::net::TcpListener;
use tokio::signal::unix::{self, SignalKind};

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

/// Signal that a node obeys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGHUP.
    Reload,
}

/// Receiver of the signals of the process. None is lost while it exists.
pub(super) struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
    hang_up: unix::Signal,
}

impl Signals {
    /// Replaces what the system does at these signals.
    pub fn new() -> Result<Self> {
        let listen =
            |kind| unix::signal(kind).map_err(|error| Error::io("listen for", "signals", error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    /// Waits for the next signal to stop.
    pub async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}
