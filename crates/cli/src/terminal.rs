//! The terminal of a command: its output, with errors that can be distinguished from those of the
//! store; the progress of a long command, which is a bar on a terminal and nothing elsewhere; and
//! the consent of a person to what the command destroys.

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use std::io::{self, BufRead, BufWriter, IsTerminal, StdoutLock, Write};
use std::path::Path;
use std::time::Duration;
use stele_types::{Error, Result};

const NAME: &str = "standard output";

pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { out: BufWriter::with_capacity(1 << 16, io::stdout().lock()) }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(failed)
    }

    pub(crate) fn line(&mut self, line: &str) -> Result<()> {
        self.bytes(line.as_bytes())?;
        self.bytes(b"\n")
    }

    pub(crate) fn json(&mut self, object: Map<String, Value>) -> Result<()> {
        self.line(&Value::Object(object).to_string())
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(failed)
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        self.flush()
    }
}

/// Prints text and flushes. A failure is ignored: the reader has closed standard output.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn failed(source: io::Error) -> Error {
    Error::io("write", NAME, source)
}

/// Returns whether `error` means that the reader closed standard output.
pub(crate) fn is_closed_pipe(error: &Error) -> bool {
    matches!(error, Error::Io { path, source, .. }
        if path == Path::new(NAME) && source.kind() == io::ErrorKind::BrokenPipe)
}

const REDRAW: Duration = Duration::from_millis(200);

/// A bar on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a bar up to `total` bytes, or a spinner if `total` is unknown.
    pub(crate) fn bytes(total: Option<u64>, what: &str) -> Self {
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
            ),
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes} {bytes_per_sec}"),
        };
        Self::with(bar, template, what)
    }

    /// Shows a bar up to `total` keys, or a spinner if `total` is unknown.
    pub(crate) fn keys(total: Option<u64>, what: &str) -> Self {
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{msg} {wide_bar} {human_pos}/{human_len} keys {per_sec} eta {eta}",
            ),
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {human_pos} keys {per_sec}"),
        };
        Self::with(bar, template, what)
    }

    fn with(bar: ProgressBar, template: &str, what: &str) -> Self {
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(REDRAW);
        Self { bar }
    }

    /// Adds bytes, or keys.
    pub(crate) fn add(&self, count: u64) {
        self.bar.inc(count);
    }

    pub(crate) fn warn(&self, line: &str) {
        self.bar.suspend(|| eprintln!("stele: {line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Whether a command may destroy something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consent {
    Given,
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
