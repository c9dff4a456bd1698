//! Attacks on nodes with certificates: by connections without one, by the wrong ones, and by a client within TLS.

use super::calls::{answers, messages};
use crate::cluster::certificates::{Certificates, Tls, connect, days_ago};
use anyhow::{Context, Result, bail, ensure};
use std::sync::Arc;
use std::time::Duration;
use stele_proto::Method;
use stele_tls::rustls::pki_types::pem::PemObject;
use stele_tls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use stele_tls::rustls::{ClientConfig, RootCertStore, crypto};
use stele_tls::{Days, Protocol, UnixTime};
use stele_types::Prng;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::Code;
use tonic::transport::Endpoint;

/// Time for an answer of a node, on a busy machine.
const LIMIT: Duration = Duration::from_secs(10);
const SERVED_LIMIT: Duration = Duration::from_millis(300);
/// Sockets that begin no handshake, of each node: more than the handshakes that it has at once.
const SILENT: usize = 300;
/// Time after which a node ends a handshake, and time to spare.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(8);
/// Services that no client may call: those of operators and of the cluster's own nodes.
const NOT_FOR_CLIENTS: [&str; 2] = ["/stele.control.v1.Control/", "/stele.redis.v1.Redis/"];
/// First bytes of a connection of nodes.
const PEER_MAGIC: &[u8] = b"STELEPR1";

/// How a node meets an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Met {
    /// The handshake fails.
    Refused,
    /// Each call is denied.
    Denied,
    /// Calls of data are served, others denied.
    Served,
}

/// Identities, with the name of each and how it is met.
pub(crate) struct Identities {
    all: Vec<(&'static str, Tls, Met)>,
    app: Tls,
    node: Tls,
    chain: Arc<ClientConfig>,
}

impl Identities {
    /// Creates the identities that the authority of a cluster signs, and those of others in `other`.
    pub(crate) fn create(certificates: &Certificates, other: &Certificates) -> Result<Self> {
        let now = UnixTime::now();
        certificates.usual_client("app")?;
        certificates.node("other", "foreign")?;
        // Its client still takes it for valid.
        certificates.client("old", Days::new(1).context("a day")?, days_ago(3))?;
        other.usual_client("app")?;
        other.node("prod", "n0")?;
        let own = |name, at| certificates.identity(name, certificates, at);
        let foreign = |name| other.identity(Some(name), certificates, now);
        let app = own(Some("app"), now)?;
        let all = vec![
            ("no certificate", own(None, now)?, Met::Refused),
            ("a client of another authority", foreign("app")?, Met::Refused),
            ("a node of another authority", foreign("n0")?, Met::Refused),
            ("an expired certificate", own(Some("old"), days_ago(3))?, Met::Refused),
            ("a node of another cluster", own(Some("foreign"), now)?, Met::Denied),
            ("a client", app.clone(), Met::Served),
        ];
        let (node, chain) = (own(Some("n0"), now)?, long_chain(certificates)?);
        Ok(Self { all, app, node, chain })
    }

    /// Calls every method of every service under each identity; returns the number of calls.
    pub(crate) async fn calls(&self, address: &str, prng: &mut Prng) -> Result<u64> {
        let mut calls = JoinSet::new();
        for (name, tls, met) in &self.all {
            let endpoint = Endpoint::from_shared(format!("http://{address}"))?.timeout(LIMIT);
            let shared = tls.channel(&endpoint);
            for path in Method::all().iter().map(Method::path) {
                // A refused handshake is one of each call.
                let channel = match met {
                    Met::Refused => tls.channel(&endpoint),
                    Met::Denied | Met::Served => shared.clone(),
                };
                let (name, met) = (*name, *met);
                // Some calls that are served have no end.
                let is_served = met == Met::Served && !is_not_for_clients(path);
                let limit = if is_served { SERVED_LIMIT } else { LIMIT };
                let message = messages(prng).swap_remove(0);
                calls.spawn(async move {
                    let answer = timeout(limit, answers(channel, path, message)).await;
                    let code = answer.map_or(Code::DeadlineExceeded, |answer| match answer {
                        Ok(()) => Code::Ok,
                        Err(status) => status.code(),
                    });
                    check(met, path, code).with_context(|| format!("{name} called {path}"))
                });
                // Below the bound of handshakes, which would end others.
                if calls.len() >= 64 {
                    calls.join_next().await.context("a call")???;
                }
            }
        }
        let count = (self.all.len() * Method::all().len()) as u64;
        while let Some(checked) = calls.join_next().await {
            checked??;
        }
        Ok(count)
    }

    /// Speaks the protocol of nodes under each identity, and plain bytes: nothing is answered.
    pub(crate) async fn peers(&self, address: &str) -> Result<u64> {
        for (name, tls, _) in &self.all {
            let exchange = async {
                let mut stream = connect(address, tls.config(Protocol::Node)).await?;
                stream.write_all(&[PEER_MAGIC, &[7; 5_000]].concat()).await?;
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).await.context("the end")?;
                anyhow::Ok(answer)
            };
            // A failed handshake or a broken connection is a refusal.
            let answer = timeout(LIMIT, exchange).await.context("no end of the connection")?;
            ensure!(answer.unwrap_or_default().is_empty(), "{name} got an answer as a node");
        }
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n").await?;
        let mut answer = Vec::new();
        timeout(LIMIT, stream.read_to_end(&mut answer)).await.context("no end")??;
        // The alert of TLS, which has seven bytes.
        ensure!(answer.len() <= 7, "a plain request was answered: {answer:?}");
        Ok(self.all.len() as u64 + 1)
    }

    /// Handshakes that are too large.
    pub(crate) async fn giants(&self, address: &str) -> Result<u64> {
        let taken = giant_hello(address).await?;
        ensure!(taken < 16 << 20, "a hello of {taken} bytes was taken");
        let exchange = async {
            let mut stream = connect(address, self.chain.clone()).await?;
            stream.write_all(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n").await?;
            let mut answer = [0; 64];
            let bytes = stream.read(&mut answer).await?;
            anyhow::Ok(bytes)
        };
        let answer = timeout(LIMIT, exchange).await.context("no end of a long chain")?;
        ensure!(answer.unwrap_or(0) == 0, "a chain of a megabyte was taken");
        Ok(2)
    }

    /// Opens a way into TLS for attacks that know none, as a client or as a node of the cluster.
    pub(crate) async fn proxies(&self, address: &str) -> Result<[Proxy; 2]> {
        let client = Proxy::start(address, self.app.config(Protocol::Http2)).await?;
        Ok([client, Proxy::start(address, self.node.config(Protocol::Node)).await?])
    }

    /// Connects as a client while others take the places of handshakes.
    pub(crate) async fn is_served(&self, address: &str) -> Result<()> {
        let exchange = async {
            let mut stream = connect(address, self.app.config(Protocol::Http1)).await?;
            let request = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(request).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            ensure!(answer.contains("200 OK"), "{answer}");
            Ok(())
        };
        timeout(LIMIT, exchange).await.context("a client is not served")?
    }
}

fn is_not_for_clients(path: &str) -> bool {
    NOT_FOR_CLIENTS.iter().any(|service| path.starts_with(service))
}

fn check(met: Met, path: &str, code: Code) -> Result<()> {
    let is_denied = code == Code::PermissionDenied;
    let is_met = match met {
        // What tonic makes of a failed connection.
        Met::Refused => matches!(code, Code::Unavailable | Code::Unknown | Code::Cancelled),
        Met::Denied => is_denied,
        Met::Served => is_denied == is_not_for_clients(path),
    };
    ensure!(is_met, "the answer is {code:?}");
    Ok(())
}

/// Holds silent and slow connections until the node has ended all of them.
pub(crate) async fn silent_handshakes(address: &str) -> Result<u64> {
    let mut open = Vec::new();
    for nth in 0..SILENT {
        let mut stream = TcpStream::connect(address).await?;
        // A record that says that it has 512 bytes, of which a few come.
        let begun = [22, 3, 1, 2, 0, 1, 0, 1, 252];
        stream.write_all(&begun[..nth % begun.len()]).await?;
        open.push(stream);
    }
    let dripping = open.split_off(SILENT - 20).into_iter().map(TcpStream::into_split);
    let (slow, mut writers): (Vec<_>, Vec<_>) = dripping.unzip();
    let drip = async {
        loop {
            for stream in &mut writers {
                // The node may have closed it.
                let _ = stream.write_all(&[3]).await;
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let ended = async {
        let deadline = Instant::now() + HANDSHAKE_LIMIT;
        for stream in &mut open {
            is_ended(stream, deadline).await?;
        }
        for mut stream in slow {
            is_ended(&mut stream, deadline).await?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        ended = ended => ended?,
        () = drip => bail!("unreachable"),
    }
    Ok(SILENT as u64)
}

async fn is_ended(stream: &mut (impl AsyncRead + Unpin), deadline: Instant) -> Result<()> {
    let mut byte = [0; 64];
    loop {
        match timeout_at(deadline, stream.read(&mut byte)).await {
            Ok(Ok(0) | Err(_)) => return Ok(()),
            // An alert.
            Ok(Ok(_)) => {}
            Err(_) => bail!("a handshake has no end"),
        }
    }
}

/// Sends a hello that states 16 MiB; returns the bytes that were taken.
async fn giant_hello(address: &str) -> Result<usize> {
    let mut stream = TcpStream::connect(address).await?;
    let record = |body: &[u8]| [&[22, 3, 1, 0x40, 0][..], body].concat();
    let mut first = vec![0; 1 << 14];
    first[..4].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
    let more = record(&vec![0; 1 << 14]);
    let mut taken = 0;
    let sending = async {
        stream.write_all(&record(&first)).await?;
        while taken < 64 << 20 {
            stream.write_all(&more).await?;
            taken += more.len();
        }
        std::io::Result::Ok(())
    };
    // The node ends the connection, with an error here.
    let _ = timeout(HANDSHAKE_LIMIT, sending).await;
    Ok(taken)
}

/// Returns what connects with a valid certificate and a megabyte of others behind it.
fn long_chain(certificates: &Certificates) -> Result<Arc<ClientConfig>> {
    let read = |name: &str| CertificateDer::from_pem_file(certificates.file(name));
    let authority = read("ca.pem")?;
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    let copies = (1 << 20) / authority.len();
    let mut chain = vec![read("app.pem")?];
    chain.extend(std::iter::repeat_n(authority, copies));
    let key = PrivateKeyDer::from_pem_file(certificates.file("app.key"))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config?.with_root_certificates(roots).with_client_auth_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// Way into TLS: what connects here reaches a node under an identity.
pub(crate) struct Proxy {
    pub address: String,
    accepting: JoinHandle<()>,
}

impl Proxy {
    async fn start(address: &str, config: Arc<ClientConfig>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (own, target) = (listener.local_addr()?.to_string(), address.to_owned());
        let accepting = tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (config, target) = (config.clone(), target.clone());
                tokio::spawn(async move {
                    if let Ok(mut far) = connect(&target, config).await {
                        // Either end may break it.
                        let _ = copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Ok(Self { address: own, accepting })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
