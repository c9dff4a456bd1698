//! Certificates for `stele cert`: an authority, and the nodes and clients that it signs. Keys are ECDSA P-256, which
//! every TLS library knows; Ed25519 fails in those of gRPC for C++, Python and Java (measured with 11 clients).

use crate::files::{self, Facts};
use crate::{ClientName, ClusterName, Identity, NodeName, TlsError, UnixTime, provider};
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::DnsName;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use time::OffsetDateTime;

/// Name of an authority's files in a directory: `ca.pem` and `ca.key`.
const AUTHORITY_STEM: &str = "ca";
/// Bytes of a random serial number; RFC 5280 allows at most 20.
const SERIAL_BYTES: usize = 20;
/// Time before its creation from which a certificate is valid: clocks of other machines may be late.
const SKEW_SECONDS: u64 = 3_600;
const SECONDS_PER_DAY: u64 = 86_400;
/// Longest common name that RFC 5280 allows, in bytes.
const COMMON_NAME_BYTES_MAX: usize = 64;
const KEY_MODE: u32 = 0o600;
const CERTIFICATE_MODE: u32 = 0o644;

/// Days of validity, 1 to 36,500.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Days(u64);

impl Days {
    /// Most days.
    pub const MAX: u64 = 36_500;
    /// Usual validity of an authority.
    pub const OF_AUTHORITIES: Self = Self(3_650);
    /// Usual validity of a node or client.
    pub const OF_LEAVES: Self = Self(365);

    /// Returns the number of days; `None` out of bounds.
    pub fn new(days: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&days).then_some(Self(days))
    }
}

/// What the certificate of a node states.
#[derive(Clone, Debug)]
pub struct NodeRequest {
    /// The cluster.
    pub cluster: ClusterName,
    /// The node.
    pub node: NodeName,
    /// Names and IP addresses under which clients connect, without ports. The node's name counts as one if it is a
    /// host name or an address.
    pub hosts: Vec<String>,
}

/// A certificate and its key that no file holds yet.
pub struct Created {
    stem: String,
    certificate_pem: String,
    key_pem: String,
    not_after: UnixTime,
}

impl std::fmt::Debug for Created {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Created").field("stem", &self.stem).finish_non_exhaustive()
    }
}

/// Files that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// File of the certificate.
    pub certificate: PathBuf,
    /// File of the key.
    pub key: PathBuf,
    /// Last moment of the certificate.
    pub not_after: UnixTime,
}

/// An authority that can sign: its certificate and its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    path: PathBuf,
    facts: Facts,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Authority {
    /// Creates an authority that signs itself. The end of its name is random: of two authorities with one name, some
    /// libraries try only the first.
    pub fn create(name: &str, days: Days, now: UnixTime) -> Result<Created, TlsError> {
        const SUFFIX_BYTES: usize = 9;
        if name.trim().is_empty()
            || name.len() > COMMON_NAME_BYTES_MAX - SUFFIX_BYTES
            || name.chars().any(char::is_control)
        {
            return Err(TlsError::Request(format!(
                "the name of an authority has 1 to {} bytes and no control character, not {:?}",
                COMMON_NAME_BYTES_MAX - SUFFIX_BYTES,
                name
            )));
        }
        let serial = serial()?;
        let suffix: String =
            serial.iter().rev().take(4).map(|byte| format!("{byte:02x}")).collect();
        let mut params = params(&format!("{name} {suffix}"), serial, validity(days, now, None)?);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = new_key()?;
        let certificate = params.self_signed(&key).map_err(library)?;
        Ok(Created::new(AUTHORITY_STEM, &certificate, &key, &params))
    }

    /// Reads `ca.pem` and `ca.key` of a directory. Of several certificates in `ca.pem`, it is that of the key.
    /// Fails if a file cannot be used, or the authority is not valid at `now`.
    pub fn open(dir: &Path, now: UnixTime) -> Result<Self, TlsError> {
        let (path, key_path) = paths(dir, AUTHORITY_STEM);
        let read = |path: &Path| match files::read(path) {
            Err(TlsError::Read { path, source }) if source.kind() == io::ErrorKind::NotFound => {
                Err(TlsError::NoAuthority { path })
            }
            read => read,
        };
        let content = read(&path)?;
        let key = files::key(&key_path, &read(&key_path)?.bytes)?;
        let unusable = |detail: String| TlsError::Content {
            path: key_path.clone(),
            wanted: "key",
            detail: format!("{detail}; name a directory that `stele cert ca` wrote"),
        };
        let key = KeyPair::try_from(&key).map_err(|error| unusable(error.to_string()))?;
        let public = key.subject_public_key_info();
        for certificate in files::certificates(&path, &content.bytes, files::AUTHORITIES_MAX)? {
            let facts = files::facts(&path, &certificate)?;
            if facts.public_key != public {
                continue;
            }
            if !facts.is_authority {
                return Err(TlsError::NotAnAuthority { path, subject: facts.subject });
            }
            if now > facts.not_after {
                return Err(TlsError::Expired { path, not_after: facts.not_after });
            }
            let issuer = Issuer::from_ca_cert_der(&certificate, key);
            let issuer = issuer.map_err(|error| unusable(error.to_string()))?;
            return Ok(Self { issuer, path, facts });
        }
        Err(TlsError::KeyMismatch { certificate: path, key: key_path })
    }

    /// Signs the certificate of a node. It proves the node to clients by its hosts, and to other nodes by the URI of
    /// [`Identity`]. Its validity ends with the authority's at the latest.
    pub fn node(
        &self,
        request: &NodeRequest,
        days: Days,
        now: UnixTime,
    ) -> Result<Created, TlsError> {
        let NodeRequest { cluster, node, hosts } = request;
        check_stem(node.as_str())?;
        let mut names: Vec<SanType> = Vec::new();
        let own = host(node.as_str()).ok();
        for name in own.into_iter().map(Ok).chain(hosts.iter().map(|name| host(name))) {
            let name = name?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            return Err(TlsError::Request(format!(
                "the certificate of node {node} needs the names or addresses under which clients connect to it: add `--host`"
            )));
        }
        names.push(SanType::URI(ia5(&Identity::uri(cluster, node))?));
        let mut params = params(node.as_str(), serial()?, validity(days, now, Some(&self.facts))?);
        params.subject_alt_names = names;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(node.as_str(), params)
    }

    /// Signs the certificate of a client. Its name is the common name, and also an alternative name if it has the
    /// form of a host name. Its validity ends with the authority's at the latest.
    pub fn client(
        &self,
        name: &ClientName,
        days: Days,
        now: UnixTime,
    ) -> Result<Created, TlsError> {
        let name = name.as_str();
        check_stem(name)?;
        let mut params = params(name, serial()?, validity(days, now, Some(&self.facts))?);
        if let Ok(SanType::DnsName(name)) = host(name) {
            params.subject_alt_names = vec![SanType::DnsName(name)];
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, params)
    }

    fn sign(&self, stem: &str, mut params: CertificateParams) -> Result<Created, TlsError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = new_key()?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(library)?;
        let created = Created::new(stem, &certificate, &key, &params);
        // What this version signs, it must also be able to read.
        Identity::of_certificate(certificate.der())
            .map_err(|source| TlsError::Identity { path: created.stem.clone().into(), source })?;
        Ok(created)
    }
}

impl Created {
    fn new(
        stem: &str,
        certificate: &rcgen::Certificate,
        key: &KeyPair,
        params: &CertificateParams,
    ) -> Self {
        let not_after = u64::try_from(params.not_after.unix_timestamp()).unwrap_or(0);
        Self {
            stem: stem.to_owned(),
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            not_after: UnixTime::since_unix_epoch(std::time::Duration::from_secs(not_after)),
        }
    }

    /// Writes the certificate and its key, and syncs both. The key has mode 0600 from its first byte on. Fails with
    /// [`TlsError::Exists`] if one of the files exists; then both are as before.
    ///
    /// Invariant: no file is ever overwritten: a lost key of an authority would cost every certificate of a cluster.
    /// Tests: `an_existing_file_is_never_overwritten`
    pub fn write(&self, dir: &Path) -> Result<Written, TlsError> {
        let (certificate, key) = paths(dir, &self.stem);
        // Invariant: only the owner of a key can read it, from its first byte on.
        // Tests: `only_the_owner_can_read_a_key`
        let mode = KEY_MODE;
        // bug tls.key_for_all: let mode = CERTIFICATE_MODE;
        write_new(&key, self.key_pem.as_bytes(), mode)?;
        let written = write_new(&certificate, self.certificate_pem.as_bytes(), CERTIFICATE_MODE);
        if let Err(error) = written {
            // The key was created here, and without its certificate it is of no use.
            let _ = std::fs::remove_file(&key);
            return Err(error);
        }
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(|source| TlsError::Write { path: dir.to_path_buf(), source })?;
        Ok(Written { certificate, key, not_after: self.not_after })
    }
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), TlsError> {
    let failed = |source: io::Error| TlsError::Write { path: path.to_path_buf(), source };
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    // bug tls.file_overwritten: options.create_new(false).create(true).truncate(true);
    let opened = options.open(path);
    let mut file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => TlsError::Exists { path: path.to_path_buf() },
        _ => failed(source),
    })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|source| {
        let _ = std::fs::remove_file(path);
        failed(source)
    })
}

fn paths(dir: &Path, stem: &str) -> (PathBuf, PathBuf) {
    (dir.join(format!("{stem}.pem")), dir.join(format!("{stem}.key")))
}

/// Fails for a name that cannot be that of a file beside those of the authority.
fn check_stem(name: &str) -> Result<(), TlsError> {
    let is_usable = name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/\\\"'`".contains(&byte))
        && name.len() <= COMMON_NAME_BYTES_MAX
        && !name.starts_with(['.', '-'])
        && !name.eq_ignore_ascii_case(AUTHORITY_STEM);
    if is_usable {
        return Ok(());
    }
    Err(TlsError::Request(format!(
        "{name:?} cannot name a certificate: use 1 to {COMMON_NAME_BYTES_MAX} printable ASCII characters without \
         spaces, slashes and quotes, not `{AUTHORITY_STEM}`, and no `.` or `-` in front"
    )))
}

/// Returns the alternative name of a host: an IP address, or a DNS name.
fn host(name: &str) -> Result<SanType, TlsError> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    // Labels of digits only are a mistyped address.
    let is_name =
        DnsName::try_from(name).is_ok() && !name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if !is_name {
        return Err(TlsError::Request(format!(
            "{name:?} is neither a host name nor an IP address; leave out the port and the scheme"
        )));
    }
    Ok(SanType::DnsName(ia5(name)?))
}

fn ia5(name: &str) -> Result<Ia5String, TlsError> {
    Ia5String::try_from(name).map_err(library)
}

fn library(error: rcgen::Error) -> TlsError {
    TlsError::Library { doing: "creating a certificate", detail: error.to_string() }
}

fn new_key() -> Result<KeyPair, TlsError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(library)
}

/// Returns a random positive number that needs all its bytes.
fn serial() -> Result<[u8; SERIAL_BYTES], TlsError> {
    let mut bytes = [0; SERIAL_BYTES];
    provider().secure_random.fill(&mut bytes).map_err(|_| TlsError::Library {
        doing: "reading random bytes",
        detail: "the system returned none".to_owned(),
    })?;
    if let Some(first) = bytes.first_mut() {
        *first = (*first & 0x7f) | 0x40;
    }
    Ok(bytes)
}

fn params(
    common_name: &str,
    serial: [u8; SERIAL_BYTES],
    (not_before, not_after): (OffsetDateTime, OffsetDateTime),
) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, common_name);
    params.distinguished_name = subject;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    (params.not_before, params.not_after) = (not_before, not_after);
    params
}

/// Returns the first and the last moment of a certificate, the last not after the authority's.
fn validity(
    Days(days): Days,
    now: UnixTime,
    authority: Option<&Facts>,
) -> Result<(OffsetDateTime, OffsetDateTime), TlsError> {
    let now = now.as_secs();
    let wanted = now.saturating_add(days * SECONDS_PER_DAY);
    let last = authority.map_or(wanted, |it| wanted.min(it.not_after.as_secs()));
    let moment = |seconds: u64| {
        let at = i64::try_from(seconds).ok().map(OffsetDateTime::from_unix_timestamp);
        at.and_then(Result::ok).ok_or_else(|| {
            TlsError::Request(
                "the validity ends after the year 9999; give fewer `--days`".to_owned(),
            )
        })
    };
    Ok((moment(now.saturating_sub(SKEW_SECONDS))?, moment(last)?))
}
