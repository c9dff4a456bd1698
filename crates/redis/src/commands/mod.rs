//! The commands: functions from the arguments and the pairs to a reply and changes of pairs.
//!
//! The order of checks is that of Redis: it decides which of several errors a client gets.

pub(crate) mod expiry;
pub(crate) mod hashes;
pub(crate) mod keys;
mod locks;
pub(crate) mod numbers;
mod options;
pub(crate) mod scripts;
pub(crate) mod sets;
pub(crate) mod strings;

use crate::header::Kind;
use crate::number::parse_i64;
use crate::request::Request;
use crate::state::{Answer, Entry, State, Stop};
use bytes::Bytes;
use stele_types::size::KEY_BYTES_MAX;

/// Function of a command.
pub(crate) type Execute = fn(&mut Call<'_, '_>) -> Answer;

/// Most bytes of a value that APPEND or SETRANGE makes: each logs the whole value.
const COMPUTED_BYTES_MAX: usize = 1 << 20;
/// Most members that RENAME and COPY copy.
pub(crate) const COPIED_MEMBERS_MAX: u64 = 1024;

/// Execution of one request.
pub(crate) struct Call<'a, 's> {
    request: &'a Request,
    state: &'a mut State<'s>,
}

impl<'a, 's> Call<'a, 's> {
    pub(crate) fn new(request: &'a Request, state: &'a mut State<'s>) -> Self {
        Self { request, state }
    }

    /// Returns the name of the command, as texts contain it.
    fn name(&self) -> &'static str {
        self.request.spec().name
    }

    /// Returns an argument; the name of the command is argument 0. The number of arguments was checked.
    fn argument(&self, place: usize) -> &'a Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.request.arguments().get(place).unwrap_or(&EMPTY)
    }

    /// Returns the arguments from a place.
    fn arguments_from(&self, place: usize) -> &'a [Bytes] {
        self.request.arguments().get(place..).unwrap_or_default()
    }

    fn integer(&self, place: usize) -> Result<i64, Stop> {
        parse_i64(self.argument(place)).ok_or(Stop::NOT_AN_INTEGER)
    }

    /// Returns the engine key of the header of the request's first name.
    fn key(&self) -> Result<Bytes, Stop> {
        self.keys()?.into_iter().next().ok_or(Stop::SYNTAX)
    }

    /// Returns the engine keys of the headers of all names of the request.
    fn keys(&self) -> Result<Vec<Bytes>, Stop> {
        let keys: Vec<Bytes> = self.request.header_keys().collect();
        for key in &keys {
            check_length(key.len())?;
        }
        Ok(keys)
    }

    /// Returns the header keys of all names, of which all headers were read.
    fn read_keys(&mut self) -> Result<Vec<Bytes>, Stop> {
        let keys = self.keys()?;
        self.state.want(&keys)?;
        Ok(keys)
    }

    /// Returns the first name's header key and what it has; fails if it has another type.
    fn typed(&mut self, kind: Kind) -> Result<(Bytes, Option<Entry>), Stop> {
        let key = self.key()?;
        let entry = self.state.typed(&key, kind)?;
        Ok((key, entry))
    }

    /// Like [`Call::typed`]; an absent name gets a new value without members.
    fn typed_or_new(&mut self, kind: Kind) -> Result<(Bytes, Entry), Stop> {
        let (key, entry) = self.typed(kind)?;
        let entry = entry.unwrap_or_else(|| self.state.new_entry(kind, Bytes::new()));
        Ok((key, entry))
    }
}

/// Fails if an engine key has more bytes than the store takes.
fn check_length(key_bytes: usize) -> Result<(), Stop> {
    match key_bytes <= KEY_BYTES_MAX {
        true => Ok(()),
        false => Err(Stop::error(format!(
            "ERR name or field takes {key_bytes} bytes as a key; the limit is {KEY_BYTES_MAX}: \
             shorten it"
        ))),
    }
}

/// Fails if the engine key of a member would be too long. `fields` belong to the header with this key.
fn check_fields<'f>(
    header_key: &Bytes,
    mut fields: impl Iterator<Item = &'f Bytes>,
) -> Result<(), Stop> {
    const STAMP_BYTES: usize = 8;
    fields.try_for_each(|field| check_length(header_key.len() + STAMP_BYTES + field.len()))
}

/// Fails if a computed value would have more bytes than the limit.
fn check_computed(bytes: usize) -> Result<(), Stop> {
    match bytes <= COMPUTED_BYTES_MAX {
        true => Ok(()),
        false => Err(Stop::error("ERR string exceeds maximum allowed size (proto-max-bulk-len)")),
    }
}
