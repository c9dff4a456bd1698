//! `stele del`: deletes keys. All keys, a range or a prefix are deleted after a question, or when the
//! command line says that none is wanted.

use super::keys::print_value;
use crate::args::Del;
use crate::place::{Amount, Place};
use crate::text::{key_range, parse};
use crate::{Outcome, consent};
use std::fmt;
use stele_types::{Error, KeyRange, Result};

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(1) => f.write_str("1 key"),
            Self::Exactly(keys) => write!(f, "{keys} keys"),
            Self::MoreThan(keys) => write!(f, "more than {keys} keys"),
        }
    }
}

pub(crate) fn del(args: &Del) -> Result<Outcome> {
    let keys = args.keys.iter().map(|key| parse(key, args.hex)).collect::<Result<Vec<_>>>()?;
    if args.get && keys.len() != 1 {
        return Err(Error::invalid("--get takes one key"));
    }
    let place = Place::open(&args.place)?;
    if let (true, [key]) = (args.get, &keys[..]) {
        let value = place.get_and_delete(key)?;
        place.close()?;
        return print_value(key, value, args.hex);
    }
    let outcome = match keys.is_empty() {
        true => del_range(args, &place)?,
        false => place.delete(&keys).map(|()| Outcome::Done)?,
    };
    place.close()?;
    Ok(outcome)
}

fn del_range(args: &Del, place: &Place) -> Result<Outcome> {
    let range = if args.all { KeyRange::all() } else { key_range(&args.range, args.hex)? };
    let amount = place.keys_in(&range)?;
    let is_all = range.start.is_empty() && range.end.is_empty();
    let target = args.place.describe();
    if amount == Amount::Exactly(0) {
        let range = if is_all { target } else { "this range".to_owned() };
        eprintln!("stele: no key is in {range}");
        return Ok(Outcome::Done);
    }
    let all = if is_all { "all keys, " } else { "" };
    if !consent::given(&format!("delete {all}{amount}, from {target}"), args.yes)? {
        eprintln!("stele: nothing was deleted");
        return Ok(Outcome::Failed);
    }
    place.delete_range(&range)?;
    eprintln!("stele: deleted {amount}");
    Ok(Outcome::Done)
}
