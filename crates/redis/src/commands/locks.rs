//! What the recorded scripts of lock libraries do.

use super::Call;
use crate::number::parse_i64;
use crate::reply::Reply;
use crate::request::Request;
use crate::state::{Answer, State, Stop};
use bytes::Bytes;

/// Script that is executed: its names, its arguments, and the state that its commands change.
pub(super) struct Script<'a, 's> {
    pub names: &'a [Bytes],
    pub arguments: &'a [Bytes],
    pub database: u8,
    pub state: &'a mut State<'s>,
}

impl<'a> Script<'a, '_> {
    /// Executes a command.
    fn redis(&mut self, words: &[&[u8]]) -> Answer {
        let words = words.iter().map(|word| Bytes::copy_from_slice(word)).collect();
        let request = Request::parse(self.database, words);
        let request = request.map_err(|error| Stop::error(error.to_string()))?;
        match request.spec().execute {
            Some(execute) => execute(&mut Call::new(&request, self.state)),
            None => Err(Stop::SYNTAX),
        }
    }

    fn name(&self) -> &'a Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.names.first().unwrap_or(&EMPTY)
    }

    /// Returns an argument; 0 is the first. Their number was checked.
    fn argument(&self, place: usize) -> &'a Bytes {
        static EMPTY: Bytes = Bytes::new();
        self.arguments.get(place).unwrap_or(&EMPTY)
    }

    fn get(&mut self, name: &Bytes) -> Result<Option<Bytes>, Stop> {
        match self.redis(&[b"get", name])? {
            Reply::Bulk(value) => Ok(Some(value)),
            _ => Ok(None),
        }
    }

    /// Whether the name has the token: the first argument.
    fn is_held(&mut self) -> Result<bool, Stop> {
        let (name, token) = (self.name(), self.argument(0));
        Ok(self.get(name)?.as_ref() == Some(token))
    }

    /// Sets a name for some milliseconds.
    fn set(&mut self, name: &Bytes, token: &Bytes, milliseconds: &Bytes) -> Answer {
        self.redis(&[b"set", name, token, b"px", milliseconds])
    }

    fn delete(&mut self) -> Answer {
        let name = self.name();
        self.redis(&[b"del", name])
    }

    fn pexpire(&mut self, milliseconds: &[u8]) -> Answer {
        let name = self.name();
        self.redis(&[b"pexpire", name, milliseconds])
    }
}

const FALSE: Reply = Reply::Integer(0);

/// Deletes the name if it has the token.
pub(super) fn release(script: &mut Script<'_, '_>) -> Answer {
    if script.is_held()? { script.delete() } else { Ok(FALSE) }
}

/// Like [`release`]; the reply distinguishes an absent name from one with another token.
pub(super) fn unlock_known(script: &mut Script<'_, '_>) -> Answer {
    let (name, token) = (script.name(), script.argument(0));
    match script.get(name)? {
        None => Ok(Reply::Integer(-1)),
        Some(value) if value == *token => script.delete(),
        Some(_) => Ok(FALSE),
    }
}

/// Gives the name a new time if it has the token.
pub(super) fn renew(script: &mut Script<'_, '_>) -> Answer {
    if script.is_held()? { script.pexpire(script.argument(1)) } else { Ok(FALSE) }
}

/// Gives the name a new end of its time if it has the token.
pub(super) fn renew_until(script: &mut Script<'_, '_>) -> Answer {
    let (name, end_ms) = (script.name(), script.argument(1));
    if script.is_held()? { script.redis(&[b"pexpireat", name, end_ms]) } else { Ok(FALSE) }
}

/// Takes the name if it is absent. Otherwise the reply is null.
pub(super) fn take(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(1));
    script.redis(&[b"set", name, token, b"nx", b"px", milliseconds])
}

/// Like [`take`], with the end of the time.
pub(super) fn take_until(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, end_ms) = (script.name(), script.argument(0), script.argument(1));
    script.redis(&[b"set", name, token, b"nx", b"pxat", end_ms])
}

/// Takes the name from any other holder.
pub(super) fn force(script: &mut Script<'_, '_>) -> Answer {
    script.set(script.name(), script.argument(0), script.argument(1))
}

/// Like [`force`], with the end of the time.
pub(super) fn force_until(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, end_ms) = (script.name(), script.argument(0), script.argument(1));
    script.redis(&[b"set", name, token, b"pxat", end_ms])
}

/// Adds to the time of the name, or replaces it unless the third argument is `0`. A name without an expiry is
/// left as it is.
pub(super) fn extend(script: &mut Script<'_, '_>) -> Answer {
    if !script.is_held()? {
        return Ok(FALSE);
    }
    let name = script.name();
    let Reply::Integer(left_ms @ 0..) = script.redis(&[b"pttl", name])? else { return Ok(FALSE) };
    let more_ms = parse_i64(script.argument(1)).ok_or(Stop::NOT_AN_INTEGER)?;
    let new_ms = match &script.argument(2)[..] {
        b"0" => more_ms.checked_add(left_ms).ok_or(Stop::NOT_AN_INTEGER)?,
        _ => more_ms,
    };
    script.pexpire(new_ms.to_string().as_bytes())?;
    Ok(Reply::Integer(1))
}

/// Renews the name if it has the token, and takes it if it is absent.
pub(super) fn take_or_renew(script: &mut Script<'_, '_>) -> Answer {
    if script.is_held()? {
        return script.pexpire(script.argument(1));
    }
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(1));
    let taken = script.redis(&[b"set", name, token, b"px", milliseconds, b"nx"])?;
    Ok(Reply::Integer(i64::from(taken == Reply::OK)))
}

/// Takes the name if it is absent, or has a value with the same first bytes, of which the second argument is
/// the number. Otherwise the reply is null.
pub(super) fn obtain(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(2));
    let taken = script.redis(&[b"set", name, token, b"nx", b"px", milliseconds])?;
    if taken == Reply::OK {
        return Ok(taken);
    }
    let same = parse_i64(script.argument(1)).and_then(|same| usize::try_from(same).ok());
    let same = same.ok_or(Stop::NOT_AN_INTEGER)?;
    let first = |value: &Bytes| value.slice(..same.min(value.len()));
    match script.get(name)? {
        Some(value) if first(&value) == first(token) => script.set(name, token, milliseconds),
        _ => Ok(Reply::Null),
    }
}

/// Takes the name unless it has another token.
pub(super) fn take_or_keep(script: &mut Script<'_, '_>) -> Answer {
    let (name, token, milliseconds) = (script.name(), script.argument(0), script.argument(1));
    match script.get(name)? {
        Some(value) if value != *token => Err(another_token()),
        _ => script.set(name, token, milliseconds),
    }
}

pub(super) fn release_or_fail(script: &mut Script<'_, '_>) -> Answer {
    let (name, token) = (script.name(), script.argument(0));
    match script.get(name)? {
        None => Ok(Reply::OK),
        Some(value) if value == *token => script.delete(),
        Some(_) => Err(another_token()),
    }
}

pub(super) fn held_ttl_or_fail(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    if script.is_held()? { script.redis(&[b"ttl", name]) } else { Err(another_token()) }
}

/// Error that aioredlock knows by this text.
fn another_token() -> Stop {
    Stop::error("ERROR")
}

/// Answers -3 for a name that has another token.
pub(super) fn held_pttl(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    if script.is_held()? { script.redis(&[b"pttl", name]) } else { Ok(Reply::Integer(-3)) }
}

pub(super) fn held_pttl_or_zero(script: &mut Script<'_, '_>) -> Answer {
    Ok(match held_pttl(script)? {
        Reply::Integer(left_ms @ 1..) => Reply::Integer(left_ms),
        _ => FALSE,
    })
}

/// Takes all names if none exists. `first` is the place of the token among the arguments.
fn take_all_from(script: &mut Script<'_, '_>, first: usize) -> Answer {
    for name in script.names {
        if script.redis(&[b"exists", name])? != FALSE {
            return Ok(FALSE);
        }
    }
    set_all(script, first)
}

/// Renews all names if all have the token.
fn renew_all_from(script: &mut Script<'_, '_>, first: usize) -> Answer {
    for name in script.names {
        if script.get(name)?.as_ref() != Some(script.argument(first)) {
            return Ok(FALSE);
        }
    }
    set_all(script, first)
}

fn set_all(script: &mut Script<'_, '_>, first: usize) -> Answer {
    for name in script.names {
        script.set(name, script.argument(first), script.argument(first + 1))?;
    }
    Ok(Reply::count(script.names.len()))
}

/// Deletes the names that have the token.
fn release_all_from(script: &mut Script<'_, '_>, first: usize) -> Answer {
    let mut released = 0u64;
    for name in script.names {
        if script.get(name)?.as_ref() == Some(script.argument(first)) {
            script.redis(&[b"del", name])?;
            released += 1;
        }
    }
    Ok(Reply::count(released))
}

pub(super) fn take_all(script: &mut Script<'_, '_>) -> Answer {
    take_all_from(script, 0)
}

pub(super) fn renew_all(script: &mut Script<'_, '_>) -> Answer {
    renew_all_from(script, 0)
}

pub(super) fn release_all(script: &mut Script<'_, '_>) -> Answer {
    release_all_from(script, 0)
}

pub(super) fn take_all_in(script: &mut Script<'_, '_>) -> Answer {
    check_database(script)?;
    take_all_from(script, 1)
}

pub(super) fn renew_all_in(script: &mut Script<'_, '_>) -> Answer {
    check_database(script)?;
    renew_all_from(script, 1)
}

pub(super) fn release_all_in(script: &mut Script<'_, '_>) -> Answer {
    check_database(script)?;
    release_all_from(script, 1)
}

/// Fails unless the first argument is the database of the connection, which located the names.
fn check_database(script: &Script<'_, '_>) -> Result<(), Stop> {
    match parse_i64(script.argument(0)) == Some(i64::from(script.database)) {
        true => Ok(()),
        false => Err(Stop::error(format!(
            "ERR the script selects another database than the connection, which has {}: SELECT it before",
            script.database
        ))),
    }
}

/// Sets the name if it has the second argument as its value; the last two are an option with its value.
pub(super) fn compare_and_set(script: &mut Script<'_, '_>) -> Answer {
    let (name, value) = (script.name(), script.argument(0));
    if script.get(name)?.as_ref() != Some(script.argument(1)) {
        return Ok(FALSE);
    }
    match script.arguments {
        [_, _, option, number] => script.redis(&[b"set", name, value, option, number]),
        _ => script.redis(&[b"set", name, value]),
    }
}

pub(super) fn count(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    script.redis(&[b"incrby", name, script.argument(0)])
}

/// Counts, and sets the time of a name that did not exist.
pub(super) fn count_until(script: &mut Script<'_, '_>) -> Answer {
    let counted = count(script)?;
    if counted == Reply::Integer(1) {
        script.pexpire(script.argument(1))?;
    }
    Ok(counted)
}

/// Counts if the name exists; otherwise the reply is null.
pub(super) fn count_if_present(script: &mut Script<'_, '_>) -> Answer {
    let name = script.name();
    match script.redis(&[b"exists", name])? {
        Reply::Integer(1) => count(script),
        _ => Ok(Reply::Null),
    }
}
