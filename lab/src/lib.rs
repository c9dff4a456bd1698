//! Measurements of Stele. No product crate depends on them.

mod args;
mod backup;
mod calibrate;
mod cost;
pub mod designs;
mod devices;
mod embedded;
mod figures;
mod guard;
mod machine;
mod measured;
mod peers;
mod redis_edge;
mod redis_expiry;
mod restore;
mod transport;
mod wire;
mod workload;

use anyhow::{Result, bail};
use clap::Parser;
use xtask::flags::Flags;
use xtask::workspace::Workspace;

const USAGE: &str = "usage: cargo lab <command>

  peers [--etcd BIN] [--redis BIN] [--tikv BIN --pd BIN] [--nodes N] [--regions N] [--dev] [ARGUMENTS OF wire]
                            Stele and other servers under one load, with three processes each, or N
  peers --table [--etcd BIN] [--redis BIN] [--tikv BIN --pd BIN] [--nodes N] [--dev] [--records N] [--seconds N]
        [--rounds N]
                            the same under all loads of a comparison, and after a kill, as one table
  wire                      the load of `stele bench wire`, with etcd and the processes of servers; see --help
  devices                   stores on many devices, real or emulated, in one process; see --help
  calibrate                 fit the curve by which a new store estimates the speed of its device; see --help
  transport                 the framed transport of replication beside a gRPC stream
  batches NAME [--count N]  rounds through one part of the product, of which `cargo xtask guard` counts the
                            instructions
  cost [--note] [--dev] [--seconds N] [--bless]
                            processor time of a put on each replica, by stage; --note records the line
                            and writes docs/cost-per-put.md, --bless only writes the page
  figures [--only NAMES] [--series NAMES] [--scale F] [--rounds N] [--device limited=200MBps] [--etcd BIN]
          [--tiny] [--dev] [--work DIR] [--out DIR]
                            measure the figures of the papers and write one page with the papers' numbers
                            beside ours; NAMES are beginnings of names, separated by commas
  restore [--mib N] [--value-bytes N] [--nodes N] [--regions N] [--rounds N] [--dev]
                            a backup of random pairs, by default 4 GiB, restored into new clusters: bytes of all
                            replicas a second, beside those that the disk takes
  redis-edge --redis BIN [--benchmark BIN] [--rounds N] [--requests N] [--clients N] [--value-bytes N]
             [--seconds N] [--transactions N] [--dev]
                            redis-benchmark on a node that leads and on one that does not, beside Redis that syncs each
                            write; then a load beside Redis with WAIT, and EXEC of ten keys in one and in three regions
  redis-expiry [--per-second N] [--seconds N] [--ttl-s N] [--value-bytes N] [--wait-s N] [--members N]
               [--freed-within-s N] [--nodes N] [--dev]
                            Redis keys that expire, and a large hash that is deleted: the space after them, and the
                            processor time of the sweepers
  backup [--rounds N] [--seconds N] [--clients N] [--records N] [--value-bytes N] [--dev]
                            YCSB A beside a backup, beside a process that uses as much processor time, and alone;
                            then what a second backup of unchanged data transfers
  measured [--add FILES] [--bless]
                            check or write docs/measured.md, the recorded results of figures and peers;
                            --add records a figures.jsonl or the output of peers";

/// Runs the command that the command line requests.
pub fn run(arguments: &[String]) -> Result<()> {
    let Some((command, rest)) = arguments.split_first() else {
        bail!("{USAGE}\n\n{}\n\n{}", embedded::USAGE, designs::measure::USAGE)
    };
    let flags = Flags::new(rest);
    match command.as_str() {
        "peers" => peers::run(&Workspace::load()?, flags),
        "wire" => wire::run(rest),
        "devices" => devices::run(rest),
        "calibrate" => Ok(calibrate::run(rest)?),
        "batches" => guard::run(rest),
        "transport" => {
            transport::run();
            Ok(())
        }
        "cost" => cost::run(&Workspace::load()?, flags),
        "figures" => figures::run(&Workspace::load()?, flags),
        "backup" => backup::run(&Workspace::load()?, flags),
        backup::burner::COMMAND => backup::burner::run(rest),
        "redis-edge" => redis_edge::run(&Workspace::load()?, flags),
        "redis-expiry" => redis_expiry::run(&Workspace::load()?, flags),
        "restore" => restore::run(&Workspace::load()?, flags),
        "measured" => measured::run(&Workspace::load()?, flags),
        "designs" => designs::measure::run(rest),
        _ => embedded::run(arguments),
    }
}

/// Parses the arguments of a command. Exits with a message if they are wrong.
fn parse<T: Parser>(arguments: &[String]) -> T {
    T::parse_from(std::iter::once("lab").chain(arguments.iter().map(String::as_str)))
}
