//! What reaches a node and what a node reaches: plain or over TLS, the identity of each side, and the calls that
//! it may make.
//!
//! Without TLS each connection has every right, so that a node serves it on loopback alone, or with
//! `insecure`. With TLS each connection has the identity of its certificate, and [`Rules`] say what that
//! identity may call.

mod accept;
mod audit;
mod caller;
mod calls;
mod file;
mod listener;
mod principal;
mod rules;
pub(crate) mod socket;
mod usage;

pub use accept::{Accepted, Handshakes};
pub use audit::{AdminCall, Audit};
pub use caller::{Origin, first_caller};
pub(crate) use caller::{answer_to, forwarded};
pub use calls::{CallClass, class_of};
pub(crate) use calls::{FOR_CLIENT, class_of_request, is_http_data};
pub(crate) use file::write as write_grants;
pub use listener::Listener;
pub use principal::{Denied, Principal, Rights};
pub use rules::{LiveRules, Rules, Standing};
pub use socket::{SeenNode, Socket, SocketReader, SocketWriter, plain};
pub(crate) use usage::WAIT_MAX;
pub use usage::{CountedConnection, OverLimit, Usage};

use crate::config::Config;
use axum::http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{
    ClientCertificates, ClientFiles, ClientName, ClientTls, HandshakeFailure, Identity, NodeName,
    Protocol, ServerCheck, ServerFiles, ServerTls, UnixTime,
};
use stele_types::{ClusterId, Error, Result, address};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// How a node accepts and makes connections. Clones share the same files.
#[derive(Clone, Debug, Default)]
pub struct Access {
    tls: Option<Arc<NodeTls>>,
    /// It is reached from other machines without TLS.
    is_insecure: bool,
    /// Beside TLS, connections without it are made and accepted.
    is_in_transition: bool,
    audit: Audit,
}

/// TLS of a node, with the rules for those that it identifies.
#[derive(Debug)]
pub struct NodeTls {
    server: ServerTls,
    client: ClientTls,
    node: NodeName,
    audit: Audit,
    rules: Arc<LiveRules>,
    failed: Mutex<Failed>,
    refused: Mutex<Failed>,
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

/// Failures by peer and cause.
#[derive(Debug, Default)]
struct Failed {
    /// Their number by cause.
    counts: BTreeMap<&'static str, u64>,
    logged: HashMap<(String, &'static str), Instant>,
}

impl Failed {
    /// Counts one; returns whether it is to be logged.
    fn note(&mut self, peer: String, cause: &'static str) -> bool {
        // bug server.handshakes_uncounted: `1` is `0`
        *self.counts.entry(cause).or_default() += 1;
        self.logged.retain(|_, at| at.elapsed() < LOG_PAUSE);
        let is_new =
            self.logged.len() < LOGGED_MAX && !self.logged.contains_key(&(peer.clone(), cause));
        if is_new {
            self.logged.insert((peer, cause), Instant::now());
        }
        is_new
    }
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
        let has_files = files.iter().any(|file| !file.is_empty());
        let is_in_transition = has_files && config.client_certificates == "transition";
        if has_files && let Some(missing) = files.iter().position(|file| file.is_empty()) {
            let key = ["tls_ca", "tls_cert", "tls_key"].get(missing).copied().unwrap_or_default();
            return Err(Error::invalid(format!(
                "{key} is not set: TLS needs tls_ca, tls_cert and tls_key; `stele cert` creates their files"
            )));
        }
        // bug server.transition_needs_no_consent: `is_in_transition` is `false`
        let is_insecure = (!has_files || is_in_transition) && Self::may_be_plain(config)?;
        let audit = Audit::open(config)?;
        let tls = match has_files {
            true => Some(Arc::new(NodeTls::open(config, audit.clone())?)),
            false => None,
        };
        if is_in_transition {
            tracing::warn!(
                "client_certificates is `transition`: connections without TLS have every right. Once all nodes \
                 have certificates, set it to `required` or `optional`"
            );
        }
        Ok(Self { tls, is_insecure, is_in_transition, audit })
    }

    /// Returns whether the node is reached from other machines without TLS. Fails with `Invalid` unless it may be.
    fn may_be_plain(config: &Config) -> Result<bool> {
        let beyond = config.listeners().find(|(_, listen)| !is_loopback(listen));
        // bug server.strangers_served: never
        if let Some((key, listen)) = beyond.filter(|_| !config.insecure) {
            return Err(Error::invalid(format!(
                "{key} is {listen}: without TLS, each process that reaches the port may read and delete every \
                 key. Set tls_ca, tls_cert and tls_key (`stele cert` creates the files), or `insecure` where \
                 only trusted processes reach it"
            )));
        }
        if !config.admin_listen.is_empty() && config.peer_listen.is_empty() {
            return Err(Error::invalid(
                "admin_listen without TLS needs peer_listen: only so calls of administrators differ from \
                 those that nodes forward",
            ));
        }
        Ok(beyond.is_some())
    }

    /// Returns which connections the node accepts.
    pub fn reach(&self) -> Reach {
        match &self.tls {
            Some(tls) => {
                let name = format!("node {} of cluster {}", tls.node, tls.rules().cluster);
                Reach::Identified(match self.is_in_transition {
                    true => format!("{name}; and each process without TLS"),
                    false => name,
                })
            }
            None if self.is_insecure => Reach::Insecure,
            None => Reach::Loopback,
        }
    }

    /// Returns the TLS of the node; `None` without TLS.
    pub fn tls(&self) -> Option<&Arc<NodeTls>> {
        self.tls.as_ref()
    }

    /// Returns the rights of the node's own calls to itself.
    ///
    /// Invariant: they are those of its connections to itself, under the rules that hold for nodes.
    /// Test: `a_node_calls_its_own_services_with_the_rights_of_a_node`.
    pub(crate) fn own_rights(&self) -> Rights {
        let Some(tls) = &self.tls else { return Rights::of_plain() };
        let (cluster, node) = (tls.rules().cluster.clone(), tls.node.clone());
        let own = Principal::Known(Identity::Node { cluster, node });
        Rights::new(own, tls.live_rules().clone()).recorded(tls.audit.clone(), None)
    }

    /// Returns whether connections without TLS are served beside those over it.
    pub fn is_in_transition(&self) -> bool {
        self.is_in_transition
    }

    /// Returns the audit log, which may be off.
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Connects to a node at `host:port`. In the transition to TLS, a node that does not speak it is connected to
    /// without it.
    pub async fn dial(&self, address: &str, protocol: Protocol) -> io::Result<Socket> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else { return Ok(plain(stream)) };
        let secured = self.secure(tls, stream, (address, protocol)).await;
        if secured.is_ok() || !self.is_in_transition {
            return secured;
        }
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(plain(stream))
    }

    async fn secure(
        &self,
        tls: &NodeTls,
        stream: TcpStream,
        (address, protocol): (&str, Protocol),
    ) -> io::Result<Socket> {
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

    /// Makes a channel to a node at `host:port`, which connects at its first call. `seen` has the node that it
    /// reaches.
    pub fn channel(&self, endpoint: &Endpoint, seen: SeenNode) -> Channel {
        endpoint.connect_with_connector_lazy(self.connector(seen))
    }

    /// Connects a channel to a node at `host:port`.
    pub async fn connect(
        &self,
        endpoint: &Endpoint,
    ) -> std::result::Result<Channel, tonic::transport::Error> {
        endpoint.connect_with_connector(self.connector(SeenNode::default())).await
    }

    fn connector(
        &self,
        seen: SeenNode,
    ) -> impl tower::Service<
        Uri,
        Response = TokioIo<Socket>,
        Error = io::Error,
        Future: Send + 'static,
    > + Send
    + 'static {
        let access = self.clone();
        service_fn(move |uri: Uri| {
            let (access, seen) = (access.clone(), seen.clone());
            async move {
                let address = uri.authority().map(|authority| authority.as_str().to_owned());
                let address =
                    address.ok_or_else(|| io::Error::other("no address to connect to"))?;
                let socket = access.dial(&address, Protocol::Http2).await?;
                seen.note(&socket);
                Ok(TokioIo::new(socket))
            }
        })
    }

    /// Puts the grants in force that the newest copy in the node's directories has. Fails with `Corrupt` or
    /// `Io` if none of the copies can be read.
    pub(crate) fn restore_grants(&self, dirs: &[PathBuf], cluster: ClusterId) -> Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        if let Some(grants) = file::newest(dirs, cluster)? {
            tls.rules.take_grants(grants);
        }
        Ok(())
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
    fn open(config: &Config, audit: Audit) -> Result<Self> {
        let now = UnixTime::now();
        let [authorities, certificate, key] =
            [&config.tls_ca, &config.tls_cert, &config.tls_key].map(PathBuf::from);
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
        let (administrators, grants) = (BTreeSet::new(), Arc::default());
        let rules = Arc::new(LiveRules::new(Rules { cluster, administrators, grants }));
        let (failed, refused) = (Mutex::default(), Mutex::default());
        let tls = Self { server, client, node, audit, rules, failed, refused };
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
        self.rules.get()
    }

    /// Returns the rules of open connections.
    pub fn live_rules(&self) -> &Arc<LiveRules> {
        &self.rules
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
        let administrators: BTreeSet<_> =
            config.administrators.iter().map(name).collect::<Result<_>>()?;
        if administrators == self.rules().administrators {
            return Ok(());
        }
        self.rules.change(|rules| rules.administrators = administrators);
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
        // Checks of the port do so.
        let is_check = cause == "closed";
        if !is_check {
            self.audit.handshake_failed(peer, &format!("{cause}: {detail}"));
        }
        let host = address::split(peer).map_or(peer, |(host, _)| host).to_owned();
        if !self.failed.lock().note(host, cause) {
            return;
        }
        match is_check {
            true => tracing::debug!("TLS handshake of {peer} failed ({cause}): {detail}"),
            false => tracing::warn!("TLS handshake of {peer} failed ({cause}): {detail}"),
        }
    }

    /// Counts that a node may not do what it asked for, and logs it unless the same was logged a moment ago.
    pub(crate) fn note_refused(&self, node: &str, cause: &'static str, detail: &str) {
        self.audit.node_refused(node, cause);
        if !self.refused.lock().note(node.to_owned(), cause) {
            return;
        }
        match cause {
            // Each node that joins is, for a moment.
            "hello_not_listed" => tracing::info!("node {node} is refused ({cause}): {detail}"),
            _ => tracing::warn!("node {node} is refused ({cause}): {detail}"),
        }
    }

    /// Returns the refusals of nodes since the start, by cause.
    pub fn refused_nodes(&self) -> BTreeMap<&'static str, u64> {
        self.refused.lock().counts.clone()
    }

    /// Returns the failed handshakes since the start, by cause.
    pub fn failed_handshakes(&self) -> BTreeMap<&'static str, u64> {
        self.failed.lock().counts.clone()
    }
}
