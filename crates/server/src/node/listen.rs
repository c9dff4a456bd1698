//! Listening port, and the signals that a node obeys.

use super::port_holder::holder;
use crate::config::Config;
use std::io;
use std::time::Duration;
use stele_types::{Error, Result, address};
use tokio::net::TcpListener;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::{Instant, timeout_at};

/// Time in which the advertised name must resolve: a name may be entered when its node starts.
const RESOLVE_MAX: Duration = Duration::from_secs(10);
/// Pause before the next attempt to resolve it.
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);

/// Binds the port; returns the listener and the advertised address, which resolves. Another port than
/// the configured one is never used: clients and other nodes would not find the node.
pub(super) async fn bind(config: &Config) -> Result<(TcpListener, String)> {
    let configured = config.listen.as_str();
    let bound = TcpListener::bind(configured).await;
    let listener = bound.map_err(|error| not_bound(configured, &error))?;
    let bound = listener.local_addr().map_err(|error| Error::io("listen", configured, error))?;
    let advertised = match config.advertise.is_empty() {
        true => bound.to_string(),
        false => {
            let address = config.advertise.as_str();
            let resolve = || async move { tokio::net::lookup_host(address).await.map(drop) };
            until_resolved(address, (RESOLVE_MAX, RESOLVE_PAUSE), resolve).await?;
            config.advertise.clone()
        }
    };
    Ok((listener, advertised))
}

fn not_bound(address: &str, error: &io::Error) -> Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return Error::invalid(format!("listen on {address}: {error}"));
    }
    let port = address::split(address).map_or(0, |(_, port)| port);
    let by = holder(port).map_or("another process".to_owned(), |holder| holder.to_string());
    Error::Refused(format!(
        "listen on {address}: port {port} is in use by {by}; stop it, or set `listen` to another port"
    ))
}

/// Waits until `resolve` succeeds, with a pause between attempts. Fails with `Invalid` after `max`.
async fn until_resolved<F: Future<Output = std::io::Result<()>>>(
    address: &str,
    (max, pause): (Duration, Duration),
    resolve: impl Fn() -> F,
) -> Result<()> {
    let deadline = Instant::now() + max;
    let mut is_logged = false;
    loop {
        let attempt = timeout_at(deadline, resolve()).await;
        let error = match attempt {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if Instant::now() + pause >= deadline {
            return Err(Error::invalid(format!(
                "advertise {address} does not resolve for {max:?}: {error}; enter the name, or set \
                 `advertise` to an address under which other nodes and clients reach this node"
            )));
        }
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!("advertise {address} does not resolve yet: {error}");
        }
        tokio::time::sleep(pause).await;
    }
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
    /// SIGUSR1 and SIGUSR2 end a process that does not listen for them.
    _ignored: [unix::Signal; 2],
}

impl Signals {
    /// Replaces what the system does at these signals.
    pub(super) fn new() -> Result<Self> {
        let listen =
            |kind| unix::signal(kind).map_err(|error| Error::io("listen for", "signals", error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hang_up: listen(SignalKind::hangup())?,
            _ignored: [listen(SignalKind::user_defined1())?, listen(SignalKind::user_defined2())?],
        })
    }

    pub(super) async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::Stop,
            _ = self.interrupt.recv() => Signal::Stop,
            _ = self.hang_up.recv() => Signal::Reload,
        }
    }

    pub(super) async fn stop(&mut self) {
        while self.next().await != Signal::Stop {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MAX: Duration = Duration::from_millis(300);
    const PAUSE: Duration = Duration::from_millis(20);

    /// Resolves a name that appears at the attempt `appears`.
    async fn resolved_at(appears: usize) -> Result<()> {
        let attempts = AtomicUsize::new(0);
        let resolve = || {
            let has_appeared = attempts.fetch_add(1, Ordering::Relaxed) >= appears;
            let error = || io::Error::other("no such name");
            std::future::ready(has_appeared.then_some(()).ok_or_else(error))
        };
        until_resolved("node-1:2379", (MAX, PAUSE), resolve).await
    }

    #[tokio::test]
    async fn a_port_in_use_is_named_with_the_process_that_holds_it() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let listen = held.local_addr().expect("bound").to_string();
        let port = listen.rsplit_once(':').expect("a port").1;
        let refused = bind(&Config { listen: listen.clone(), ..Config::default() }).await;
        let text = refused.expect_err("the port is in use").to_string();
        let process = std::process::id();
        assert!(text.contains(&format!("port {port} is in use by process {process} (")), "{text}");
        drop(held);
        bind(&Config { listen, ..Config::default() }).await.expect("it is free");
    }

    #[tokio::test]
    async fn an_advertised_name_that_does_not_resolve_is_retried_and_then_refused() {
        assert!(resolved_at(0).await.is_ok() && resolved_at(3).await.is_ok());
        let began = Instant::now();
        let text = resolved_at(usize::MAX).await.expect_err("it never resolves").to_string();
        assert!(began.elapsed() + PAUSE >= MAX, "{:?}", began.elapsed());
        assert!(text.contains("advertise node-1:2379 does not resolve for 300ms"), "{text}");
        assert!(text.contains("no such name"), "{text}");
        assert_eq!(RESOLVE_MAX.as_secs(), 10);
    }

    #[tokio::test]
    async fn a_name_server_that_does_not_answer_delays_a_start_by_the_same_time() {
        let refused = until_resolved("node-1:2379", (MAX, PAUSE), std::future::pending).await;
        let text = refused.expect_err("no answer").to_string();
        assert!(text.contains("no answer"), "{text}");
    }
}
