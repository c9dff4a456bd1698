//! TiKV on loopback: one placement driver, which is not on the path of a put, and as many stores as
//! there are nodes.

use super::{Group, Options, free_address};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Starts TiKV. Clients connect to the address of the placement driver.
pub(super) fn start(tikv: &Path, pd: &Path, work: &Path, options: &Options) -> Result<Group> {
    let mut group = Group::new("tikv", options, 1)?;
    let client = group.addresses.first().context("no address")?.clone();
    group.start(work, &driver(pd, &client, &free_address()?, &work.join("pd")))?;
    group.wait_for(&client)?;
    for number in 0..options.nodes {
        let (address, status) = (free_address()?, free_address()?);
        let dir = work.join(format!("tikv-{number}"));
        group.start(work, &store(tikv, &client, &address, &status, &dir))?;
        group.wait_for(&address)?;
    }
    Ok(group)
}

/// Builds the command of the driver: `client` serves stores and clients, `peer` other drivers.
fn driver(pd: &Path, client: &str, peer: &str, dir: &Path) -> Command {
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    let mut command = Command::new(pd);
    command.args(["--name", "pd", "--data-dir"]).arg(dir);
    command.args(["--client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--peer-urls", &peer, "--advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("pd={peer}"), "--log-level", "error"]);
    command
}

fn store(tikv: &Path, driver: &str, address: &str, status: &str, dir: &Path) -> Command {
    let mut command = Command::new(tikv);
    command.args(["--pd-endpoints", driver, "--addr", address, "--advertise-addr", address]);
    command.args(["--status-addr", status, "--data-dir"]).arg(dir);
    command.args(["--log-level", "error"]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> String {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn stores_and_driver_have_the_addresses_of_each_other() {
        let pd = driver(Path::new("pd-server"), "127.0.0.1:1", "127.0.0.1:2", Path::new("/d"));
        let words_of_pd = words(&pd);
        assert!(
            words_of_pd
                .starts_with("pd-server --name pd --data-dir /d --client-urls http://127.0.0.1:1")
        );
        assert!(words_of_pd.contains("--initial-cluster pd=http://127.0.0.1:2"), "{words_of_pd}");
        let store = store(
            Path::new("tikv-server"),
            "127.0.0.1:1",
            "127.0.0.1:3",
            "127.0.0.1:4",
            Path::new("/t"),
        );
        let words_of_store = words(&store);
        let begins = "tikv-server --pd-endpoints 127.0.0.1:1 --addr 127.0.0.1:3 --advertise-addr 127.0.0.1:3 \
                      --status-addr 127.0.0.1:4";
        assert!(words_of_store.starts_with(begins), "{words_of_store}");
    }
}
