//! Certificates of a cluster, and those with which it is attacked.

use anyhow::{Context, Result};
use hyper_util::rt::TokioIo;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stele_tls::rustls::ClientConfig;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{
    Authority, ClientFiles, ClientName, ClientTls, ClusterName, Days, NodeName, NodeRequest,
    Protocol, ServerCheck, UnixTime,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

/// Client of the harness, an administrator.
pub(crate) const ADMINISTRATOR: &str = "root";
const DAYS: Days = Days::OF_LEAVES;

/// An authority with what it signed, in a directory.
#[derive(Clone, Debug)]
pub(crate) struct Certificates(PathBuf);

impl Certificates {
    /// Creates the directory and an authority in it.
    pub(crate) fn create(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        Authority::create("test", DAYS, UnixTime::now())?.write(&dir)?;
        Ok(Self(dir))
    }

    fn authority(&self) -> Result<Authority> {
        Ok(Authority::open(&self.0, UnixTime::now())?)
    }

    /// Signs the certificate of a node.
    pub(crate) fn node(&self, cluster: &str, name: &str) -> Result<()> {
        let request = NodeRequest {
            cluster: ClusterName::new(cluster)?,
            node: NodeName::new(name)?,
            hosts: vec!["127.0.0.1".to_owned()],
        };
        self.authority()?.node(&request, DAYS, UnixTime::now())?.write(&self.0)?;
        Ok(())
    }

    /// Signs the certificate of a client at a time.
    pub(crate) fn client(&self, name: &str, days: Days, at: UnixTime) -> Result<()> {
        self.authority()?.client(&ClientName::new(name)?, days, at)?.write(&self.0)?;
        Ok(())
    }

    /// Signs the certificate of a client.
    pub(crate) fn usual_client(&self, name: &str) -> Result<()> {
        self.client(name, DAYS, UnixTime::now())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Returns the settings of the node with this name.
    pub(crate) fn settings(&self, name: &str) -> Vec<(&'static str, String)> {
        let file = |name: String| self.file(&name).display().to_string();
        vec![
            ("tls_ca", file("ca.pem".to_owned())),
            ("tls_cert", file(format!("{name}.pem"))),
            ("tls_key", file(format!("{name}.key"))),
            ("administrators", ADMINISTRATOR.to_owned()),
        ]
    }

    /// Returns what connects with the certificate of this name, as far as it is valid at `at`. It trusts the
    /// authority of `trusted`.
    pub(crate) fn identity(&self, name: Option<&str>, trusted: &Self, at: UnixTime) -> Result<Tls> {
        let pair = |name| (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        let files = ClientFiles { authorities: trusted.file("ca.pem"), pair: name.map(pair) };
        Ok(Tls(Arc::new(ClientTls::open(files, ServerCheck::HostName, at)?)))
    }
}

/// What connects to nodes over TLS.
#[derive(Clone, Debug)]
pub(crate) struct Tls(Arc<ClientTls>);

impl Tls {
    pub(crate) fn config(&self, protocol: Protocol) -> Arc<ClientConfig> {
        self.0.config(protocol)
    }

    pub(crate) fn channel(&self, endpoint: &Endpoint) -> Channel {
        let config = self.config(Protocol::Http2);
        endpoint.connect_with_connector_lazy(service_fn(move |uri: Uri| {
            let config = config.clone();
            async move {
                let address = uri.authority().map(ToString::to_string).unwrap_or_default();
                connect(&address, config).await.map(TokioIo::new).map_err(std::io::Error::other)
            }
        }))
    }
}

/// Connects to `address` and performs the handshake.
pub(crate) async fn connect(
    address: &str,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1").context("a name")?;
    Ok(TlsConnector::from(config).connect(name, stream).await?)
}

/// Returns the time of `days` days ago.
pub(crate) fn days_ago(days: u64) -> UnixTime {
    let seconds = UnixTime::now().as_secs().saturating_sub(days * 86_400);
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Returns the certificates of a cluster of `nodes` nodes below `work`.
pub(crate) fn of_cluster(work: &Path, nodes: usize) -> Result<Certificates> {
    let certificates = Certificates::create(work.join("certificates"))?;
    for number in 0..nodes {
        certificates.node("prod", &node_name(number))?;
    }
    certificates.usual_client(ADMINISTRATOR)?;
    Ok(certificates)
}

pub(crate) fn node_name(number: usize) -> String {
    format!("n{number}")
}
