//! Backups of unchanged data: what a second one, and one with a new base, transfer beside the first.

use super::beside::{Beside, Done};
use super::{Bench, LIMIT, Tree, tree};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;
use std::thread;
use std::time::Duration;

/// Greatest share of the first backup's bytes that the second may transfer.
const SHARE_WANTED: f64 = 0.01;
/// Shortest age at which a backup can replace its base.
const BASE_EVERY: Duration = Duration::from_secs(1);

/// What a backup prints at its end. It prints sizes with one decimal.
#[derive(Debug, PartialEq)]
pub(super) struct Printed {
    /// Bytes of pairs and writes from the nodes.
    pub read_bytes: f64,
    /// Bytes of objects to the place.
    pub sent_bytes: f64,
}

/// What a backup has transferred.
#[derive(Debug)]
struct Transfer {
    printed: Printed,
    done: Done,
    /// Growth of the place.
    repository_bytes: u64,
    objects: usize,
    /// New chunks.
    chunks: usize,
}

impl Transfer {
    /// Returns the bytes that it read from the nodes and sent to the place.
    fn bytes(&self) -> f64 {
        self.printed.read_bytes + self.printed.sent_bytes
    }

    fn to_json(&self, name: &str, first: Option<&Self>) -> Value {
        let first = first.unwrap_or(self);
        json!({
            "backup": name,
            "read_bytes": self.printed.read_bytes,
            "sent_bytes": self.printed.sent_bytes,
            "repository_bytes": self.repository_bytes,
            "objects": self.objects,
            "chunks": self.chunks,
            "file_read_bytes": self.done.file_read_bytes,
            "seconds": self.done.seconds,
            "processor_seconds": self.done.processor_seconds,
            "share_of_first": self.bytes() / first.bytes(),
            "repository_share_of_first":
                self.repository_bytes as f64 / first.repository_bytes as f64,
            "has_new_base": self.done.output.contains(super::BASE_COMPLETE),
            "printed": self.done.output.lines().collect::<Vec<_>>(),
        })
    }
}

/// Backs the cluster up three times into one place, of which the third is due for a new base.
pub(super) fn measure(bench: &Bench) -> Result<Value> {
    let place = bench.work.join("again");
    let first = transfer(bench, &place, &[])?;
    println!("{}", first.to_json("first", None));
    let second = transfer(bench, &place, &[])?;
    println!("{}", second.to_json("second", Some(&first)));
    thread::sleep(2 * BASE_EVERY);
    let every = format!("{}s", BASE_EVERY.as_secs());
    let based = transfer(bench, &place, &["--base-every", &every])?;
    println!("{}", based.to_json("second with a new base", Some(&first)));
    let share = second.bytes() / first.bytes();
    Ok(json!({
        "share": share,
        "share_wanted": SHARE_WANTED,
        "is_met": share <= SHARE_WANTED,
        "share_with_new_base": based.bytes() / first.bytes(),
        "sent_share_with_new_base": based.printed.sent_bytes / first.printed.sent_bytes,
    }))
}

fn transfer(bench: &Bench, place: &Path, words: &[&str]) -> Result<Transfer> {
    let before = tree(place)?;
    let mut backup = bench.backup(place);
    let beside = Beside::start(backup.args(words), &bench.work.join("output"))?;
    let done = beside.end(LIMIT).context("a backup")?;
    let after = tree(place)?;
    let chunks = |tree: &Tree| {
        tree.files.iter().filter(|file| file.starts_with(place.join("chunks"))).count()
    };
    Ok(Transfer {
        printed: printed(&done.output)?,
        done,
        repository_bytes: after.bytes.saturating_sub(before.bytes),
        objects: after.files.len().saturating_sub(before.files.len()),
        chunks: chunks(&after).saturating_sub(chunks(&before)),
    })
}

/// Reads the last line of a backup, as `moment 3 can be restored; run 1, 97.6 MiB read, 812 B sent`.
pub(super) fn printed(output: &str) -> Result<Printed> {
    let sizes = || {
        let (_, sizes) = output.lines().find_map(|line| line.split_once("; run "))?;
        let mut sizes = sizes.split(", ").skip(1);
        let read_bytes = bytes(sizes.next()?.strip_suffix(" read")?)?;
        let sent_bytes = bytes(sizes.next()?.strip_suffix(" sent")?)?;
        Some(Printed { read_bytes, sent_bytes })
    };
    sizes().with_context(|| format!("no sizes of a backup in `{output}`"))
}

fn bytes(text: &str) -> Option<f64> {
    let (number, unit) = text.split_once(' ')?;
    let factor = match unit {
        "B" => 1u64,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * factor as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::size::format_bytes;

    #[test]
    fn the_last_line_of_a_backup_is_read() {
        let output =
            "stele: run 1 begins\nmoment 3 can be restored; run 1, 1.5 KiB read, 812 B sent\n";
        let read = Printed { read_bytes: 1536.0, sent_bytes: 812.0 };
        assert_eq!(printed(output).unwrap(), read);
        let stopped = "stopped before the first moment; run 1, 0 B read, 2.0 GiB sent\n";
        assert_eq!(printed(stopped).unwrap().sent_bytes, f64::from(1u32 << 31));
        for output in ["", "moment 3; run 1", "moment 3; run 1, x read, 1 B sent"] {
            printed(output).unwrap_err();
        }
    }

    #[test]
    fn all_sizes_that_a_program_prints_are_read() {
        for size in [0, 1, 1023, 1 << 10, 5 << 20, 7 << 30, 3 << 40] {
            assert_eq!(bytes(&format_bytes(size)), Some(size as f64), "{}", format_bytes(size));
        }
        assert_eq!(bytes("5 apples"), None);
    }

    #[test]
    fn shares_are_those_of_what_was_read_and_sent() {
        let transfer = |read_bytes, sent_bytes, output: &str| Transfer {
            printed: Printed { read_bytes, sent_bytes },
            done: Done {
                output: output.to_owned(),
                seconds: 1.0,
                processor_seconds: 0.5,
                file_read_bytes: 7,
            },
            repository_bytes: sent_bytes as u64,
            objects: 2,
            chunks: 1,
        };
        let first = transfer(600.0, 400.0, "stele: base 0 is complete: 1 parts\nx\n");
        let line = first.to_json("first", None);
        assert_eq!((&line["share_of_first"], &line["has_new_base"]), (&json!(1.0), &json!(true)));
        let line = transfer(0.0, 10.0, "x\n").to_json("second", Some(&first));
        assert_eq!((&line["share_of_first"], &line["has_new_base"]), (&json!(0.01), &json!(false)));
        assert_eq!(line["repository_share_of_first"], 0.025);
    }
}
