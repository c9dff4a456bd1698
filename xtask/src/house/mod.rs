//! Measures of the house: what its sources contain, and what a put and a get enter on their leader.

mod cluster;
mod items;
mod layout;
mod profile;
mod table;
mod text;
mod trace;

pub(crate) use cluster::as_compiler;
pub(crate) use items::twins;

use crate::tidy::{self, lengths, source::Source};
use crate::workspace::Workspace;
use anyhow::Result;
use profile::{Functions, Profile};
use std::collections::BTreeSet;
use table::Row;

#[derive(Debug)]
pub(crate) struct Options {
    /// Measures the sources only: no build and no cluster.
    pub is_static: bool,
    /// Lists what the counts count.
    pub list: bool,
}

impl Options {
    pub(crate) fn from(flags: &mut crate::Flags) -> Result<Self> {
        Ok(Self { is_static: flags.switch("--static"), list: flags.switch("--list") })
    }
}

/// Prints the table of all measures, and with `list` what they count.
pub(crate) fn run(workspace: &Workspace, options: &Options) -> Result<()> {
    let sources = tidy::sources(workspace)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut lists = String::new();
    if !options.is_static {
        for (operation, profile) in profiles(workspace, &sources)? {
            rows.extend(profile.rows(operation));
            lists += &profile.list(operation);
        }
    }
    rows.extend(text::rows(workspace, &sources));
    rows.extend(items::rows(&sources));
    print!("{}", table::table(&rows));
    if options.list {
        print!("\n{lists}");
        list_sources(&sources);
    }
    Ok(())
}

/// Builds and starts an instrumented cluster; returns what each operation enters on its leader.
fn profiles(workspace: &Workspace, sources: &[Source]) -> Result<Vec<(&'static str, Profile)>> {
    let built = cluster::build(workspace)?;
    let measured = cluster::measure(workspace, &built)?;
    let entered = measured.iter().flat_map(|each| each.keys());
    let addresses: BTreeSet<u64> = entered.map(|(_, address)| *address).collect();
    let symbols = trace::resolve(&built.stele, &addresses)?;
    let functions = Functions::of(sources);
    let profile = |each| Profile::of(each, &symbols, &functions, &workspace.root);
    let names = cluster::OPERATIONS.iter().map(|(name, _)| *name);
    Ok(names.zip(measured.iter().map(profile)).collect())
}

fn list_sources(sources: &[Source]) {
    for (lines, path) in text::short(&lengths::product_lengths(sources)) {
        println!("short: {path}: {lines} lines");
    }
    for ((package, name), places) in twins(sources) {
        println!("twice in {package}: {name}: {}", places.join(", "));
    }
    for it in items::unused(sources) {
        println!("unused outside {}: {} {}", it.package, it.name, it.place);
    }
}
