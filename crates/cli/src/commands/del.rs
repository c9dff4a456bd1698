//! `stele del`: deletes keys. A range is deleted after a question, or when the command line says that
//! none is wanted.

use super::keys::print_value;
use crate::Outcome;
use crate::args::Del;
use crate::place::{Amount, Place};
use crate::text::{key_range, parse};
use std::fmt;
use std::io::{BufRead, IsTerminal, Write};
use stele_types::{Error, KeyRange, Result, mutant};

/// Whether a range may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consent {
    Given,
    /// A person is asked.
    Ask,
    /// There is no terminal, and the command line does not say it.
    Missing,
}

impl Consent {
    fn of(yes: bool, all: bool, has_terminal: bool) -> Self {
        match (yes, has_terminal, all) {
            (true, _, _) | (false, false, true) => Self::Given,
            (false, true, _) => Self::Ask,
            (false, false, false) => Self::Missing,
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(1) => f.write_str("1 key"),
            Self::Exactly(keys) => write!(f, "{keys} keys"),
            Self::About(keys) => write!(f, "about {keys} keys"),
        }
    }
}

pub fn del(args: &Del) -> Result<Outcome> {
    let keys = args.keys.iter().map(|key| parse(key, args.hex)).collect::<Result<Vec<_>>>()?;
    let place = Place::open(&args.place)?;
    if args.get {
        let [key] = &keys[..] else { return Err(Error::invalid("--get takes one key")) };
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
    if amount == Amount::Exactly(0) {
        eprintln!("stele: no key is in this range");
        return Ok(Outcome::Done);
    }
    let has_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let mut consent = Consent::of(args.yes, args.all, has_terminal);
    if mutant::active("cli.range_deleted_unasked") {
        consent = Consent::Given;
    }
    let is_wanted = match consent {
        Consent::Given => true,
        Consent::Ask => ask(&amount, &mut std::io::stdin().lock(), &mut std::io::stderr())?,
        Consent::Missing => {
            return Err(Error::Refused(format!(
                "{amount} would be deleted, and there is no terminal to ask; add `--yes`"
            )));
        }
    };
    if !is_wanted {
        eprintln!("stele: nothing was deleted");
        return Ok(Outcome::Failed);
    }
    place.delete_range(&range)?;
    eprintln!("stele: deleted {amount}");
    Ok(Outcome::Done)
}

/// Asks whether the keys are to be deleted. Anything but `y` and `yes` is a no.
fn ask(amount: &Amount, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<bool> {
    let failed = |source| Error::io("ask on", "the terminal", source);
    write!(output, "Delete {amount}? [y/N] ").and_then(|()| output.flush()).map_err(failed)?;
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(failed)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_asked_and_a_script_must_say_it() {
        for (yes, all, has_terminal, expected) in [
            (false, false, true, Consent::Ask),
            (false, true, true, Consent::Ask),
            (true, false, true, Consent::Given),
            (true, true, true, Consent::Given),
            (false, false, false, Consent::Missing),
            (false, true, false, Consent::Given),
            (true, false, false, Consent::Given),
            (true, true, false, Consent::Given),
        ] {
            assert_eq!(Consent::of(yes, all, has_terminal), expected, "{yes} {all} {has_terminal}");
        }
    }

    #[test]
    fn only_a_yes_deletes() {
        let answer = |text: &str| {
            let mut question = Vec::new();
            let answer = ask(&Amount::About(60_000), &mut text.as_bytes(), &mut question);
            assert_eq!(question, b"Delete about 60000 keys? [y/N] ");
            answer.unwrap()
        };
        assert!(["y\n", "Yes\n", " yes \n", "y"].map(answer).into_iter().all(|it| it));
        assert!(!["", "\n", "n\n", "no\n", "yeah\n", "1\n"].map(answer).into_iter().any(|it| it));
    }
}
