//! Checks and chores of the repository: `cargo xtask <command>`.

mod catalogue;
mod changes;
mod ci;
mod cluster;
mod corpus;
mod demo;
mod dependencies;
mod dist;
mod docs;
mod edges;
mod fuzz;
mod guard;
mod histories;
mod house;
mod http_schema;
mod invariants;
mod local_server;
mod mutants;
mod redis_clients;
mod redis_compare;
mod redis_suites;
mod s3;
mod sim_mutants;
mod sizes;
mod soak;
mod spec;
mod tidy;
mod tools;
mod upgrade;

use anyhow::{Result, bail};
use std::process::ExitCode;
use workspace::Workspace;
use xtask::flags::Flags;
use xtask::{process, programs, servers, workspace};

const USAGE: &str = "usage: cargo xtask <command>

  tidy                      check layers, banned calls, lengths, words, dead files, deliberate bugs
  mutants [--only NAME] [--list] [--recent]
                            run the tests against all deliberate bugs; NAME may be the beginning of a name;
                            --recent takes those that CI takes: of packages that the last 20 commits
                            changed, and a tenth of the others, chosen by the commit
  docs [--release]          run the sh blocks of the documents
  demo-import [--short] [--from DIR] [--work DIR] [--seed N]
                            import a folder, killed three times; export, compare, verify
  cluster SCENARIO|ci|all [--dev] [--short] [--rounds N] [--seed N]
                            faults, measurements and foreign clients on real clusters
  upgrade [--seed N]        build the oldest supported version from the history, and upgrade a cluster of it
                            under load, back and forth; raise its level
  corpus --work DIR         write crates/cli/tests/stores with the oldest supported version; DIR is a new folder, and
                            recorded in the stores
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
  redis-suites [--short]    run the tests of other projects on a Redis listener; [--only NAME] [--address A]
  redis-compare [--against redis|valkey] [--sequences N] [--seed N] [--threads N] [--stele PROGRAM]
                            send random sequences of commands to a node and to another server, and compare the
                            replies; --table writes docs/redis-commands.md from the commands of both
  redis-clients [--only FOLDER[/LIBRARY]] [--short] [--seconds N] [--stele FILE]
                            run clients of Redis and frameworks on three nodes, also while a leader is killed
  http-schema               send requests that schemathesis derives from the OpenAPI description to a node; it is
                            fetched; [--seed N] [--address A]
  s3                        run the operations of backups on two servers of S3, downloaded once
  guard [--bless]           count what a put, a get and a scan cost, in instructions and in calls, switches and
                            page faults, and compare with xtask/guard.toml; --bless writes the counts
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
    let mut flags = Flags::new(rest);
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
        "corpus" => corpus(&workspace, flags),
        "upgrade" => upgrade::run(&workspace, rest),
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
        "s3" => {
            flags.end()?;
            tools::require(tools::FOR_S3)?;
            s3::run(&workspace)
        }
        "http-schema" => http_schema::run(&workspace, flags),
        "redis-suites" => redis_suites::run(&workspace, flags),
        "redis-compare" => redis_compare::run(&workspace, flags),
        "redis-clients" => redis_clients::run(&workspace, flags),
        "guard" => {
            let bless = flags.switch("--bless");
            flags.end()?;
            guard::run(&workspace, bless)
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

fn corpus(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let work = flags.value("--work")?;
    flags.end()?;
    match work {
        Some(work) => corpus::run(workspace, work.as_ref()),
        None => bail!("--work DIR is required: a new folder, of which the stores record the path"),
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
