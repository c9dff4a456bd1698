//! Measurements of Stele. No product crate depends on them.

pub mod designs;
mod embedded;

use anyhow::{Result, bail};

/// Runs the command that the command line requests.
pub fn run(arguments: &[String]) -> Result<()> {
    let Some((command, rest)) = arguments.split_first() else {
        bail!("usage: lab <command>\n\n{}\n\n{}", embedded::USAGE, designs::measure::USAGE)
    };
    match command.as_str() {
        "designs" => designs::measure::run(rest),
        _ => embedded::run(arguments),
    }
}
