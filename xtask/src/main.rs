//! Checks and chores of the repository: `cargo xtask <command>`.

mod catalogue;
mod changes;
mod ci;
mod cluster;
mod cost;
mod demo;
mod dependencies;
mod dist;
mod docs;
mod edges;
mod figures;
mod fuzz;
mod histories;
mod house;
mod invariants;
mod measured;
mod mutants;
mod peers;
mod process;
mod programs;
mod sim_mutants;
mod sizes;
mod soak;
mod spec;
mod tidy;
mod tools;
mod workspace;

use anyhow::{Result, bail};
use std::path::PathBuf;
use std::process::ExitCode;
use workspace::Workspace;

const USAGE: &str = "usage: cargo xtask <command>

  tidy                      check layers, banned calls, lengths, words, dead files, deliberate bugs
  mutants [--only NAME] [--list] [--recent]
                            run the tests against all deliberate bugs; NAME may be the beginning of a name;
                            --recent takes those that CI takes: of packages that the last 20 commits
                            changed, and a tenth of the others, chosen by the commit
  docs [--release]          run the sh blocks of README.md and ARCHITECTURE.md
  demo-import [--short] [--from DIR] [--work DIR] [--seed N]
                            import a folder, killed three times; export, compare, verify
  cluster SCENARIO|ci|all [--dev] [--short] [--rounds N] [--seed N]
                            faults, measurements and foreign clients on real clusters
  peers [--etcd BIN] [--redis BIN] [--tikv BIN --pd BIN] [--nodes N] [--regions N] [--dev]
        [ARGUMENTS OF stele bench wire]
                            Stele and other servers under one load, with three processes each, or N
  cost [--note] [--dev] [--seconds N] [--bless]
                            processor time of a put on each replica, by stage; --note records the line
                            and writes docs/cost-per-put.md, --bless only writes the page
  figures [--only NAMES] [--series NAMES] [--scale F] [--rounds N] [--device limited=200MBps] [--etcd BIN]
          [--tiny] [--dev] [--work DIR] [--out DIR]
                            measure the figures of the papers and write one page with the papers' numbers
                            beside ours; NAMES are beginnings of names, separated by commas
  measured [--add FILES] [--bless]
                            check or write docs/measured.md, the recorded results of figures and peers;
                            --add records a figures.jsonl or the output of peers
  catalogue [--bless]       check or write docs/testing.md, the tests of each fault and invariant
  fuzz [--seconds S] [--seed N] [--only NAME] [--guided]
                            run every fuzz target for 10 seconds; --guided builds with coverage
  spec [--large] [--only NAME] [--workers N]
                            check the specification with TLC; NAME may be the beginning of a name
  soak [--hours H] [--from SEED] [--dev]
                            run seeds of the simulation in both modes
  sim-mutants [--only NAME] [--note]
                            run the simulation against deliberate bugs; --note records the seed that
                            showed each
  house [--static] [--list]
                            print the measures of the house: files, names, and what a put and a get enter on
                            their leader, measured on an instrumented cluster; --static leaves the cluster
                            out, --list lists the functions, short files, and names
  histories [--seeds N]     compare the simulation's check of histories with Porcupine
  dist                      build the release binary, stripped, with its symbols in a separate file
  ci [--only STEP,STEP] [--without STEP,STEP] [--tested SECONDS]
                            run all checks that a change must pass, or only these, or all but these;
                            --tested leaves out the tests, which have just passed in so many seconds
";

fn main() -> ExitCode {
    if let Some(code) = house::as_compiler() {
        return code;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let Some((command, rest)) = arguments.split_first() else { bail!("{USAGE}") };
    let mut flags = Flags { rest: rest.to_vec() };
    let workspace = Workspace::load()?;
    match command.as_str() {
        "tidy" => {
            flags.end()?;
            tidy::run(&workspace)
        }
        "mutants" => mutants::run(&workspace, &mutants_options(flags)?),
        "docs" => {
            let release = flags.switch("--release");
            flags.end()?;
            docs::run(&workspace, release)
        }
        "demo-import" => {
            let options = demo_options(&mut flags)?;
            flags.end()?;
            demo::run(&workspace, &options)
        }
        "fuzz" => fuzz::run(&workspace, &fuzz_options(flags)?),
        "cluster" => cluster::run(&workspace, rest),
        "peers" => peers::run(&workspace, &peers_options(flags)?),
        "cost" => {
            let options = cost::Options::from(&mut flags)?;
            flags.end()?;
            cost::run(&workspace, &options)
        }
        "figures" => {
            let options = figures::Options::from(&mut flags)?;
            flags.end()?;
            figures::run(&workspace, &options)
        }
        "measured" => measured(&workspace, flags),
        "catalogue" => {
            let bless = flags.switch("--bless");
            flags.end()?;
            catalogue::run(&workspace, bless)
        }
        "spec" => {
            let options = spec_options(&mut flags)?;
            flags.end()?;
            spec::run(&workspace, &options)
        }
        "soak" => {
            let options = soak_options(&mut flags)?;
            flags.end()?;
            soak::run(&workspace, &options)
        }
        "sim-mutants" => sim_mutants(&workspace, flags),
        "house" => {
            let options = house::Options::from(&mut flags)?;
            flags.end()?;
            house::run(&workspace, &options)
        }
        "histories" => compare_histories(&workspace, flags),
        "ci" => ci(&workspace, flags),
        "ci-step" => ci::run_step(&workspace, rest.first().map_or("", String::as_str)),
        "dist" => {
            flags.end()?;
            dist::run(&workspace)
        }
        other => bail!("no command `{other}`\n\n{USAGE}"),
    }
}

fn mutants_options(mut flags: Flags) -> Result<mutants::Options> {
    let options = mutants::Options {
        only: flags.value("--only")?,
        list: flags.switch("--list"),
        recent: flags.switch("--recent"),
        tested: false,
    };
    flags.end()?;
    Ok(options)
}

fn demo_options(flags: &mut Flags) -> Result<demo::Options> {
    Ok(demo::Options {
        short: flags.switch("--short"),
        from: flags.value("--from")?.map(Into::into),
        work: flags.value("--work")?.map(Into::into),
        seed: flags.value("--seed")?.map(|seed| seed.parse()).transpose()?,
    })
}

fn peers_options(mut flags: Flags) -> Result<peers::Options> {
    Ok(peers::Options {
        etcd: flags.value("--etcd")?.map(Into::into),
        redis: flags.value("--redis")?.map(Into::into),
        tikv: tikv(&mut flags)?,
        nodes: flags.number("--nodes", 3)? as usize,
        regions: flags.number("--regions", 1)? as usize,
        dev: flags.switch("--dev"),
        load: flags.rest,
        within: Vec::new(),
        stele: peers::Stele::default(),
    })
}

fn tikv(flags: &mut Flags) -> Result<Option<(PathBuf, PathBuf)>> {
    match (flags.value("--tikv")?, flags.value("--pd")?) {
        (Some(tikv), Some(pd)) => Ok(Some((tikv.into(), pd.into()))),
        (None, None) => Ok(None),
        _ => bail!("--tikv and --pd must be given together: TiKV's store and its placement driver"),
    }
}

fn measured(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let options = measured::Options { add: flags.value("--add")?, bless: flags.switch("--bless") };
    flags.end()?;
    measured::run(workspace, &options)
}

fn sim_mutants(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let options =
        sim_mutants::Options { only: flags.value("--only")?, notes: flags.switch("--note") };
    flags.end()?;
    sim_mutants::run(workspace, &options)
}

fn ci(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let mut names = |flag| -> Result<Vec<String>> {
        let names = flags.value(flag)?;
        Ok(names.map(|it| it.split(',').map(str::to_owned).collect()).unwrap_or_default())
    };
    let (only, without) = (names("--only")?, names("--without")?);
    let tested = flags.value("--tested")?.map(|seconds| seconds.parse()).transpose()?;
    let options = ci::Options { only, without, tested };
    flags.end()?;
    ci::run(workspace, &options)
}

fn compare_histories(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let seeds = flags.number("--seeds", 50)?;
    flags.end()?;
    histories::run(workspace, seeds)
}

fn fuzz_options(mut flags: Flags) -> Result<fuzz::Options> {
    let defaults = fuzz::Options::default();
    let number = |text: Option<String>| text.map(|it| it.parse()).transpose();
    let options = fuzz::Options {
        seconds: number(flags.value("--seconds")?)?.unwrap_or(defaults.seconds),
        seed: number(flags.value("--seed")?)?.unwrap_or(defaults.seed),
        only: flags.value("--only")?,
        guided: flags.switch("--guided"),
    };
    flags.end()?;
    Ok(options)
}

fn spec_options(flags: &mut Flags) -> Result<spec::Options> {
    Ok(spec::Options {
        recent: false,
        large: flags.switch("--large"),
        only: flags.value("--only")?,
        workers: flags.value("--workers")?.map(|count| count.parse()).transpose()?,
    })
}

fn soak_options(flags: &mut Flags) -> Result<soak::Options> {
    Ok(soak::Options {
        hours: flags.value("--hours")?.map_or(Ok(1.0), |hours| hours.parse())?,
        from: flags.value("--from")?.map(|seed| seed.parse()).transpose()?,
        is_dev: flags.switch("--dev"),
    })
}

/// Arguments after the command's name; each flag is taken once.
struct Flags {
    rest: Vec<String>,
}

impl Flags {
    fn switch(&mut self, name: &str) -> bool {
        let found = self.rest.iter().position(|argument| argument == name);
        found.map(|at| self.rest.remove(at)).is_some()
    }

    fn value(&mut self, name: &str) -> Result<Option<String>> {
        let Some(at) = self.rest.iter().position(|argument| argument == name) else {
            return Ok(None);
        };
        if at + 1 == self.rest.len() {
            bail!("{name} needs a value");
        }
        self.rest.remove(at);
        Ok(Some(self.rest.remove(at)))
    }

    fn number(&mut self, name: &str, default: u64) -> Result<u64> {
        Ok(self.value(name)?.map_or(Ok(default), |text| text.parse())?)
    }

    fn end(&self) -> Result<()> {
        match self.rest.first() {
            None => Ok(()),
            Some(argument) => bail!("unexpected `{argument}`\n\n{USAGE}"),
        }
    }
}
