//! Certificates of nodes and clients in a directory, and what connects with them.

use hyper_util::rt::TokioIo;
use std::path::PathBuf;
use std::sync::Arc;
use stele_server::config::Config;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::{
    Authority, ClientFiles, ClientName, ClientTls, ClusterName, Days, NodeName, NodeRequest,
    Protocol, ServerCheck, UnixTime,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

pub(crate) struct Certificates(tempfile::TempDir);

impl Certificates {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let days = Days::new(10).unwrap();
        Authority::create("test", days, UnixTime::now()).unwrap().write(dir.path()).unwrap();
        Self(dir)
    }

    fn authority(&self) -> Authority {
        Authority::open(self.0.path(), UnixTime::now()).unwrap()
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Creates the certificate of a node.
    pub(crate) fn node(&self, cluster: &str, name: &str) {
        let request = NodeRequest {
            cluster: ClusterName::new(cluster).unwrap(),
            node: NodeName::new(name).unwrap(),
            hosts: vec!["127.0.0.1".to_owned()],
        };
        let created = self.authority().node(&request, Days::new(5).unwrap(), UnixTime::now());
        created.unwrap().write(self.0.path()).unwrap();
    }

    /// Creates the certificate of a client.
    pub(crate) fn client(&self, name: &str) {
        let (name, days) = (ClientName::new(name).unwrap(), Days::new(5).unwrap());
        let created = self.authority().client(&name, days, UnixTime::now());
        created.unwrap().write(self.0.path()).unwrap();
    }

    /// Returns the configuration of the node with this name, of which `root` is an administrator.
    pub(crate) fn configured(&self, name: &str, config: Config) -> Config {
        Config {
            tls_ca: self.file("ca.pem"),
            tls_cert: self.file(&format!("{name}.pem")),
            tls_key: self.file(&format!("{name}.key")),
            administrators: vec!["root".to_owned()],
            ..config
        }
    }

    /// Returns a new connection of the node or client with this certificate.
    pub(crate) fn channel(&self, name: &str, address: &str) -> Channel {
        let [certificate, key] = ["pem", "key"].map(|it| self.file(&format!("{name}.{it}")).into());
        self.channel_with(Some((certificate, key)), address)
    }

    /// Returns a new connection without a certificate.
    pub(crate) fn anonymous(&self, address: &str) -> Channel {
        self.channel_with(None, address)
    }

    fn channel_with(&self, pair: Option<(PathBuf, PathBuf)>, address: &str) -> Channel {
        let files = ClientFiles { authorities: self.file("ca.pem").into(), pair };
        let tls = ClientTls::open(files, ServerCheck::HostName, UnixTime::now()).unwrap();
        let tls = Arc::new(tls);
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        endpoint.connect_with_connector_lazy(service_fn(move |uri: Uri| {
            let tls = tls.clone();
            async move {
                let address = uri.authority().map(ToString::to_string).unwrap_or_default();
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                let name = ServerName::try_from("127.0.0.1").map_err(std::io::Error::other)?;
                let connector = TlsConnector::from(tls.config(Protocol::Http2));
                connector.connect(name, stream).await.map(TokioIo::new)
            }
        }))
    }
}
