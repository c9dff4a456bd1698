//! TLS of a server: its certificate, the authorities of its clients, and their reload.

use crate::files::{self, Content, Credentials, End};
use crate::identity::IdentityError;
use crate::{Identity, Protocol, TlsError, Warning, provider};
use parking_lot::Mutex;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, ServerConfig,
    SignatureScheme,
};
use std::path::PathBuf;
use std::sync::Arc;

const SECONDS_PER_DAY: i64 = 86_400;

/// Files of a server, in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Authorities of clients and other nodes. While one replaces another, the file holds both.
    pub authorities: PathBuf,
    /// The certificate, followed by those of intermediate authorities.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
}

/// Whether clients need a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientCertificates {
    /// A handshake without a certificate fails.
    #[default]
    Required,
    /// A client without a certificate is connected without an identity. One that the authorities do not verify is
    /// refused as well.
    Optional,
}

/// Configuration of a server that follows its files. It keeps the bytes of its files in memory, at most
/// 3 × [`crate::FILE_BYTES_MAX`].
#[derive(Debug)]
pub struct ServerTls {
    files: ServerFiles,
    clients: ClientCertificates,
    current: Mutex<Loaded>,
}

#[derive(Clone, Debug, PartialEq)]
struct Contents {
    authorities: Content,
    certificate: Content,
    key: Content,
}

impl Contents {
    fn read(files: &ServerFiles) -> Result<Self, TlsError> {
        Ok(Self {
            authorities: files::read(&files.authorities)?,
            certificate: files::read(&files.certificate)?,
            key: files::read(&files.key)?,
        })
    }
}

#[derive(Debug)]
struct Loaded {
    contents: Contents,
    config: Arc<ServerConfig>,
    credentials: Credentials,
    /// All but those of permissions.
    warnings: Vec<Warning>,
}

impl ServerTls {
    /// Reads and checks the files. Fails with the [`TlsError`] of the first that cannot be used.
    pub fn open(
        files: ServerFiles,
        clients: ClientCertificates,
        now: UnixTime,
    ) -> Result<Self, TlsError> {
        let loaded = load(&files, Contents::read(&files)?, clients, now)?;
        Ok(Self { files, clients, current: Mutex::new(loaded) })
    }

    /// Reads the files again. Returns whether anything changed; new connections then have the new certificate and
    /// are verified by the new authorities. Reads three small files and compares them, so it may be called every
    /// few seconds.
    ///
    /// Invariant: files that cannot be used change nothing: the configuration in force stays until others come.
    /// Tests: `a_reload_refuses_each_bad_file_and_keeps_the_old_configuration`
    pub fn reload(&self, now: UnixTime) -> Result<bool, TlsError> {
        let contents = Contents::read(&self.files)?;
        let mut current = self.current.lock();
        if current.contents == contents {
            // Their permissions may be others.
            current.contents = contents;
            return Ok(false);
        }
        drop(current);
        let loaded = load(&self.files, contents, self.clients, now)?;
        *self.current.lock() = loaded;
        Ok(true)
    }

    /// Returns the configuration in force. A caller takes it for each connection.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.lock().config)
    }

    /// Returns what an operator must know of the files in force.
    pub fn warnings(&self) -> Vec<Warning> {
        let current = self.current.lock();
        let key = files::key_warning(&self.files.key, &current.contents.key);
        current.warnings.iter().cloned().chain(key).collect()
    }

    /// Returns the last moment of the certificate in force.
    pub fn not_after(&self) -> UnixTime {
        self.current.lock().credentials.facts.not_after
    }

    /// Returns the full days until the certificate in force expires; negative after that.
    pub fn days_left(&self, now: UnixTime) -> i64 {
        let seconds = |at: UnixTime| i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
        seconds(self.not_after()).saturating_sub(seconds(now)).div_euclid(SECONDS_PER_DAY)
    }

    /// Returns the identity of the certificate in force. Fails with [`TlsError::Identity`] if it names none, such as
    /// one that another program created for a server only.
    pub fn identity(&self) -> Result<Identity, TlsError> {
        let current = self.current.lock();
        let leaf = current.credentials.certified.cert.first().map(|leaf| leaf.as_ref());
        Identity::of_certificate(leaf.unwrap_or_default())
            .map_err(|source| TlsError::Identity { path: self.files.certificate.clone(), source })
    }
}

fn load(
    files: &ServerFiles,
    contents: Contents,
    clients: ClientCertificates,
    now: UnixTime,
) -> Result<Loaded, TlsError> {
    let authorities = files::authorities(&files.authorities, &contents.authorities.bytes, now)?;
    let credentials = files::credentials(
        (&files.certificate, &contents.certificate.bytes),
        (&files.key, &contents.key.bytes),
        End::Server,
        now,
    )?;
    let mut warnings = authorities.warnings;
    if !files::is_issued_by(&authorities.roots, &credentials.certified, now) {
        warnings.push(Warning::NotIssuedByAuthorities {
            certificate: files.certificate.clone(),
            authorities: files.authorities.clone(),
        });
    }
    let verifier = IdentifiedClients::new(authorities.roots, clients)?;
    let config = config(Arc::new(verifier), &credentials)?;
    Ok(Loaded { contents, config: Arc::new(config), credentials, warnings })
}

fn config(
    verifier: Arc<IdentifiedClients>,
    credentials: &Credentials,
) -> Result<ServerConfig, TlsError> {
    let resolver = SingleCertAndKey::from(Arc::clone(&credentials.certified));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| library("choosing TLS 1.3", &error))?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = Protocol::ALL.iter().map(|it| it.name().to_vec()).collect();
    // Invariant: every handshake verifies the client's certificate: no session is resumed.
    // Tests: `no_session_is_resumed`
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // bug tls.sessions_resumed: config.send_tls13_tickets = 2; config.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
    Ok(config)
}

fn library(doing: &'static str, error: &dyn std::fmt::Display) -> TlsError {
    TlsError::Library { doing, detail: error.to_string() }
}

/// Verifier of clients: the authorities verify the chain, and the leaf must give an identity. Therefore every
/// connection with a certificate has one.
#[derive(Debug)]
struct IdentifiedClients {
    chain: Arc<dyn ClientCertVerifier>,
}

impl IdentifiedClients {
    fn new(
        roots: Arc<rustls::RootCertStore>,
        clients: ClientCertificates,
    ) -> Result<Self, TlsError> {
        let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
        // Invariant: a server that requires certificates accepts no connection without one.
        // Tests: `a_client_without_a_certificate_is_refused_unless_certificates_are_optional`
        // bug tls.certificate_not_required: always
        if clients == ClientCertificates::Optional {
            builder = builder.allow_unauthenticated();
        }
        let chain = builder.build().map_err(|error| library("building the verifier", &error))?;
        Ok(Self { chain })
    }
}

/// Returns the error of a handshake in which the peer's identity is refused.
pub(crate) fn refused(error: IdentityError) -> rustls::Error {
    CertificateError::Other(OtherError(Arc::new(error))).into()
}

impl ClientCertVerifier for IdentifiedClients {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    /// Clients choose their certificate by these names, and some send none if theirs is of another authority.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.chain.verify_client_cert(leaf, intermediates, now)?;
        // Invariant: a certificate without an identity is refused in the handshake: its connection is never anonymous.
        // Tests: `a_certificate_with_a_malformed_identity_is_refused_in_the_handshake`
        // bug tls.connected_without_identity: skip
        Identity::of_certificate(leaf).map_err(refused)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
