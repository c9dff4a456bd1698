//! Requests that were checked against the table of commands.

use crate::commands::keys::copy_database;
use crate::commands::scripts::{self, ScriptError};
use crate::key;
use crate::reply::Reply;
use crate::table::{CommandSpec, MOVABLE_KEYS};
use bytes::Bytes;

/// Reasons for which a request is not executed. The texts are those of Redis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A name that no command has, and the beginning of its arguments.
    #[error("ERR unknown command '{name}', with args beginning with: {arguments}")]
    UnknownCommand {
        /// The name.
        name: String,
        /// Quoted arguments, each with a space after it.
        arguments: String,
    },
    /// A number of arguments that the command does not take.
    #[error("ERR wrong number of arguments for '{0}' command")]
    WrongArity(&'static str),
    /// A script that is not executed.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

impl RequestError {
    /// Returns the reply to the request.
    pub fn reply(&self) -> Reply {
        Reply::error(self.to_string())
    }

    /// Returns the error for a request that names no command.
    fn unknown(request: &[Bytes]) -> Self {
        /// Bytes of the name, and of the quoted arguments, that the text contains.
        const TEXT_BYTES: usize = 128;
        // Redis prints up to the first zero byte.
        let text = |bytes: &[u8], most: usize| {
            let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
            let shown = bytes.get(..end.min(most)).unwrap_or_default();
            String::from_utf8_lossy(shown).into_owned()
        };
        let (name, rest) = request.split_first().map_or((&[][..], request), |(n, r)| (&n[..], r));
        let mut arguments = String::new();
        for argument in rest {
            let Some(room) = TEXT_BYTES.checked_sub(arguments.len()).filter(|&room| room > 0)
            else {
                break;
            };
            arguments.push_str(&format!("'{}' ", text(argument, room)));
        }
        Self::UnknownCommand { name: text(name, TEXT_BYTES), arguments }
    }
}

/// Request of a known command, with a possible number of arguments.
#[derive(Clone, Debug)]
pub struct Request {
    spec: &'static CommandSpec,
    arguments: Vec<Bytes>,
    database: u8,
}

impl Request {
    /// Checks a request: the name of a command, and its arguments; of EVAL and EVALSHA also the script. `database` is that of the connection.
    pub fn parse(database: u8, arguments: Vec<Bytes>) -> Result<Self, RequestError> {
        let spec = arguments.first().and_then(|name| CommandSpec::find(name));
        let Some(spec) = spec else { return Err(RequestError::unknown(&arguments)) };
        spec.check_arity(arguments.len())?;
        if spec.has(MOVABLE_KEYS) {
            scripts::of_request(spec, &arguments)?;
        }
        Ok(Self { spec, arguments, database })
    }

    /// Returns the command.
    pub fn spec(&self) -> &'static CommandSpec {
        self.spec
    }

    /// Returns the name and the arguments.
    pub fn arguments(&self) -> &[Bytes] {
        &self.arguments
    }

    /// Returns the number of the database.
    pub fn database(&self) -> u8 {
        self.database
    }

    /// Returns the bytes of the name and the arguments.
    pub fn bytes(&self) -> usize {
        self.arguments.iter().map(Bytes::len).sum()
    }

    /// Returns the engine keys of the headers of all names that the request touches, in their order. Some
    /// may be longer than the limit: the command then fails.
    pub fn header_keys(&self) -> impl Iterator<Item = Bytes> {
        let target = copy_database(self).unwrap_or(self.database);
        let names = self.spec.keys(&self.arguments).enumerate();
        names.map(move |(place, name)| {
            key::header_key(if place == 0 { self.database } else { target }, name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&'static [u8]]) -> Result<Request, String> {
        let words = words.iter().map(|word| Bytes::from_static(word)).collect();
        Request::parse(3, words).map_err(|error| error.to_string())
    }

    #[test]
    fn an_unknown_command_is_named_with_the_beginning_of_its_arguments() {
        let long: &[u8] = &[b'x'; 200];
        let rows = [
            (vec![&b"foo"[..], b"a", b"b"], "'foo', with args beginning with: 'a' 'b' ".to_owned()),
            (vec![b"Foo"], "'Foo', with args beginning with: ".to_owned()),
            (
                vec![long, b"a", long, b"c"],
                format!(
                    "'{0}', with args beginning with: 'a' '{1}' ",
                    "x".repeat(128),
                    "x".repeat(124)
                ),
            ),
            (vec![b"a\0b", b"c\0d"], "'a', with args beginning with: 'c' ".to_owned()),
            (vec![], "'', with args beginning with: ".to_owned()),
        ];
        for (words, text) in rows {
            let words: Vec<Bytes> = words.into_iter().map(Bytes::copy_from_slice).collect();
            let error = Request::parse(0, words).unwrap_err();
            assert_eq!(error.to_string(), format!("ERR unknown command {text}"));
        }
    }

    #[test]
    fn a_request_names_the_headers_that_it_touches() {
        let keys = |words: &[&'static [u8]]| -> Vec<(u8, Bytes)> {
            let keys = parse(words).unwrap().header_keys().collect::<Vec<_>>();
            let decoded = keys.iter().map(|key| key::decode(key).unwrap());
            decoded.map(|named| (named.database, named.name)).collect()
        };
        let named = |database, name: &'static str| (database, Bytes::from(name));
        assert_eq!(keys(&[b"GET", b"a"]), [named(3, "a")]);
        assert_eq!(keys(&[b"MSET", b"a", b"1", b"b", b"2"]), [named(3, "a"), named(3, "b")]);
        assert_eq!(keys(&[b"copy", b"a", b"b", b"DB", b"7"]), [named(3, "a"), named(7, "b")]);
        assert_eq!(keys(&[b"copy", b"a", b"b", b"DB", b"16"]), [named(3, "a"), named(3, "b")]);
        assert_eq!(keys(&[b"ping"]), []);
        assert!(parse(&[b"get"]).is_err());
    }
}
