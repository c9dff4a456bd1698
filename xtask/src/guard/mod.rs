//! Counts what a put, a get and a scan cost, and compares the counts with those of `xtask/guard.toml`. No
//! time is measured.

mod instructions;
mod kernel;
mod table;

use crate::programs::{self, LAB, STELE};
use crate::tools;
use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use table::{Found, Table};

const FILE: &str = "xtask/guard.toml";
const BLESS: &str = "cargo xtask guard --bless";

/// Counts everything. With `bless` the counts become the expected ones, otherwise they are compared with
/// them.
pub(crate) fn run(workspace: &Workspace, bless: bool) -> Result<()> {
    tools::require(tools::FOR_GUARD)?;
    let lab = programs::build_not_incremental(workspace, LAB)?;
    let stele = programs::build_not_incremental(workspace, STELE)?;
    let mut found = Found {
        compiler: compiler()?,
        instructions: instructions::count(&lab)?,
        kernel: kernel::count(workspace, &stele, &lab)?,
    };
    let path = workspace.root.join(FILE);
    if bless {
        let before = if path.exists() { read(&path)? } else { Table::default() };
        let after = Table::of(&found, &before);
        print!("{}", after.compare(&found).text);
        return std::fs::write(&path, after.to_text()?).with_context(|| format!("writing {FILE}"));
    }
    let table = read(&path)?;
    if table.is_kernel_above(&found.kernel) {
        println!("counts of the kernel are above their bounds: counting them again");
        let again = kernel::count(workspace, &stele, &lab)?;
        for (count, again) in found.kernel.iter_mut().zip(again) {
            count.count = count.count.min(again.count);
        }
    }
    let compared = table.compare(&found);
    print!("{}", compared.text);
    if !compared.failures.is_empty() {
        bail!("{}", compared.failures.join("\n"));
    }
    Ok(())
}

fn read(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("reading {FILE}: `{BLESS}` writes it"))?;
    Table::parse(&text).with_context(|| FILE.to_owned())
}

/// Returns version and host of the compiler: both decide the instructions.
fn compiler() -> Result<String> {
    let program = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let output = Command::new(&program).arg("-vV").output();
    let output = output.with_context(|| format!("starting {program}"))?;
    ensure!(output.status.success(), "{program} -vV ended with {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    match (text.lines().next(), host) {
        (Some(version), Some(host)) => Ok(format!("{version} for {host}")),
        _ => bail!("{program} -vV names no version and host"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use table::{Count, HEADER};

    #[test]
    fn the_file_has_a_row_for_everything_that_is_counted_and_no_other() {
        let text = include_str!("../../guard.toml");
        assert!(text.starts_with(HEADER), "`{BLESS}` writes another header");
        let count = |name| Count { name, count: 0.0 };
        let found = Found {
            compiler: Table::parse(text).unwrap().compiler,
            instructions: instructions::rows().map(count).collect(),
            kernel: kernel::rows().map(count).collect(),
        };
        for failure in Table::parse(text).unwrap().compare(&found).failures {
            assert!(failure.contains("found 0.00, 100.0 % below"), "{failure}");
        }
    }
}
