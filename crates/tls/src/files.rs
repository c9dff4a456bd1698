//! Files in PEM form: bounded reads, and the checks that a certificate, its key and a list of authorities must pass
//! before they come into force.

use crate::{TlsError, Warning, provider};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// Largest file that is read, in bytes.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Most certificates of a chain, the leaf included.
pub const CHAIN_MAX: usize = 8;
/// Most authorities in a file. A server sends their names in each handshake.
pub const AUTHORITIES_MAX: usize = 64;

/// Permissions with which the group or others can read.
const READABLE_BY_OTHERS: u32 = 0o044;

/// Bytes and permissions of a file, at the time of one read.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub bytes: Vec<u8>,
    pub mode: u32,
}

/// Of two reads, only the bytes count: permissions change no configuration.
impl PartialEq for Content {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

/// Returns whether a text is the content of a PEM file, and not a path.
pub fn is_pem(text: &str) -> bool {
    text.contains("-----BEGIN ")
}

/// Reads a regular file of at most [`FILE_BYTES_MAX`].
///
/// Invariant: no error repeats a key that is given in place of its path.
/// Tests: `a_key_in_place_of_its_path_is_refused_and_not_repeated`.
pub(crate) fn read(path: &Path) -> Result<Content, TlsError> {
    // bug tls.key_repeated: never
    if is_pem(&path.to_string_lossy()) {
        return Err(TlsError::NotAPath);
    }
    let failed = |source| TlsError::Read { path: path.to_path_buf(), source };
    // Before the open, which waits for a writer if the path is a pipe.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(TlsError::NotAFile { path: path.to_path_buf() });
    }
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(TlsError::TooLarge { path: path.to_path_buf(), bytes_max: FILE_BYTES_MAX });
    }
    Ok(Content { bytes, mode })
}

/// Returns the warning about a key file that other users can read.
pub(crate) fn key_warning(path: &Path, key: &Content) -> Option<Warning> {
    // bug tls.readable_key_unnoticed: never
    if key.mode & READABLE_BY_OTHERS != 0 {
        return Some(Warning::KeyReadableByOthers { path: path.to_path_buf(), mode: key.mode });
    }
    None
}

/// Decodes the certificates of a file; at least one and at most `max`.
pub(crate) fn certificates(
    path: &Path,
    bytes: &[u8],
    max: usize,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unusable = |detail: String| TlsError::Content {
        path: path.to_path_buf(),
        wanted: "certificate",
        detail,
    };
    let decoded = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, _>>();
    let decoded =
        decoded.map_err(|error| unusable(format!("{error}; copy the file again, in PEM form")))?;
    match decoded.len() {
        0 => Err(unusable(
            "it has no line `-----BEGIN CERTIFICATE-----`; convert it to PEM form, for example with `openssl x509`"
                .to_owned(),
        )),
        found if found > max => Err(TlsError::TooMany { path: path.to_path_buf(), found, max }),
        _ => Ok(decoded),
    }
}

/// Decodes the first key of a file.
pub(crate) fn key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    let is_encrypted = bytes.windows(9).any(|part| part == b"ENCRYPTED");
    let unusable =
        |detail: String| TlsError::Content { path: path.to_path_buf(), wanted: "key", detail };
    if is_encrypted {
        let detail =
            "it is encrypted; write it without a password, for example with `openssl pkey`";
        return Err(unusable(detail.to_owned()));
    }
    PrivateKeyDer::from_pem_slice(bytes)
        .map_err(|error| unusable(format!("{error}; name the file of a private key in PEM form")))
}

/// What a certificate says of itself.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub subject: String,
    pub not_before: UnixTime,
    pub not_after: UnixTime,
    pub is_authority: bool,
    pub may_serve: bool,
    pub may_connect: bool,
    /// Public key as `SubjectPublicKeyInfo` in DER form.
    pub public_key: Vec<u8>,
}

pub(crate) fn facts(path: &Path, der: &CertificateDer<'_>) -> Result<Facts, TlsError> {
    let unusable = |detail: &str| TlsError::Content {
        path: path.to_path_buf(),
        wanted: "certificate",
        detail: format!("{detail}; create another one, for example with `stele cert`"),
    };
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|_| unusable("it cannot be decoded"))?;
    let moment = |at: x509_parser::time::ASN1Time| {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            u64::try_from(at.timestamp()).unwrap_or(0),
        ))
    };
    let constraints = certificate
        .basic_constraints()
        .map_err(|_| unusable("its constraints cannot be decoded"))?;
    let uses =
        certificate.extended_key_usage().map_err(|_| unusable("its usage cannot be decoded"))?;
    Ok(Facts {
        subject: certificate.subject().to_string(),
        not_before: moment(certificate.validity().not_before),
        not_after: moment(certificate.validity().not_after),
        is_authority: constraints.is_some_and(|it| it.value.ca),
        may_serve: uses.as_ref().is_none_or(|it| it.value.any || it.value.server_auth),
        may_connect: uses.as_ref().is_none_or(|it| it.value.any || it.value.client_auth),
        public_key: certificate.public_key().raw.to_vec(),
    })
}

/// End of a connection for which a certificate is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Server,
    Client,
}

/// A certificate with its chain and key that passed all checks.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    pub certified: Arc<CertifiedKey>,
    pub facts: Facts,
}

/// Checks a certificate and its key, each with its path.
///
/// Invariant: a certificate that peers would refuse does not come into force: an expired one, one that is not
/// yet valid, that of an authority, that of the other end, or one without its key.
/// Tests: `a_reload_refuses_each_bad_file_and_keeps_the_old_configuration`
pub(crate) fn credentials(
    (path, certificate): (&Path, &[u8]),
    (key_path, key_bytes): (&Path, &[u8]),
    end: End,
    now: UnixTime,
) -> Result<Credentials, TlsError> {
    let chain = certificates(path, certificate, CHAIN_MAX)?;
    let Some(leaf) = chain.first() else {
        return Err(TlsError::TooMany { path: path.to_path_buf(), found: 0, max: CHAIN_MAX });
    };
    let facts = facts(path, leaf)?;
    let path_buf = || path.to_path_buf();
    if facts.is_authority {
        return Err(TlsError::LeafIsAuthority { path: path_buf() });
    }
    // bug tls.expired_file_accepted: never
    if now > facts.not_after {
        return Err(TlsError::Expired { path: path_buf(), not_after: facts.not_after });
    }
    if now < facts.not_before {
        return Err(TlsError::NotYetValid { path: path_buf(), not_before: facts.not_before });
    }
    let (may, purpose, command) = match end {
        End::Server => (facts.may_serve, "servers", "node"),
        End::Client => (facts.may_connect, "clients", "client"),
    };
    if !may {
        return Err(TlsError::WrongUse { path: path_buf(), purpose, command });
    }
    let key = key(key_path, key_bytes)?;
    let certified = CertifiedKey::from_der(chain, key, &provider());
    let certified = certified.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            TlsError::KeyMismatch { certificate: path_buf(), key: key_path.to_path_buf() }
        }
        error => TlsError::Content {
            path: key_path.to_path_buf(),
            wanted: "key",
            detail: format!("{error}; use a key of ECDSA P-256, as `stele cert` does, or RSA"),
        },
    })?;
    Ok(Credentials { certified: Arc::new(certified), facts })
}

/// Authorities in force, with what their file has besides.
#[derive(Clone, Debug)]
pub(crate) struct Authorities {
    pub roots: Arc<RootCertStore>,
    pub warnings: Vec<Warning>,
}

/// Checks a file of authorities. Expired ones are left out: TLS libraries do not check the validity of a root.
/// Fails if none is left.
pub(crate) fn authorities(
    path: &Path,
    bytes: &[u8],
    now: UnixTime,
) -> Result<Authorities, TlsError> {
    let mut roots = RootCertStore::empty();
    let mut warnings = Vec::new();
    let mut last_end = None;
    for certificate in certificates(path, bytes, AUTHORITIES_MAX)? {
        let Facts { subject, not_after, is_authority, .. } = facts(path, &certificate)?;
        if !is_authority {
            return Err(TlsError::NotAnAuthority { path: path.to_path_buf(), subject });
        }
        if now > not_after {
            last_end = last_end.max(Some(not_after));
            warnings.push(Warning::AuthorityExpired { path: path.to_path_buf(), not_after });
            continue;
        }
        roots.add(certificate).map_err(|error| TlsError::Content {
            path: path.to_path_buf(),
            wanted: "certificate",
            detail: format!("{error}; create an authority with `stele cert ca`"),
        })?;
    }
    match last_end {
        Some(not_after) if roots.is_empty() => {
            Err(TlsError::Expired { path: path.to_path_buf(), not_after })
        }
        _ => Ok(Authorities { roots: Arc::new(roots), warnings }),
    }
}

/// Whether one of the authorities verifies the certificate of a server.
pub(crate) fn is_issued_by(roots: &RootCertStore, certified: &CertifiedKey, now: UnixTime) -> bool {
    let Some((leaf, chain)) = certified.cert.split_first() else { return false };
    let algorithms = provider().signature_verification_algorithms;
    ParsedCertificate::try_from(leaf).is_ok_and(|leaf| {
        let verify = rustls::client::verify_server_cert_signed_by_trust_anchor;
        verify(&leaf, roots, chain, now, algorithms.all).is_ok()
    })
}
