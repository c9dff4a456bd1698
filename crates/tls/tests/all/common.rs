//! A directory of certificates, and connections in memory.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stele_tls::rustls::pki_types::ServerName;
use stele_tls::rustls::{ClientConfig, ClientConnection, Error, ServerConfig, ServerConnection};
use stele_tls::{
    Authority, ClientCertificates, ClientFiles, ClientName, ClientTls, ClusterName, Days, NodeName,
    NodeRequest, Protocol, ServerCheck, ServerFiles, ServerTls, TlsError, UnixTime, Written,
};

pub(crate) const DAY: i64 = 86_400;

/// Returns the present time, which rustls reads itself in a handshake, moved by some seconds.
pub(crate) fn now_plus(seconds: i64) -> UnixTime {
    let now = i64::try_from(UnixTime::now().as_secs()).unwrap();
    UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now + seconds).unwrap()))
}

pub(crate) fn now() -> UnixTime {
    now_plus(0)
}

pub(crate) fn days(days: u64) -> Days {
    Days::new(days).unwrap()
}

/// A directory in which `stele cert ca` ran.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        let created = Authority::create("test", Days::OF_AUTHORITIES, now_plus(-400 * DAY));
        created.unwrap().write(place.path()).unwrap();
        place
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn authority(&self) -> Authority {
        Authority::open(self.path(), now()).unwrap()
    }

    pub(crate) fn node_of(&self, cluster: &str, node: &str, hosts: &[&str]) -> Written {
        let request = NodeRequest {
            cluster: ClusterName::new(cluster).unwrap(),
            node: NodeName::new(node).unwrap(),
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
        };
        let created = self.authority().node(&request, Days::OF_LEAVES, now()).unwrap();
        created.write(self.path()).unwrap()
    }

    pub(crate) fn node(&self, node: &str) -> Written {
        self.node_of("prod", node, &["localhost", "127.0.0.1"])
    }

    pub(crate) fn client(&self, name: &str) -> Written {
        self.client_of(name, 0, 365)
    }

    /// Creates a certificate of a client `shift` seconds from now.
    pub(crate) fn client_of(&self, name: &str, shift: i64, valid: u64) -> Written {
        let name = ClientName::new(name).unwrap();
        let at = now_plus(shift);
        let created = self.authority().client(&name, days(valid), at).unwrap();
        created.write(self.path()).unwrap()
    }

    pub(crate) fn server_files(&self, pair: &Written) -> ServerFiles {
        ServerFiles {
            authorities: self.file("ca.pem"),
            certificate: pair.certificate.clone(),
            key: pair.key.clone(),
        }
    }

    pub(crate) fn server(&self, pair: &Written, clients: ClientCertificates) -> ServerTls {
        ServerTls::open(self.server_files(pair), clients, now()).unwrap()
    }

    pub(crate) fn client_files(&self, pair: Option<&Written>) -> ClientFiles {
        ClientFiles {
            authorities: self.file("ca.pem"),
            pair: pair.map(|pair| (pair.certificate.clone(), pair.key.clone())),
        }
    }

    pub(crate) fn connect(&self, pair: Option<&Written>) -> ClientTls {
        self.connect_as(pair, ServerCheck::HostName).unwrap()
    }

    pub(crate) fn connect_as(
        &self,
        pair: Option<&Written>,
        check: ServerCheck,
    ) -> Result<ClientTls, TlsError> {
        ClientTls::open(self.client_files(pair), check, now())
    }
}

/// Copies a pair of files over another, as a tool that renews certificates does.
pub(crate) fn replace(pair: &Written, by: &Written) {
    std::fs::copy(&by.certificate, &pair.certificate).unwrap();
    std::fs::copy(&by.key, &pair.key).unwrap();
}

/// Both ends of a connection, or their first errors.
pub(crate) struct Met {
    pub client: ClientConnection,
    pub server: ServerConnection,
    pub client_error: Option<Error>,
    pub server_error: Option<Error>,
}

impl Met {
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!((&self.client_error, &self.server_error), (&None, &None));
        assert!(!self.client.is_handshaking() && !self.server.is_handshaking());
        self
    }

    #[track_caller]
    pub(crate) fn refused_by_server(self) -> Error {
        self.server_error.expect("the server accepted the client")
    }

    #[track_caller]
    pub(crate) fn refused_by_client(self) -> Error {
        self.client_error.expect("the client accepted the server")
    }
}

pub(crate) fn meet_at(client: Arc<ClientConfig>, server: Arc<ServerConfig>, dialled: &str) -> Met {
    let dialled = ServerName::try_from(dialled.to_owned()).unwrap();
    let mut met = Met {
        client: ClientConnection::new(client, dialled).unwrap(),
        server: ServerConnection::new(server).unwrap(),
        client_error: None,
        server_error: None,
    };
    let mut idle = false;
    while !idle {
        idle = true;
        let mut bytes = Vec::new();
        while met.client.wants_write() {
            met.client.write_tls(&mut bytes).unwrap();
        }
        if !bytes.is_empty() && met.server_error.is_none() {
            idle = false;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() && met.server_error.is_none() {
                met.server.read_tls(&mut rest).unwrap();
                met.server_error = met.server.process_new_packets().err();
            }
        }
        let mut bytes = Vec::new();
        while met.server.wants_write() {
            met.server.write_tls(&mut bytes).unwrap();
        }
        if !bytes.is_empty() && met.client_error.is_none() {
            idle = false;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() && met.client_error.is_none() {
                met.client.read_tls(&mut rest).unwrap();
                met.client_error = met.client.process_new_packets().err();
            }
        }
    }
    met
}

pub(crate) fn meet(client: &ClientTls, server: &ServerTls) -> Met {
    meet_at(client.config(Protocol::Http2), server.config(), "localhost")
}

/// Sends bytes from one end to the other of a finished handshake.
pub(crate) fn send(met: &mut Met, text: &[u8]) -> Vec<u8> {
    met.client.writer().write_all(text).unwrap();
    let mut bytes = Vec::new();
    while met.client.wants_write() {
        met.client.write_tls(&mut bytes).unwrap();
    }
    met.server.read_tls(&mut bytes.as_slice()).unwrap();
    met.server.process_new_packets().unwrap();
    let mut read = vec![0; text.len()];
    met.server.reader().read_exact(&mut read).unwrap();
    read
}
