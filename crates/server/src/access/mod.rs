//! What reaches a node and what a node reaches: plain or over TLS, the identity of each side, and the calls that
//! it may make.
//!
//! Without TLS each connection has every right, so that a node serves it on loopback alone, or with
//! `insecure`. With TLS each connection has the identity of its certificate, and [`Rules`] say what that
//! identity may call.

mod accept;
mod calls;
mod principal;
pub(crate) mod socket;

pub use accept::{Accepted, Handshakes};
pub use calls::{CallClass, class_of};
pub use principal::{Denied, Principal, Rights, Rules};
pub use socket::{Socket, SocketReader, SocketWriter, plain};

use crate::config::Config;
use axum::http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::{Mutex, RwLock};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{
    ClientCertificates, ClientFiles, ClientName, ClientTls, HandshakeFailure, Identity, NodeName,
    Protocol, ServerCheck, ServerFiles, ServerTls, UnixTime,
};
use stele_types::{Error, Result, address};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// How a node accepts and makes connections. Clones share the same files.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tls: Option<Arc<NodeTls>>,
    is_insecure: bool,
}

/// TLS of a node, with the rules for those that it identifies.
#[derive(Debug)]
pub struct NodeTls {
    server: ServerTls,
    client: ClientTls,
    node: NodeName,
    rules: RwLock<Arc<Rules>>,
    failed: Mutex<Failed>,
}

/// Connections that a node accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those over TLS, under this identity of the node.
    Identified(String),
    /// Those of this machine, without TLS.
    Loopback,
    /// All, without TLS.
    Insecure,
}

/// Time in which one line for a peer and cause is logged.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Peers and causes that are remembered for it.
const LOGGED_MAX: usize = 1024;

#[derive(Debug, Default)]
struct Failed {
    /// Failed handshakes by cause.
    counts: BTreeMap<&'static str, u64>,
    logged: HashMap<(String, &'static str), Instant>,
}

impl Access {
    /// Reads the files that the configuration names. Fails with `Invalid` for settings that do not fit
    /// together, and with `Refused` for files that cannot be used.
    ///
    /// Invariant: a node that is reached from other machines identifies its callers, unless its operator
    /// decided otherwise.
    /// Tests: `a_node_without_tls_stays_on_loopback_unless_it_is_insecure`.
    pub fn open(config: &Config) -> Result<Self> {
        let files = [&config.tls_ca, &config.tls_cert, &config.tls_key];
        if files.iter().any(|file| !file.is_empty()) {
            if let Some(missing) = files.iter().position(|file| file.is_empty()) {
                let key =
                    ["tls_ca", "tls_cert", "tls_key"].get(missing).copied().unwrap_or_default();
                return Err(Error::invalid(format!(
                    "{key} is not set: TLS needs tls_ca, tls_cert and tls_key; `stele cert` creates their files"
                )));
            }
            return Ok(Self { tls: Some(Arc::new(NodeTls::open(config)?)), is_insecure: false });
        }
        // bug server.strangers_served: never
        if !config.insecure && !is_loopback(&config.listen) {
            return Err(Error::invalid(format!(
                "listen is {}: without TLS, each process that reaches the port may read and delete every key. \
                 Set tls_ca, tls_cert and tls_key (`stele cert` creates the files), or `insecure` where only \
                 trusted processes reach it",
                config.listen
            )));
        }
        Ok(Self { tls: None, is_insecure: !is_loopback(&config.listen) })
    }

    /// Returns which connections the node accepts.
    pub fn reach(&self) -> Reach {
        match &self.tls {
            Some(tls) => {
                Reach::Identified(format!("node {} of cluster {}", tls.node, tls.rules().cluster))
            }
            None if self.is_insecure => Reach::Insecure,
            None => Reach::Loopback,
        }
    }

    /// Returns the TLS of the node; `None` without TLS.
    pub fn tls(&self) -> Option<&Arc<NodeTls>> {
        self.tls.as_ref()
    }

    /// Connects to a node at `host:port`.
    pub async fn dial(&self, address: &str, protocol: Protocol) -> io::Result<Socket> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(plain(stream)) };
        let host = address::split(address).map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let connector = TlsConnector::from(tls.client.config(protocol));
        let stream = connector.connect(name, stream).await.map_err(|error| {
            let remedy = HandshakeFailure::of(&error).remedy();
            io::Error::new(error.kind(), format!("TLS: {error}; {remedy}"))
        })?;
        Ok(Either::Right(Box::new(stream.into())))
    }

    /// Makes a channel to a node at `host:port`, which connects at its first call.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        endpoint.connect_with_connector_lazy(self.connector())
    }

    /// Connects a channel to a node at `host:port`.
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> std::result::Result<Channel, tonic::transport::Error> {
        endpoint.connect_with_connector(self.connector()).await
    }

    fn connector(
        &self,
    ) -> impl tower::Service<
        Uri,
        Response = TokioIo<Socket>,
        Error = io::Error,
        Future: Send + 'static,
    > + Send
    + 'static {
        let access = self.clone();
        service_fn(move |uri: Uri| {
            let access = access.clone();
            async move {
                let address = uri.authority().map(|authority| authority.as_str().to_owned());
                let address =
                    address.ok_or_else(|| io::Error::other("no address to connect to"))?;
                access.dial(&address, Protocol::Http2).await.map(TokioIo::new)
            }
        })
    }

    /// Reads the files again and takes the names of administrators over. Files that cannot be used change
    /// nothing, and are an error. Returns whether connections that are made from now on differ.
    pub fn reload(&self, config: &Config) -> Result<bool> {
        let Some(tls) = &self.tls else { return Ok(false) };
        tls.set_administrators(config)?;
        let now = UnixTime::now();
        let (server, client) = (tls.server.reload(now)?, tls.client.reload(now)?);
        if server || client {
            tls.log_state();
        }
        Ok(server || client)
    }
}

/// Returns whether the address names this machine alone.
fn is_loopback(listen: &str) -> bool {
    let Ok((host, _)) = address::split(listen) else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

impl NodeTls {
    fn open(config: &Config) -> Result<Self> {
        let now = UnixTime::now();
        let [authorities, certificate, key] =
            [&config.tls_ca, &config.tls_cert, &config.tls_key].map(std::path::PathBuf::from);
        let pair = Some((certificate.clone(), key.clone()));
        let clients = match config.client_certificates.as_str() {
            "optional" => ClientCertificates::Optional,
            _ => ClientCertificates::Required,
        };
        let files = ServerFiles { authorities: authorities.clone(), certificate, key };
        let server = ServerTls::open(files, clients, now)?;
        let Identity::Node { cluster, node } = server.identity()? else {
            return Err(Error::invalid(format!(
                "tls_cert {} is the certificate of a client: create that of a node with `stele cert node`",
                config.tls_cert
            )));
        };
        let files = ClientFiles { authorities, pair };
        let client = ClientTls::open(files, ServerCheck::NodeOf(cluster.clone()), now)?;
        let rules = RwLock::new(Arc::new(Rules { cluster, administrators: BTreeSet::new() }));
        let tls = Self { server, client, node, rules, failed: Mutex::default() };
        tls.set_administrators(config)?;
        tls.log_state();
        Ok(tls)
    }

    /// Returns the certificate and the authorities of accepted connections.
    pub fn server(&self) -> &ServerTls {
        &self.server
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> Arc<Rules> {
        self.rules.read().clone()
    }

    /// Returns the name in the node's certificate.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    fn set_administrators(&self, config: &Config) -> Result<()> {
        let name = |name: &String| {
            ClientName::new(name)
                .map_err(|error| Error::invalid(format!("administrators: {error}")))
        };
        let administrators = config.administrators.iter().map(name).collect::<Result<_>>()?;
        let cluster = self.rules().cluster.clone();
        *self.rules.write() = Arc::new(Rules { cluster, administrators });
        Ok(())
    }

    fn log_state(&self) {
        let days = self.server.days_left(UnixTime::now());
        tracing::info!(
            "TLS: node {} of cluster {}, certificate valid for {days} days",
            self.node,
            self.rules().cluster
        );
        for warning in self.server.warnings() {
            tracing::warn!("TLS: {warning}");
        }
    }

    /// Counts a failed handshake, and logs it unless the same was logged a moment ago.
    fn note_failed(&self, peer: &str, cause: &'static str, detail: &str) {
        let host = address::split(peer).map_or(peer, |(host, _)| host).to_owned();
        let mut failed = self.failed.lock();
        *failed.counts.entry(cause).or_default() += 1;
        failed.logged.retain(|_, at| at.elapsed() < LOG_PAUSE);
        if failed.logged.len() >= LOGGED_MAX || failed.logged.contains_key(&(host.clone(), cause)) {
            return;
        }
        failed.logged.insert((host, cause), Instant::now());
        drop(failed);
        match cause {
            // Checks of the port do so.
            "closed" => tracing::debug!("TLS handshake of {peer} failed ({cause}): {detail}"),
            _ => tracing::warn!("TLS handshake of {peer} failed ({cause}): {detail}"),
        }
    }

    /// Returns the failed handshakes since the start, by cause.
    pub fn failed_handshakes(&self) -> BTreeMap<&'static str, u64> {
        self.failed.lock().counts.clone()
    }
}
