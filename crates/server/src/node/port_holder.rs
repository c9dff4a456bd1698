//! Process that listens on a port, as far as `/proc` shows it.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;

/// Number of the state LISTEN in the tables of `/proc/net`.
const LISTEN: &str = "0A";

/// A process that listens on a port.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub process: u32,
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.process, self.name)
    }
}

/// Returns the process that listens on a port of this machine. `None` if this process may not see it,
/// or if it has ended.
pub(super) fn holder(port: u16) -> Option<Holder> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| fs::read_to_string(path).ok());
    let sockets: BTreeSet<String> =
        tables.iter().flatten().flat_map(|table| listening(table, port)).collect();
    if sockets.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find_map(|process| {
        let files = fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten();
        let is_socket =
            |link: std::path::PathBuf| link.to_str().is_some_and(|link| sockets.contains(link));
        files
            .filter_map(|file| fs::read_link(file.path()).ok())
            .find(|link| is_socket(link.clone()))?;
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        Some(Holder { process, name: name.trim().to_owned() })
    })
}

/// Returns the sockets of a table that listen on the port, as the links in `/proc/PID/fd` name them.
fn listening(table: &str, port: u16) -> impl Iterator<Item = String> {
    table.lines().skip(1).filter_map(move |line| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let (_, of) = local.rsplit_once(':')?;
        let is_wanted = u16::from_str_radix(of, 16) == Ok(port) && state == LISTEN;
        let inode = words.nth(5)?;
        is_wanted.then(|| format!("socket:[{inode}]"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_the_sockets_that_listen() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
           0: 0100007F:094B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 77 1 0\n\
           1: 0100007F:094B 0100007F:A000 01 00000000:00000000 00:00000000 00000000  1000        0 78 1 0\n\
           2: 0100007F:094C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 79 1 0\n\
           nonsense\n";
        assert_eq!(listening(table, 2379).collect::<Vec<_>>(), ["socket:[77]"]);
        assert_eq!(listening(table, 2381).count(), 0);
    }
}
