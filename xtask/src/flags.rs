//! Arguments of a command.

use anyhow::{Result, bail};

/// Arguments after the command's name; each flag is taken once.
pub struct Flags {
    rest: Vec<String>,
}

impl Flags {
    /// Takes the arguments of a command.
    pub fn new(rest: &[String]) -> Self {
        Self { rest: rest.to_vec() }
    }

    /// Returns whether the flag is given.
    pub fn switch(&mut self, name: &str) -> bool {
        let found = self.rest.iter().position(|argument| argument == name);
        found.map(|at| self.rest.remove(at)).is_some()
    }

    /// Returns the value of a flag, if it is given.
    pub fn value(&mut self, name: &str) -> Result<Option<String>> {
        let Some(at) = self.rest.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        if at + 1 == self.rest.len() {
            bail!("{name} needs a value");
        }
        self.rest.remove(at);
        Ok(Some(self.rest.remove(at)))
    }

    /// Returns the number that a flag gives, or else `default`.
    pub fn number(&mut self, name: &str, default: u64) -> Result<u64> {
        Ok(self.value(name)?.map_or(Ok(default), |text| text.parse())?)
    }

    /// Returns the arguments that were not taken.
    pub fn rest(self) -> Vec<String> {
        self.rest
    }

    /// Fails if an argument was not taken.
    pub fn end(&self) -> Result<()> {
        match self.rest.first() {
            None => Ok(()),
            Some(argument) => {
                bail!("unexpected `{argument}`; without a command, all commands are shown")
            }
        }
    }
}
