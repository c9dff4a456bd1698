//! Page of the memory of filters and fences: the newest run of `bench index-memory`.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const LINES: &str = "lab/results/index-memory.jsonl";
const PAGE: &str = "docs/index-memory.md";

/// Columns: the name of a result, and the head of its column.
const COLUMNS: [(&str, &str); 10] = [
    ("index_mb", "filters, fences, footers MB"),
    ("index_bytes_per_key", "bytes a key"),
    ("after_open_mb", "resident after open MB"),
    ("after_gets_mb", "after gets MB"),
    ("counted_by_store_mb", "counted by the store MB"),
    ("open_ms", "open ms"),
    ("gets_per_s", "gets/s"),
    ("cold_reads_per_get", "cold reads a get"),
    ("absent_gets_per_s", "absent gets/s"),
    ("cold_reads_per_absent_get", "cold reads an absent get"),
];

pub(super) fn run(root: &Path, writes: bool) -> Result<()> {
    let text = fs::read_to_string(root.join(LINES)).context(LINES)?;
    let lines = text.lines().map(|line| serde_json::from_str(line).context(LINES));
    let page = page(&lines.collect::<Result<Vec<Value>>>()?);
    if writes {
        return fs::write(root.join(PAGE), page).context(PAGE);
    }
    let now = fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    ensure!(now == page, "{PAGE} differs from {LINES}: run `{}`", super::BLESS);
    Ok(())
}

fn page(lines: &[Value]) -> String {
    let origin = lines.last().map_or(&Value::Null, |line| &line["origin"]);
    let newest = || lines.iter().filter(|line| line["origin"] == *origin);
    let machine = &origin["machine"];
    let mut text = format!(
        "<!-- Made by `{}` from {LINES}; CI checks that it agrees with them. -->\n\
         # Memory of filters and fences\n\n\
         `cargo run --release -p stele-lab -- index-memory --keys 1000000,5000000,10000000 --save`, one store in one process, keys of 16 \
         bytes and values of 64 bytes, which the index keeps inline. *pinned*: no limit for filters and \
         fences; *limited*: `index_memory_bytes_max` of 1 MiB. Blocks and values have caches of 16 MiB each, \
         a memtable has 16 MiB. A new process opens each store after the page cache has dropped its \
         files, gets 50,000 random keys, and as many absent ones. *resident*: memory of the process \
         beyond what it has before it opens the store. Commit {}, {}, {} cores.\n\n| keys | way |",
        super::BLESS,
        text_of(&origin["commit"]),
        text_of(&machine["processor"]),
        machine["cores"],
    );
    COLUMNS.iter().for_each(|(_, head)| _ = write!(text, " {head} |"));
    text.push_str("\n|--:|---|");
    text.push_str(&"--:|".repeat(COLUMNS.len()));
    text.push('\n');
    for line in newest().filter(|line| line["settings"]["keys"].is_u64()) {
        let settings = &line["settings"];
        let _ =
            write!(text, "| {} | {} |", settings["keys"], text_of(&settings["filters_and_fences"]));
        COLUMNS.iter().for_each(|(name, _)| _ = write!(text, " {} |", line["result"][name]));
        text.push('\n');
    }
    let limited = newest().filter(|line| line["settings"]["filters_and_fences"] == "limited");
    let within: Vec<f64> =
        limited.filter_map(|line| line["result"]["after_gets_mb"].as_f64()).collect();
    let (least, most) =
        within.iter().fold((f64::MAX, 0.0_f64), |(low, high), mb| (low.min(*mb), high.max(*mb)));
    let _ = write!(
        text,
        "\nWith the limit, resident memory after gets is between {least} and {most} MB over all \
         numbers of keys: a ratio of {:.2}.\n",
        most / least
    );
    text
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_page_shows_the_newest_run_only() {
        let line = |commit: &str, keys: u64, mb: f64| {
            json!({
                "origin": { "commit": commit, "machine": { "processor": "P", "cores": 2 } },
                "settings": { "keys": keys, "filters_and_fences": "limited" },
                "result": { "index_mb": mb, "after_gets_mb": 2.0 * mb },
            })
        };
        let page = page(&[line("a", 7, 1.25), line("b", 8, 2.0), line("b", 9, 3.0)]);
        assert!(page.contains("| 8 | limited | 2.0 | null | null | 4.0 |"), "{page}");
        assert!(!page.contains("1.25") && page.contains("Commit b, P, 2 cores"));
        assert!(page.contains("between 4 and 6 MB") && page.contains("ratio of 1.50"));
    }
}
