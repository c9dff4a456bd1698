//! Listening port, the process that holds it if it is in use, and the signals that a node obeys.

use super::Parts;
use crate::access::{Listener, Reach};
use crate::cluster_client::ClusterClient;
use crate::config::Config;
use crate::http::HttpService;
use crate::memory::{Accounted, ConnectionMemory, NodeMemory};
use crate::observe::{Health, probes};
use crate::port::{PortOptions, Stats};
use crate::redis::{self, ClusterExecutor, RedisPort};
use axum::Router;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};
use stele_types::{Error, Result, address};
use tokio::net::TcpListener;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// Time in which the advertised name must resolve: a name may be entered when its node starts.
const RESOLVE_MAX: Duration = Duration::from_secs(10);
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);

/// Addresses, `host:port`, under which others reach a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses {
    /// For other nodes: between them it names the node.
    pub nodes: String,
    /// For clients; empty: that for nodes.
    pub clients: String,
    /// For administrators; empty: that for clients.
    pub administrators: String,
}

impl Addresses {
    pub(super) fn for_clients(&self) -> &str {
        if self.clients.is_empty() { &self.nodes } else { &self.clients }
    }

    pub(super) fn for_administrators(&self) -> &str {
        match self.administrators.is_empty() {
            true => self.for_clients(),
            false => &self.administrators,
        }
    }
}

/// Bound ports of a node.
pub(super) struct Bound {
    /// Each with the calls that it serves; that of clients comes last.
    pub listeners: Vec<(TcpListener, Listener)>,
    pub probes: Option<TcpListener>,
    pub redis: Option<TcpListener>,
}

impl Parts {
    pub(super) fn serve_probes(
        &self,
        listener: Option<TcpListener>,
        health: &Health,
        stopping: &watch::Sender<bool>,
    ) {
        let Some(listener) = listener else { return };
        let serving =
            crate::port::probes::serve(listener, probes(health.clone()), stopping.subscribe());
        self.router.tasks.spawn_lasting("probes", serving);
    }

    /// Returns the client of the cluster that the node uses for its own clients. `services` are those that it calls on
    /// this node.
    pub(super) fn cluster_client(
        &self,
        services: Router,
        options: &PortOptions,
        memory: &Arc<NodeMemory>,
    ) -> Arc<ClusterClient> {
        let address = self.addresses.for_clients().to_owned();
        let memory = ConnectionMemory::new(memory, options.connection_window_bytes_max);
        let services = Accounted::new(services, memory, options.body, self.access.own_rights());
        Arc::new(ClusterClient::new(self.access.clone(), (address, services)))
    }

    pub(super) fn http(
        &self,
        client: Arc<ClusterClient>,
        stats: Arc<Stats>,
        stop: watch::Receiver<bool>,
    ) -> HttpService {
        let is_local = self.access.reach() == Reach::Loopback;
        HttpService::new(client, (self.clock.clone(), stats), is_local, stop)
    }

    pub(super) fn serve_redis(
        &self,
        (listener, client): (Option<TcpListener>, Arc<ClusterClient>),
        (options, memory, stats): (&PortOptions, &Arc<NodeMemory>, &Arc<Stats>),
        stopping: &watch::Sender<bool>,
    ) {
        let Some(listener) = listener else { return };
        let (stores, cursors) = (self.stores.clone(), self.cursors.clone());
        let executor = ClusterExecutor::new(client, stores, cursors, self.config.redis_flush);
        let (options, clock) = (options.clone(), self.clock.clone());
        let (memory, stats) = (memory.clone(), stats.clone());
        let port = RedisPort::new(Arc::new(executor), options, memory, stats, clock);
        let serving = redis::serve(listener, port, stopping.subscribe());
        self.router.tasks.spawn_lasting("redis", serving);
    }
}

/// Binds the ports; returns them with the advertised addresses, which resolve. Another port than a
/// configured one is never used: clients and other nodes would not find the node.
pub(super) async fn bind(config: &Config) -> Result<(Bound, Addresses)> {
    let only_if_set = |setting: &str| Some(setting.to_owned()).filter(|it| !it.is_empty());
    let (mut listeners, mut addresses) = (Vec::new(), Addresses::default());
    if let Some(at) = only_if_set(&config.admin_listen) {
        let (listener, bound) = bind_to("admin_listen", &at).await?;
        addresses.administrators = advertised_at(config, &at, bound);
        listeners.push((listener, Listener::Admin));
    }
    if let Some(at) = only_if_set(&config.peer_listen) {
        let (listener, bound) = bind_to("peer_listen", &at).await?;
        addresses.nodes = advertised_at(config, &at, bound);
        listeners.push((listener, Listener::Peer));
    }
    let (listener, bound) = bind_to("listen", &config.listen).await?;
    let common = Listener::Common {
        has_peer_listener: !config.peer_listen.is_empty(),
        has_admin_listener: !config.admin_listen.is_empty(),
    };
    listeners.push((listener, common));
    let advertised = match config.advertise.is_empty() {
        true => bound.to_string(),
        false => {
            let address = config.advertise.as_str();
            let resolve = || async move { tokio::net::lookup_host(address).await.map(drop) };
            until_resolved(address, (RESOLVE_MAX, RESOLVE_PAUSE), resolve).await?;
            config.advertise.clone()
        }
    };
    match addresses.nodes.is_empty() {
        true => addresses.nodes = advertised,
        false => addresses.clients = advertised,
    }
    let probes = match only_if_set(&config.health_listen) {
        Some(at) => Some(bind_to("health_listen", &at).await?.0),
        None => None,
    };
    let redis = match only_if_set(&config.redis_listen) {
        Some(at) => Some(bind_to("redis_listen", &at).await?.0),
        None => None,
    };
    Ok((Bound { listeners, probes, redis }, addresses))
}

async fn bind_to(key: &'static str, configured: &str) -> Result<(TcpListener, SocketAddr)> {
    let bound = TcpListener::bind(configured).await;
    let listener = bound.map_err(|error| not_bound(key, configured, &error))?;
    let bound = listener.local_addr().map_err(|error| Error::io(key, configured, error))?;
    Ok((listener, bound))
}

/// Returns the address of a listener besides that of `listen`: on every interface, the advertised host
/// stands for it.
fn advertised_at(config: &Config, configured: &str, bound: SocketAddr) -> String {
    let of = if bound.ip().is_unspecified() { &config.advertise } else { configured };
    match address::split(of) {
        Ok((host, _)) => format!("{host}:{}", bound.port()),
        Err(_) => bound.to_string(),
    }
}

fn not_bound(key: &str, address: &str, error: &io::Error) -> Error {
    if error.kind() != io::ErrorKind::AddrInUse {
        return Error::invalid(format!("{key} on {address}: {error}"));
    }
    let port = address::split(address).map_or(0, |(_, port)| port);
    let by = holder(port).map_or("another process".to_owned(), |holder| holder.to_string());
    Error::Refused(format!(
        "{key} on {address}: port {port} is in use by {by}; stop it, or set `{key}` to another port"
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

/// Number of the state LISTEN in the tables of `/proc/net`.
const LISTEN: &str = "0A";

/// A process that listens on a port, as far as `/proc` shows it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub process: u32,
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.process, self.name)
    }
}

/// Returns the process that listens on a port of this machine. `None` if this process may not see it,
/// or if it has ended.
pub(super) fn holder(port: u16) -> Option<Holder> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).ok());
    let sockets: BTreeSet<String> =
        tables.iter().flatten().flat_map(|table| listening(table, port)).collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find_map(|process| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
        let is_socket =
            |link: std::path::PathBuf| link.to_str().is_some_and(|link| sockets.contains(link));
        files
            .filter_map(|file| fs::read_link(file.path()).ok())
            .find(|link| is_socket(link.clone()))?;
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        Some(Holder { process, name: name.trim().to_owned() })
    })
}

/// Returns the sockets of a table that listen on the port, as the links in `/proc/PID/fd` name them.
fn listening(table: &str, port: u16) -> impl Iterator<Item = String> {
    table.lines().skip(1).filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let (_, of) = local.rsplit_once(':')?;
        let is_wanted = u16::from_str_radix(of, 16) == Ok(port) && state == LISTEN;
        let inode = words.nth(5)?;
        is_wanted.then(|| format!("socket:[{inode}]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const MAX: Duration = Duration::from_millis(300);
    const PAUSE: Duration = Duration::from_millis(20);

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
        let text = refused.err().expect("the port is in use").to_string();
        let process = std::process::id();
        assert!(text.contains(&format!("port {port} is in use by process {process} (")), "{text}");
        drop(held);
        assert!(bind(&Config { listen, ..Config::default() }).await.is_ok(), "it is free");
    }

    #[tokio::test]
    async fn nodes_are_given_the_address_of_peer_listen_and_clients_that_of_listen() {
        let config = Config {
            listen: "127.0.0.1:0".to_owned(),
            peer_listen: "0.0.0.0:0".to_owned(),
            advertise: "localhost:2379".to_owned(),
            ..Config::default()
        };
        let (bound, addresses) = bind(&config).await.unwrap_or_else(|error| panic!("{error}"));
        let port = bound.listeners[0].0.local_addr().expect("bound").port();
        assert_eq!(addresses.nodes, format!("localhost:{port}"), "its own port");
        assert_eq!(addresses.clients, "localhost:2379");
        let kinds: Vec<Listener> = bound.listeners.iter().map(|(_, it)| *it).collect();
        let common = Listener::Common { has_peer_listener: true, has_admin_listener: false };
        assert_eq!(kinds, [Listener::Peer, common]);
        let (_, addresses) = bind(&Config { peer_listen: String::new(), ..config })
            .await
            .unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((&addresses.nodes[..], &addresses.clients[..]), ("localhost:2379", ""));
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

    #[test]
    fn the_table_names_the_sockets_that_listen() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
           0: 0100007F:094B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77 1 0\n\
           1: 0100007F:094B 0100007F:A000 01 00000000:00000000 00:00000000 00000000  1000        0 78 1 0\n\
           2: 0100007F:094C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 79 1 0\n\
           nonsense\n";
        assert_eq!(listening(table, 2379).collect::<Vec<_>>(), ["socket:[77]"]);
        assert_eq!(listening(table, 2381).count(), 0);
    }
}
