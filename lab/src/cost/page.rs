//! The page: a row for each size of each line, the newest line first.

use super::line::{Line, Size, Stages, total};
use std::fmt::Write;

/// Lines on the page, at most.
const LINES_MAX: usize = 50;
/// Order of the stages. Stages of older lines follow them.
const STAGES: [&str; 4] = ["network", "store", "maintenance", "other"];

pub(super) fn page(lines: &[Line], file: &str) -> String {
    let newest = &lines[lines.len().saturating_sub(LINES_MAX)..];
    let mut text = format!(
        "<!-- Made by `cargo lab cost --note` from {file}; CI checks that it agrees with that file. -->\n\
         # What a put costs\n\n\
         Microseconds of processor time for each put on each replica, the mean of three nodes on one \
         machine under updates of random records, as the kernel counts them for threads (`cargo lab \
         cost`). *network*: the async runtime, with both protocols, requests and the transport between \
         nodes; *store*: consensus, the log and apply; *maintenance*: flushes, merges and \
         garbage collection; *other*: the rest of the process. The leader and one follower are shown \
         separately if one node led all the time. *bytes a byte*: bytes that a node wrote to its files for each \
         byte of keys and values, by cause; less than a hundredth is left out. Rows of different machines, file \
         systems or clients cannot be compared.\n\n"
    );
    match newest {
        [] => text.push_str("No lines yet.\n"),
        newest => text.push_str(&table(newest)),
    }
    text
}

/// Formats the lines as a table, the last one first.
pub(super) fn table(lines: &[Line]) -> String {
    let stages = stages(lines);
    let mut text = String::from("| commit | date | machine | build | clients | value | puts/s |");
    let after = ["µs a put", "of it system", "leader", "follower"];
    for name in stages.iter().copied().chain(after) {
        let _ = write!(text, " {name} |");
    }
    text.push_str(" bytes a byte |\n|---|---|---|---|--:|--:|--:|");
    text.push_str(&"--:|".repeat(stages.len() + after.len()));
    text.push_str("---|");
    text.push('\n');
    for line in lines.iter().rev() {
        for size in &line.sizes {
            row(&mut text, line, size, &stages);
        }
    }
    text
}

fn row(text: &mut String, line: &Line, size: &Size, stages: &[&str]) {
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "| {} | {} | {}, {} cores, {} | {} | {} | {} | {:.0} |",
        line.commit,
        line.date,
        line.machine.processor,
        line.machine.cores,
        line.machine.file_system,
        line.configuration.build,
        line.configuration.clients,
        bytes(size.value_bytes),
        size.puts_per_s,
    );
    for stage in stages {
        let us = size.replica.get(*stage).map(|us| us.all());
        let _ = write!(text, " {} |", cell(us));
    }
    let system = size.replica.values().map(|us| us.system).sum();
    let whole = |stages: &Option<Stages>| stages.as_ref().map(total);
    let rest =
        [Some(total(&size.replica)), Some(system), whole(&size.leader), whole(&size.follower)];
    for us in rest {
        let _ = write!(text, " {} |", cell(us));
    }
    let _ = writeln!(text, " {} |", written(size));
}

/// Formats the total and its causes, the largest first.
fn written(size: &Size) -> String {
    if size.written.is_empty() {
        return "-".to_owned();
    }
    let mut causes: Vec<_> = size.written.iter().filter(|(_, bytes)| **bytes >= 0.01).collect();
    causes.sort_by(|a, b| b.1.total_cmp(a.1));
    let causes: Vec<String> =
        causes.into_iter().map(|(cause, bytes)| format!("{cause} {bytes:.2}")).collect();
    format!("{:.2}: {}", size.written.values().sum::<f64>(), causes.join(", "))
}

fn cell(us: Option<f64>) -> String {
    us.map_or("-".to_owned(), |us| format!("{us:.1}"))
}

fn bytes(bytes: u64) -> String {
    if bytes.is_multiple_of(1 << 10) {
        format!("{} KiB", bytes >> 10)
    } else {
        format!("{bytes} B")
    }
}

fn stages(lines: &[Line]) -> Vec<&str> {
    let mut found: Vec<&str> = STAGES.to_vec();
    let sizes = lines.iter().flat_map(|line| &line.sizes);
    for name in sizes.flat_map(|size| size.replica.keys()) {
        if !found.contains(&name.as_str()) {
            found.push(name);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::line::sample;
    use super::*;

    #[test]
    fn a_page_without_lines_is_marked() {
        let page = page(&[], "f.jsonl");
        assert!(page.starts_with("<!-- Made by `cargo lab cost --note` from f.jsonl;"), "{page}");
        assert!(page.ends_with("\n\nNo lines yet.\n"), "{page}");
    }

    #[test]
    fn the_newest_line_stands_first_and_its_stages_add_up() {
        let page = page(&[sample("old"), sample("new")], "f");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            rows[0],
            "| commit | date | machine | build | clients | value | puts/s | network | store | \
             maintenance | other | µs a put | of it system | leader | follower | bytes a byte |"
        );
        assert_eq!(
            rows[2],
            "| new | 2026-01-02 | P, 2 cores, ext4 | release | 64 | 1 KiB | 500 | 12.0 | 8.0 | 1.0 | - | 21.0 | \
             6.5 | 42.0 | 10.5 | 1.05: log 1.02, sidecar 0.03 |"
        );
        assert!(rows[3].starts_with("| new |") && rows[3].contains("| 16 KiB |"), "{}", rows[3]);
        assert!(rows[4].starts_with("| old |") && rows.len() == 6, "{page}");
        assert!(rows.iter().all(|row| row.matches('|').count() == 17), "{page}");
    }

    #[test]
    fn only_the_newest_lines_are_shown() {
        let lines: Vec<Line> = (0..60).map(|number| sample(&format!("c{number}"))).collect();
        let page = page(&lines, "f");
        assert!(page.contains("| c59 |") && page.contains("| c10 |") && !page.contains("| c9 |"));
    }

    #[test]
    fn a_former_stage_keeps_its_column() {
        let mut line = sample("c");
        let us = line.sizes[0].replica["store"];
        line.sizes[0].replica.insert("apply".to_owned(), us);
        let table = table(&[line]);
        assert!(table.contains(" other | apply | µs a put |"), "{table}");
        assert!(table.contains(" - | 8.0 | 29.0 |"), "{table}");
    }
}
