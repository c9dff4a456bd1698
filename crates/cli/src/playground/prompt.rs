//! Parser of the prompt's lines, typed or piped.

use crate::args::slow_factor;
use std::io::{BufRead, IsTerminal};
use stele_types::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PromptCommand {
    Put {
        key: String,
        value: String,
    },
    Get {
        key: String,
    },
    Del {
        key: String,
    },
    Scan {
        start: String,
        end: String,
    },
    Kill {
        node: String,
    },
    Restart {
        node: String,
    },
    Pause {
        node: String,
    },
    Resume {
        node: String,
    },
    /// Make the devices of a node slower; a factor of 1 makes them as fast as they are.
    Slow {
        node: String,
        factor: u32,
    },
    Load {
        seconds: u64,
    },
    /// Explain the place of the region with this number, or of the one that holds this key.
    Explain {
        at: String,
    },
    Placement,
    Transfer {
        region: u64,
        to: String,
    },
    /// Split at a key, or of a region with this ID; further keys may follow.
    Split {
        at: String,
        keys: Vec<String>,
    },
    Regions,
    Status,
    Help,
    Quit,
}

pub(super) const HELP: &str = "\
put KEY VALUE        get KEY        del KEY        scan [START [END]]
kill nX              kill a node; restart nX starts it again
pause nX             stop a node's process; resume nX continues it
slow nX 8x           make the node's devices 8 times slower; slow nX off ends that
load SECONDS         put values for that time
placement            show measured speeds, weights, shares and moves
explain REGION|KEY   explain why a region is where it is
transfer REGION nX   make that node (or store) the leader of a region
split REGION|KEY     split a region in half, or at a key
status               show nodes and stores; regions shows keys and replicas
quit
";

/// Parses a line; returns `None` for a blank one.
pub(super) fn parse(line: &str) -> Result<Option<PromptCommand>> {
    let mut words = line.split_whitespace();
    let Some(name) = words.next() else { return Ok(None) };
    let rest: Vec<&str> = words.collect();
    let one = |usage: &str| match rest.as_slice() {
        [word] => Ok((*word).to_owned()),
        _ => Err(Error::invalid(format!("write `{usage}`"))),
    };
    let command = match name {
        "put" => put(line)?,
        "get" => PromptCommand::Get { key: one("get KEY")? },
        "del" => PromptCommand::Del { key: one("del KEY")? },
        "scan" => match rest.as_slice() {
            [] => PromptCommand::Scan { start: String::new(), end: String::new() },
            [start] => PromptCommand::Scan { start: (*start).to_owned(), end: String::new() },
            [start, end] => {
                PromptCommand::Scan { start: (*start).to_owned(), end: (*end).to_owned() }
            }
            _ => return Err(Error::invalid("write `scan [START [END]]`")),
        },
        "kill" => PromptCommand::Kill { node: one("kill nX")? },
        "restart" => PromptCommand::Restart { node: one("restart nX")? },
        "pause" => PromptCommand::Pause { node: one("pause nX")? },
        "resume" => PromptCommand::Resume { node: one("resume nX")? },
        "slow" => slow(&rest)?,
        "load" => {
            let seconds = one("load SECONDS")?;
            let wrong = |_| Error::invalid(format!("`{seconds}` is not a number of seconds"));
            PromptCommand::Load { seconds: seconds.parse().map_err(wrong)? }
        }
        "explain" => PromptCommand::Explain { at: one("explain REGION|KEY")? },
        "placement" => PromptCommand::Placement,
        "transfer" => match rest.as_slice() {
            [region, to] => {
                let wrong = |_| Error::invalid(format!("`{region}` is not a region number"));
                PromptCommand::Transfer {
                    region: region.parse().map_err(wrong)?,
                    to: (*to).to_owned(),
                }
            }
            _ => return Err(Error::invalid("write `transfer REGION nX`")),
        },
        "split" => match rest.split_first() {
            Some((at, keys)) => PromptCommand::Split {
                at: (*at).to_owned(),
                keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            },
            None => return Err(Error::invalid("write `split REGION|KEY`")),
        },
        "regions" => PromptCommand::Regions,
        "status" => PromptCommand::Status,
        "help" | "?" => PromptCommand::Help,
        "quit" | "exit" => PromptCommand::Quit,
        other => {
            return Err(Error::invalid(format!(
                "there is no command `{other}`; `help` lists the commands"
            )));
        }
    };
    Ok(Some(command))
}

fn put(line: &str) -> Result<PromptCommand> {
    // The value is the rest of the line, with its spaces.
    let after_name = line.trim_start().split_once(char::is_whitespace);
    let after_name = after_name.map_or("", |(_, after)| after.trim_start());
    let Some((key, value)) = after_name.split_once(char::is_whitespace) else {
        return Err(Error::invalid("write `put KEY VALUE`"));
    };
    Ok(PromptCommand::Put { key: key.to_owned(), value: value.trim().to_owned() })
}

fn slow(rest: &[&str]) -> Result<PromptCommand> {
    let (node, factor) = match rest {
        [node, "off"] => (node, 1),
        [node, factor] => (node, slow_factor(factor)?),
        _ => return Err(Error::invalid("write `slow nX 8x` or `slow nX off`")),
    };
    Ok(PromptCommand::Slow { node: (*node).to_owned(), factor })
}

pub(super) enum PromptLines {
    Edited(Box<rustyline::DefaultEditor>),
    /// Any other input; each line is printed before it runs.
    Piped(std::io::Lines<std::io::StdinLock<'static>>),
}

impl PromptLines {
    pub(super) fn new() -> Result<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self::Piped(stdin.lock().lines()));
        }
        let failed = |error: rustyline::error::ReadlineError| {
            Error::invalid(format!("cannot use the terminal: {error}"))
        };
        Ok(Self::Edited(Box::new(rustyline::DefaultEditor::new().map_err(failed)?)))
    }

    /// Returns the next line; `None` at the end of input or when the user leaves.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        match self {
            Self::Edited(editor) => match editor.readline("> ") {
                Ok(line) => {
                    // Without the entry, the line is only missing from the history.
                    let _ = editor.add_history_entry(&line);
                    Ok(Some(line))
                }
                Err(_) => Ok(None),
            },
            Self::Piped(lines) => {
                let line = lines.next().transpose();
                let line = line.map_err(|error| Error::io("read", "standard input", error))?;
                if let Some(line) = line.as_ref().filter(|line| !line.trim().is_empty()) {
                    crate::terminal::print(&format!("> {line}\n"));
                }
                Ok(line)
            }
        }
    }

    pub(super) fn are_interactive(&self) -> bool {
        matches!(self, Self::Edited(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood_or_answered_with_how_to_write_them() {
        let ok = |line: &str| parse(line).unwrap().unwrap();
        let put =
            |key: &str, value: &str| PromptCommand::Put { key: key.into(), value: value.into() };
        assert_eq!(ok("put a 1"), put("a", "1"));
        assert_eq!(ok("  put  a  two  words "), put("a", "two  words"));
        assert_eq!(ok("scan b"), PromptCommand::Scan { start: "b".into(), end: String::new() });
        assert_eq!(ok("transfer 2 n3"), PromptCommand::Transfer { region: 2, to: "n3".into() });
        assert_eq!(
            ok("split 2 k m"),
            PromptCommand::Split { at: "2".into(), keys: vec!["k".into(), "m".into()] }
        );
        assert_eq!(ok("slow n3 8x"), PromptCommand::Slow { node: "n3".into(), factor: 8 });
        assert_eq!(ok("slow n3 off"), PromptCommand::Slow { node: "n3".into(), factor: 1 });
        assert_eq!(ok("explain m"), PromptCommand::Explain { at: "m".into() });
        assert_eq!(ok("exit"), PromptCommand::Quit);
        assert_eq!(parse("  ").unwrap(), None);
        for (line, hint) in [
            ("put a", "put KEY VALUE"),
            ("put", "put KEY VALUE"),
            ("get", "get KEY"),
            ("kill", "kill nX"),
            ("transfer x n1", "not a region number"),
            ("split", "split REGION|KEY"),
            ("slow n3", "slow nX off"),
            ("slow n3 fast", "not a factor"),
            ("slow n3 0x", "not a factor"),
            ("load", "load SECONDS"),
            ("load long", "not a number of seconds"),
            ("explain", "explain REGION|KEY"),
            ("fly", "`help`"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
