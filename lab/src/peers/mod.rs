//! Stele beside other servers on this machine: processes of each on loopback, one load for all.

pub(crate) mod disk;
mod table;

use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;
use xtask::flags::Flags;
use xtask::process::run_shown;
use xtask::programs::{self, LAB, STELE};
use xtask::servers::{self, Running, with_servers};
use xtask::workspace::Workspace;

/// Starts the servers that the command line names, measures them in turn and stops them. With `--table`
/// they run all loads of [`table`]; otherwise what is not for this command is for `lab wire`.
pub(crate) fn run(workspace: &Workspace, mut flags: Flags) -> Result<()> {
    let servers = servers::Options {
        etcd: flags.value("--etcd")?.map(Into::into),
        redis: flags.value("--redis")?.map(Into::into),
        tikv: match (flags.value("--tikv")?, flags.value("--pd")?) {
            (Some(tikv), Some(pd)) => Some((tikv.into(), pd.into())),
            (None, None) => None,
            _ => bail!(
                "--tikv and --pd must be given together: TiKV's store and its placement driver"
            ),
        },
        nodes: flags.number("--nodes", 3)? as usize,
        regions: flags.number("--regions", 1)? as usize,
        ..servers::Options::default()
    };
    let (is_release, is_table) = (!flags.switch("--dev"), flags.switch("--table"));
    let stele = programs::build(workspace, STELE, is_release)?;
    let lab = programs::build(workspace, LAB, is_release)?;
    let work = tempfile::tempdir_in(&workspace.target)?;
    let writers = servers.nodes;
    let show_disk = || -> Result<()> {
        let place = work.path();
        let bytes_per_second = disk::bytes_per_second(place, writers)?;
        println!(r#"{{"disk_bytes_per_second": {bytes_per_second:.0}, "writers": {writers}}}"#);
        Ok(())
    };
    show_disk()?;
    if is_table {
        table::run((&stele, &lab), work.path(), servers, flags)?;
        return show_disk();
    }
    let words = flags.rest();
    with_servers(&stele, work.path(), &servers, |running| {
        run_shown(load(&lab, running).args(&words))
    })?;
    show_disk()
}

pub(crate) fn load(lab: &Path, servers: &Running) -> Command {
    let mut load = servers.load(lab, &["wire"]);
    load.args(["--pids", &servers.processes]);
    load
}
