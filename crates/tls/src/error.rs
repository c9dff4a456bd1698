//! Errors and warnings of TLS files.

use crate::IdentityError;
use rustls::pki_types::UnixTime;
use std::io;
use std::path::PathBuf;

/// Failure to read, check, create or write a file of TLS. The message names the file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read: {source}; check the path, and that the user of this process may read it", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The content of a file stands in place of its path. It may be a key, and is not repeated.
    #[error("the content of a file is given in place of its path; name the file")]
    NotAPath,
    /// A path is not that of a regular file.
    #[error("{} is not a regular file; name a file in PEM form", .path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file is larger than [`crate::FILE_BYTES_MAX`].
    #[error("{} has more than {bytes_max} bytes; name a file with only the certificates or the key that are needed", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        bytes_max: u64,
    },
    /// A file does not hold what it must.
    #[error("{} holds no usable {wanted}: {detail}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// `certificate` or `key`.
        wanted: &'static str,
        /// The problem and its remedy.
        detail: String,
    },
    /// A file holds too many certificates.
    #[error("{} holds {found} certificates, at most {max} are allowed; leave out those that are not needed", .path.display())]
    TooMany {
        /// The file.
        path: PathBuf,
        /// Certificates in the file.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// A key is not that of the certificate.
    #[error("the key {} is not that of the certificate {}; put both files of one certificate in place", .key.display(), .certificate.display())]
    KeyMismatch {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
    },
    /// A certificate is past its end.
    #[error("the certificate {} expired on {}; create another one, for example with `stele cert`", .path.display(), utc(*.not_after))]
    Expired {
        /// The file.
        path: PathBuf,
        /// Last moment of its validity.
        not_after: UnixTime,
    },
    /// A certificate is before its begin.
    #[error("the certificate {} is not valid before {}; check the clock of this machine, or create another certificate", .path.display(), utc(*.not_before))]
    NotYetValid {
        /// The file.
        path: PathBuf,
        /// First moment of its validity.
        not_before: UnixTime,
    },
    /// The certificate of a node or client is that of an authority.
    #[error("{} is the certificate of an authority, which cannot serve as that of a node or client; create one with `stele cert`", .path.display())]
    LeafIsAuthority {
        /// The file.
        path: PathBuf,
    },
    /// A certificate among the authorities is not that of an authority.
    #[error("{} holds the certificate of `{subject}`, which is not an authority (no CA:TRUE); name the file that `stele cert ca` wrote", .path.display())]
    NotAnAuthority {
        /// The file.
        path: PathBuf,
        /// Subject of the certificate.
        subject: String,
    },
    /// A certificate is not made for this end of a connection.
    #[error("the certificate {} is not valid for {purpose} (its extended key usage excludes it); create one with `stele cert {command}`", .path.display())]
    WrongUse {
        /// The file.
        path: PathBuf,
        /// `servers` or `clients`.
        purpose: &'static str,
        /// Command that creates a certificate of this use.
        command: &'static str,
    },
    /// A certificate names no node and no client.
    #[error("{}: {source}", .path.display())]
    Identity {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: IdentityError,
    },
    /// A directory holds no authority.
    #[error("{} does not exist; create an authority with `stele cert ca`, or name its directory with `--dir`", .path.display())]
    NoAuthority {
        /// File of its certificate or its key.
        path: PathBuf,
    },
    /// A file that would be created exists.
    #[error("{} exists, and nothing is ever overwritten; move it away, or name another directory with `--dir`", .path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("{} cannot be written: {source}; check the directory, its permissions and the free space", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A certificate cannot be created from these names or days.
    #[error("{0}")]
    Request(String),
    /// The library of certificates or of TLS failed.
    #[error("{doing} failed: {detail}; this is a bug, report it")]
    Library {
        /// The operation.
        doing: &'static str,
        /// The library's message.
        detail: String,
    },
}

impl From<TlsError> for stele_types::Error {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Request(detail) => Self::Invalid(detail),
            error => Self::Refused(error.to_string()),
        }
    }
}

/// Property of files in force that an operator must know. It refuses nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Other users of the machine can read a key.
    KeyReadableByOthers {
        /// File of the key.
        path: PathBuf,
        /// Its permissions, of which the last nine bits count.
        mode: u32,
    },
    /// An authority is past its end, and its certificates are not accepted.
    AuthorityExpired {
        /// File of the authorities.
        path: PathBuf,
        /// Last moment of its validity.
        not_after: UnixTime,
    },
    /// No authority in the file verifies the own certificate: peers with the same file will refuse it.
    NotIssuedByAuthorities {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the authorities.
        authorities: PathBuf,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::KeyReadableByOthers { path, mode } => write!(
                f,
                "other users can read the key {} (mode {:03o}); run `chmod 600 {}`",
                path.display(),
                mode & 0o777,
                path.display()
            ),
            Self::AuthorityExpired { path, not_after } => write!(
                f,
                "an authority in {} expired on {}, and its certificates are refused; leave it out of the file",
                path.display(),
                utc(*not_after)
            ),
            Self::NotIssuedByAuthorities { certificate, authorities } => write!(
                f,
                "no authority in {} verifies the certificate {}, and peers with the same authorities will refuse it; \
                 add its authority to the file",
                authorities.display(),
                certificate.display()
            ),
        }
    }
}

/// Formats a moment for a message, to the minute in UTC.
pub fn utc(at: UnixTime) -> String {
    let seconds = i64::try_from(at.as_secs()).unwrap_or(i64::MAX);
    match time::OffsetDateTime::from_unix_timestamp(seconds) {
        Ok(at) => format!("{} {:02}:{:02} UTC", at.date(), at.hour(), at.minute()),
        Err(_) => format!("second {seconds} since 1970"),
    }
}
