//! Counted entries of functions: the file that the preloaded library writes, and the names and places of
//! the addresses in it.

use super::layout::{
    ADDRESS_BITS, BASE, FILE_BYTES, LOST, MAGIC, NAME_BYTES, NAMES_AT, SLOT_BYTES, SLOTS_AT,
    THREADS, THREADS_MAX,
};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// Entries by the name of the thread and the address in the program's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counters(pub BTreeMap<(String, u64), u64>);

/// Mean entries of one operation, by thread and address.
pub(super) type Each = BTreeMap<(String, u64), f64>;

impl Counters {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        ensure!(bytes.len() == FILE_BYTES, "{} bytes of counters", bytes.len());
        ensure!(number(bytes, 0) == MAGIC, "the counters begin with {:x}", number(bytes, 0));
        let (base, lost) = (number(bytes, 8 * BASE), number(bytes, 8 * LOST));
        ensure!(base > 0, "the library did not find the program in its own address space");
        let threads = number(bytes, 8 * THREADS);
        ensure!(threads <= THREADS_MAX as u64, "{threads} threads; {THREADS_MAX} have a name");
        ensure!(lost == 0, "{lost} entries found no slot in the table");
        let mut counters = BTreeMap::new();
        for slot in bytes[SLOTS_AT..].chunks_exact(SLOT_BYTES) {
            let (key, count) = (number(slot, 0), number(slot, 8));
            if key == 0 {
                continue;
            }
            let thread = (key >> ADDRESS_BITS) as usize - 1;
            let address = key & ((1 << ADDRESS_BITS) - 1);
            // The address after the call: one byte before it lies in the function in any case.
            let address = (address - 1).wrapping_sub(base);
            *counters.entry((thread_name(bytes, thread), address)).or_default() += count;
        }
        Ok(Self(counters))
    }

    pub(super) fn read(path: &Path) -> Result<Self> {
        let read = || Self::parse(&std::fs::read(path)?);
        read().with_context(|| format!("reading {}", path.display()))
    }

    /// Returns the entries since an earlier state of the same file.
    pub(super) fn since(mut self, earlier: &Self) -> Self {
        for (key, count) in &mut self.0 {
            *count -= earlier.0.get(key).copied().unwrap_or(0);
        }
        self.0.retain(|_, count| *count > 0);
        self
    }

    pub(super) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the mean entries of one operation, from these counters of a run with many operations and those of a
    /// run with few: what both runs do once, such as to connect, is in neither.
    pub(super) fn each(&self, few: &Self, operations: u64) -> Each {
        let keys: BTreeSet<_> = self.0.keys().chain(few.0.keys()).collect();
        let count = |of: &Self, key| of.0.get(key).copied().unwrap_or(0) as f64;
        let mean = |key| (count(self, key) - count(few, key)) / operations as f64;
        keys.into_iter().map(|key| (key.clone(), mean(key))).collect()
    }

    /// Subtracts a share of these counters from mean entries; no mean becomes less than 0.
    pub(super) fn taken_from(&self, mut each: Each, share: f64) -> Each {
        for (key, count) in &self.0 {
            if let Some(mean) = each.get_mut(key) {
                *mean -= *count as f64 * share;
            }
        }
        each.retain(|_, mean| *mean > 0.0);
        each
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

/// Returns the name of a thread without the number at its end.
fn thread_name(bytes: &[u8], thread: usize) -> String {
    let name = &bytes[NAMES_AT + thread * NAME_BYTES..][..NAME_BYTES];
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    name.trim_end_matches(|c: char| c.is_ascii_digit() || "-# ".contains(c)).to_owned()
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Symbol {
    /// Name with the path and the types.
    pub name: String,
    /// File that the compiler recorded, and the line.
    pub file: String,
    pub line: usize,
}

pub(super) fn resolve(binary: &Path, addresses: &BTreeSet<u64>) -> Result<BTreeMap<u64, Symbol>> {
    let mut input = tempfile::tempfile().context("creating a file for addresses")?;
    for address in addresses {
        writeln!(input, "{address:#x}")?;
    }
    input.seek(SeekFrom::Start(0))?;
    let mut command = Command::new("addr2line");
    command.args(["--functions", "--demangle", "--exe"]).arg(binary).stdin(Stdio::from(input));
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    let symbols = symbols(&printed);
    ensure!(symbols.len() == addresses.len(), "addr2line named {} addresses", symbols.len());
    Ok(addresses.iter().copied().zip(symbols).collect())
}

/// Reads what addr2line prints: for each address a line with the name and one with the place.
fn symbols(printed: &str) -> Vec<Symbol> {
    let lines: Vec<&str> = printed.lines().collect();
    let symbol = |pair: &[&str]| {
        let place = pair.get(1).copied().unwrap_or_default();
        let (file, line) = place.rsplit_once(':').unwrap_or((place, ""));
        // A remark in parentheses may follow the line's number.
        let line = line.split(' ').next().and_then(|line| line.parse().ok()).unwrap_or(0);
        Symbol { name: pair[0].to_owned(), file: file.to_owned(), line }
    };
    lines.chunks(2).map(symbol).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::house::layout::SLOTS;

    fn file(slots: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; FILE_BYTES];
        let mut put = |at: usize, number: u64| {
            bytes[at..at + 8].copy_from_slice(&number.to_ne_bytes());
        };
        put(0, MAGIC);
        put(8 * BASE, 0x1000);
        put(NAMES_AT, u64::from_ne_bytes(*b"store-1\0"));
        put(NAMES_AT + NAME_BYTES, u64::from_ne_bytes(*b"store-2\0"));
        put(NAMES_AT + (THREADS_MAX - 1) * NAME_BYTES, u64::from_ne_bytes(*b"net\0\0\0\0\0"));
        for (place, (thread, address, count)) in slots.iter().enumerate() {
            let at = SLOTS_AT + (SLOTS - 1 - place) * SLOT_BYTES;
            put(at, thread << ADDRESS_BITS | address);
            put(at + 8, *count);
        }
        bytes
    }

    fn at(thread: &str, address: u64) -> (String, u64) {
        (thread.to_owned(), address)
    }

    #[test]
    fn threads_of_one_name_are_counted_together() {
        let last = THREADS_MAX as u64;
        let bytes = file(&[(1, 0x1005, 3), (2, 0x1005, 4), (last, 0x1005, 5), (1, 0x2001, 6)]);
        let counters = Counters::parse(&bytes).unwrap();
        let expected = [(at("net", 4), 5), (at("store", 4), 7), (at("store", 0x1000), 6)];
        assert_eq!(counters.0, expected.into());
        assert_eq!(counters.total(), 18);
    }

    #[test]
    fn counters_that_lost_entries_or_are_cut_are_refused() {
        let mut bytes = file(&[]);
        Counters::parse(&bytes).unwrap();
        Counters::parse(&bytes[1..]).unwrap_err();
        bytes[8 * LOST] = 2;
        let error = Counters::parse(&bytes).unwrap_err().to_string();
        assert!(error.starts_with("2 entries found no slot"), "{error}");
        bytes[0] ^= 1;
        Counters::parse(&bytes).unwrap_err();
    }

    #[test]
    fn what_both_runs_do_once_and_background_work_are_no_part_of_an_operation() {
        let of = |counts: &[(u64, u64)]| {
            Counters(counts.iter().map(|(address, count)| (at("net", *address), *count)).collect())
        };
        let few = of(&[(1, 100), (2, 20), (3, 7)]).since(&of(&[(1, 50), (3, 7)]));
        let many = of(&[(1, 230), (2, 100)]).since(&of(&[(1, 100), (2, 20)]));
        let each = many.each(&few, 20);
        let expected = [(at("net", 1), 4.0), (at("net", 2), 3.0)];
        assert_eq!(each, expected.into());
        let idle = of(&[(1, 5), (2, 40), (9, 7)]);
        assert_eq!(idle.taken_from(each, 0.1), [(at("net", 1), 3.5)].into());
    }

    #[test]
    fn names_and_places_are_read_in_turn() {
        let printed = "stele_log::append::f\n/a/b.rs:12\n__rustc::__rust_alloc\n??:?\n\
                       <T as U>::g\nb.rs:7 (discriminator 2)\n";
        let symbol = |name: &str, file: &str, line| Symbol {
            name: name.to_owned(),
            file: file.to_owned(),
            line,
        };
        let expected = [
            symbol("stele_log::append::f", "/a/b.rs", 12),
            symbol("__rustc::__rust_alloc", "??", 0),
            symbol("<T as U>::g", "b.rs", 7),
        ];
        assert_eq!(symbols(printed), expected);
    }
}
