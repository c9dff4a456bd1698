//! Consent of a person to what a command destroys.

use std::io::{BufRead, IsTerminal, Write};
use stele_types::{Error, Result};

/// Whether a command may destroy something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consent {
    Given,
    /// A person is asked.
    Ask,
    /// There is no terminal, and the command line does not say it.
    Missing,
}

impl Consent {
    fn of(yes: bool, has_terminal: bool) -> Self {
        match (yes, has_terminal) {
            (true, _) => Self::Given,
            (false, true) => Self::Ask,
            (false, false) => Self::Missing,
        }
    }
}

/// Returns whether `what` may be done, such as `delete 3 keys`. Asks on a terminal; fails with
/// `Refused` if there is none and `--yes` was not given.
///
/// Invariant: nothing is destroyed that a person or the command line did not agree to.
pub(crate) fn given(what: &str, yes: bool) -> Result<bool> {
    let has_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    let consent = Consent::of(yes, has_terminal);
    // bug cli.destroyed_unasked: let consent = Consent::Given;
    match consent {
        Consent::Given => Ok(true),
        Consent::Ask => ask(what, &mut std::io::stdin().lock(), &mut std::io::stderr()),
        Consent::Missing => Err(Error::Refused(format!(
            "this would {what}, and there is no terminal to ask; add `--yes`"
        ))),
    }
}

/// Asks on the terminal. Anything but `y` and `yes` is a no.
fn ask(what: &str, input: &mut dyn BufRead, output: &mut dyn Write) -> Result<bool> {
    let failed = |source| Error::io("ask on", "the terminal", source);
    write!(output, "This will {what}. Go on? [y/N] ")
        .and_then(|()| output.flush())
        .map_err(failed)?;
    let mut answer = String::new();
    input.read_line(&mut answer).map_err(failed)?;
    Ok(["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_asked_and_a_script_must_say_it() {
        assert_eq!(Consent::of(false, true), Consent::Ask);
        assert_eq!(Consent::of(false, false), Consent::Missing);
        assert_eq!(Consent::of(true, true), Consent::Given);
        assert_eq!(Consent::of(true, false), Consent::Given);
    }

    #[test]
    fn only_a_yes_destroys() {
        let answer = |text: &str| {
            let mut question = Vec::new();
            let answer = ask("delete 5 keys", &mut text.as_bytes(), &mut question);
            assert_eq!(question, b"This will delete 5 keys. Go on? [y/N] ");
            answer.unwrap()
        };
        assert!(["y\n", "Yes\n", " yes \n", "y"].map(answer).into_iter().all(|it| it));
        assert!(!["", "\n", "n\n", "no\n", "yeah\n", "1\n"].map(answer).into_iter().any(|it| it));
    }
}
