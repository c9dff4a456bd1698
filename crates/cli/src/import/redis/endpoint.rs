//! Servers of the Redis protocol, as URLs name them, and the first calls of a connection.

use std::fmt;
use std::sync::Arc;
use stele_load::TlsFiles;
use stele_load::resp::{RespConnection, RespReply, unexpected};
use stele_tls::ClientTls;
use stele_types::redis_key::DATABASES;
use stele_types::size::VALUE_BYTES_MAX;
use stele_types::{Error, Result, address};

const PORT: u16 = 6379;

/// Number of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Database(pub u64);

impl Database {
    /// Whether Stele has it.
    pub(super) fn is_known(self) -> bool {
        self.0 < u64::from(DATABASES)
    }
}

impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Server with what a client needs to authenticate.
#[derive(Clone)]
pub(super) struct Endpoint {
    address: String,
    tls: Option<Arc<ClientTls>>,
    user: Option<String>,
    password: Option<String>,
    /// Database that the URL names.
    pub database: Option<Database>,
}

/// Prints the address alone: the rest is secret.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Whether a text is the URL of a server.
pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("redis://") || text.starts_with("rediss://")
}

impl Endpoint {
    /// Parses `redis://[USER:PASSWORD@]HOST[:PORT][/DB]`; `rediss://` needs the authorities of `files`. No
    /// error repeats the text, which may have a password.
    pub(super) fn parse(text: &str, files: &TlsFiles) -> Result<Self> {
        let (rest, is_tls) = match (text.strip_prefix("redis://"), text.strip_prefix("rediss://")) {
            (Some(rest), _) => (rest, false),
            (_, Some(rest)) => (rest, true),
            _ => return Err(bad("it begins with neither redis:// nor rediss://")),
        };
        let tls = match is_tls {
            true => Some(files.open()?.ok_or_else(|| {
                Error::invalid("rediss:// needs the authority of the server: give --ca FILE")
            })?),
            false => None,
        };
        let (secrets, rest) = match rest.rsplit_once('@') {
            Some((secrets, rest)) => (Some(secrets), rest),
            None => (None, rest),
        };
        let (host, database) = match rest.split_once('/') {
            Some((host, "")) => (host, None),
            Some((host, number)) => {
                let number = number.parse().map_err(|_| bad("its database is not a number"))?;
                (host, Some(Database(number)))
            }
            None => (rest, None),
        };
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let address = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
        address::check(&address)?;
        let (mut user, mut password) = (None, None);
        if let Some(secrets) = secrets {
            let (name, word) =
                secrets.split_once(':').ok_or_else(|| bad("write USER:PASSWORD@ or :PASSWORD@"))?;
            user = Some(decoded(name)?).filter(|name| !name.is_empty());
            password = Some(decoded(word)?);
        }
        Ok(Self { address, tls, user, password, database })
    }

    /// Authenticates with this password, unless the URL has one.
    pub(super) fn or_password(mut self, password: Option<String>) -> Self {
        self.password = self.password.or(password);
        self
    }

    /// Connects and authenticates.
    pub(super) async fn connect(&self) -> Result<RespConnection> {
        let tls = self.tls.as_ref();
        let mut connection = RespConnection::connect(&self.address, tls, VALUE_BYTES_MAX).await?;
        if let Some(password) = &self.password {
            let mut words = vec!["AUTH"];
            words.extend(self.user.as_deref());
            words.push(password);
            self.done(connection.call(&words).await?, "AUTH")?;
        }
        // A server that needs a password answers that, and a port of something else does not answer so.
        self.done(connection.call(&["PING"]).await?, "PING")?;
        Ok(connection)
    }

    /// Selects a database.
    pub(super) async fn select(
        &self,
        connection: &mut RespConnection,
        database: Database,
    ) -> Result<()> {
        let number = database.to_string();
        self.done(connection.call(&["SELECT", &number]).await?, "SELECT")
    }

    /// Fails unless a reply is a status.
    fn done(&self, reply: RespReply, command: &str) -> Result<()> {
        match reply {
            RespReply::Status(_) => Ok(()),
            RespReply::Error(text) => Err(Error::Refused(format!("{self}: {command}: {text}"))),
            _ => Err(unexpected()),
        }
    }
}

fn bad(detail: &str) -> Error {
    let form = "redis://[USER:PASSWORD@]HOST[:PORT][/DB], special characters as %XX";
    Error::invalid(format!("not the URL of a server: {detail}; write {form}"))
}

/// Decodes `%XX`.
fn decoded(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err(bad("a `%` has no two digits after it"));
        };
        bytes.push((high << 4 | low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| bad("its user or password is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Endpoint> {
        Endpoint::parse(text, &TlsFiles::default())
    }

    #[test]
    fn a_url_names_address_user_password_and_database() {
        let rows = [
            ("redis://a", "a:6379", None, None, None),
            ("redis://a:1/", "a:1", None, None, None),
            ("redis://a:1/15", "a:1", None, None, Some(15)),
            ("redis://[::1]/2", "[::1]:6379", None, None, Some(2)),
            ("redis://[::1]:7", "[::1]:7", None, None, None),
            ("redis://:p%40@a", "a:6379", None, Some("p@"), None),
            ("redis://u:p@s@a:9/0", "a:9", Some("u"), Some("p@s"), Some(0)),
        ];
        for (text, address, user, password, database) in rows {
            let found = parse(text).unwrap();
            assert_eq!(found.address, address, "{text}");
            assert_eq!(
                (found.user.as_deref(), found.password.as_deref()),
                (user, password),
                "{text}"
            );
            assert_eq!(found.database, database.map(Database), "{text}");
        }
    }

    #[test]
    fn a_refused_url_is_not_repeated_in_the_error() {
        let rows = [
            ("ftp://secret@a", "redis://"),
            ("redis://secret@a", ":PASSWORD@"),
            ("redis://:secret%4@a", "two digits"),
            ("redis://:secret@a/x", "not a number"),
            ("rediss://:secret@a", "--ca"),
        ];
        for (text, words) in rows {
            let error = parse(text).unwrap_err();
            assert!(matches!(error, Error::Invalid(_)), "{error:?}");
            let error = error.to_string();
            assert!(error.contains(words) && !error.contains("secret"), "{text}: {error}");
        }
        let found = parse("redis://:secret@a").unwrap();
        assert!(!format!("{found} {found:?}").contains("secret"));
    }
}
