//! TLS of a client, or of a node that connects to other nodes: the authorities that it trusts, its own certificate,
//! and their reload.

use crate::files::{self, Content, Credentials, End};
use crate::server::refused;
use crate::{ClusterName, Identity, Protocol, TlsError, Warning, provider};
use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::PathBuf;
use std::sync::Arc;

/// Files of a client, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities that the client trusts.
    pub authorities: PathBuf,
    /// Its certificate with those of intermediate authorities, and its key; `None` connects without an identity.
    pub pair: Option<(PathBuf, PathBuf)>,
}

/// What the certificate of a server must prove besides its authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerCheck {
    /// It has the name or the IP address that was dialled among its alternative names.
    HostName,
    /// It is that of a node of this cluster, at whatever address: nodes move between addresses.
    NodeOf(ClusterName),
}

/// Configuration of a client that follows its files. It keeps the bytes of its files in memory, at most
/// 3 × [`crate::FILE_BYTES_MAX`].
#[derive(Debug)]
pub struct ClientTls {
    files: ClientFiles,
    check: ServerCheck,
    current: Mutex<Loaded>,
}

#[derive(Clone, Debug, PartialEq)]
struct Contents {
    authorities: Content,
    pair: Option<(Content, Content)>,
}

impl Contents {
    fn read(files: &ClientFiles) -> Result<Self, TlsError> {
        let authorities = files::read(&files.authorities)?;
        let pair = files.pair.as_ref();
        let pair = pair.map(|(certificate, key)| {
            Ok::<_, TlsError>((files::read(certificate)?, files::read(key)?))
        });
        Ok(Self { authorities, pair: pair.transpose()? })
    }
}

#[derive(Debug)]
struct Loaded {
    contents: Contents,
    config: ClientConfig,
    /// All but those of permissions.
    warnings: Vec<Warning>,
}

impl ClientTls {
    /// Reads and checks the files. Fails with the [`TlsError`] of the first that cannot be used.
    pub fn open(files: ClientFiles, check: ServerCheck, now: UnixTime) -> Result<Self, TlsError> {
        let loaded = load(&files, &check, Contents::read(&files)?, now)?;
        Ok(Self { files, check, current: Mutex::new(loaded) })
    }

    /// Reads the files again. Returns whether anything changed; the caller then drops the configurations that it
    /// took, and new connections have the new certificate.
    ///
    /// Invariant: a certificate and its key change together: while only one of the files is replaced, the old pair
    /// stays in force.
    /// Tests: `a_half_replaced_pair_keeps_the_old_pair`
    pub fn reload(&self, now: UnixTime) -> Result<bool, TlsError> {
        let contents = Contents::read(&self.files)?;
        let mut current = self.current.lock();
        if current.contents == contents {
            // Their permissions may be others.
            current.contents = contents;
            return Ok(false);
        }
        drop(current);
        let loaded = load(&self.files, &self.check, contents, now)?;
        *self.current.lock() = loaded;
        Ok(true)
    }

    /// Returns the configuration in force for connections of one protocol.
    pub fn config(&self, protocol: Protocol) -> Arc<ClientConfig> {
        let mut config = self.current.lock().config.clone();
        config.alpn_protocols = vec![protocol.name().to_vec()];
        Arc::new(config)
    }

    /// Returns what an operator must know of the files in force.
    pub fn warnings(&self) -> Vec<Warning> {
        let current = self.current.lock();
        let pair = self.files.pair.as_ref().zip(current.contents.pair.as_ref());
        let key = pair.and_then(|((_, path), (_, key))| files::key_warning(path, key));
        current.warnings.iter().cloned().chain(key).collect()
    }
}

fn load(
    files: &ClientFiles,
    check: &ServerCheck,
    contents: Contents,
    now: UnixTime,
) -> Result<Loaded, TlsError> {
    let authorities = files::authorities(&files.authorities, &contents.authorities.bytes, now)?;
    let mut credentials = None;
    if let (Some((path, key_path)), Some((certificate, key))) = (&files.pair, &contents.pair) {
        let certificate = (path.as_path(), certificate.bytes.as_slice());
        let of_key = (key_path.as_path(), key.bytes.as_slice());
        credentials = Some(files::credentials(certificate, of_key, End::Client, now)?);
    }
    let config = config(authorities.roots, check, credentials.as_ref())?;
    Ok(Loaded { contents, config, warnings: authorities.warnings })
}

fn config(
    roots: Arc<RootCertStore>,
    check: &ServerCheck,
    credentials: Option<&Credentials>,
) -> Result<ClientConfig, TlsError> {
    let failed = |doing, detail: String| TlsError::Library { doing, detail };
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| failed("choosing TLS 1.3", error.to_string()))?;
    let builder = match check {
        ServerCheck::HostName => {
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider()).build();
            let verifier =
                verifier.map_err(|error| failed("building the verifier", error.to_string()))?;
            builder.with_webpki_verifier(verifier)
        }
        ServerCheck::NodeOf(cluster) => {
            let algorithms = provider().signature_verification_algorithms;
            let verifier = NodesOf { roots, algorithms, cluster: cluster.clone() };
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    let mut config = match credentials {
        None => builder.with_no_client_auth(),
        Some(credentials) => {
            let resolver = SingleCertAndKey::from(Arc::clone(&credentials.certified));
            builder.with_client_cert_resolver(Arc::new(resolver))
        }
    };
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Verifier of nodes: as that of the library, but the certificate must name a node of the cluster instead of the
/// address.
#[derive(Debug)]
struct NodesOf {
    roots: Arc<RootCertStore>,
    algorithms: WebPkiSupportedAlgorithms,
    cluster: ClusterName,
}

impl ServerCertVerifier for NodesOf {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(leaf)?;
        let (roots, algorithms) = (&self.roots, self.algorithms.all);
        // bug tls.node_of_any_authority: skip
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
        let identity = Identity::of_certificate(leaf).map_err(refused)?;
        identity.is_node_of(&self.cluster).map_err(refused)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
