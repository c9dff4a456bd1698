//! Text that must not be in the repository: unfinished work, paths of one machine, hosts that only
//! one network knows, words about anything but the project. This file spells the words in two
//! halves, so that it passes too.

use super::Finding;

const UNFINISHED: &str = "unfinished";
const MACHINE: &str = "machine paths";
const HOSTS: &str = "unknown hosts";
const WORDS: &str = "foreign words";

const MARKS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!"),
    concat!("unimple", "mented!"),
    concat!("#[ign", "ore"),
];

const FOLDERS: [&str; 6] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/tm", "p/"),
    concat!("/var/", "tmp/"),
];

/// Words about the origin of a text instead of the project; any case, whole words.
const FOREIGN: [&str; 5] = [
    concat!("age", "nt"),
    concat!("age", "nts"),
    concat!("work", "place"),
    concat!("suba", "gent"),
    concat!("ll", "m"),
];

/// Hosts that a link may name.
const KNOWN_HOSTS: [&str; 16] = [
    "127.0.0.1",
    "arxiv.org",
    "crates.io",
    "deb.debian.org",
    "doc.rust-lang.org",
    "docs.rs",
    "doi.org",
    "example.com",
    "github.com",
    "keepachangelog.com",
    "localhost",
    "rocksdb.org",
    "semver.org",
    "sh.rustup.rs",
    "www.apache.org",
    "www.usenix.org",
];

pub(super) fn check(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let mut found = |rule, detail: String| {
            findings.push(Finding::at(rule, path, number + 1, detail));
        };
        for mark in MARKS.iter().filter(|mark| has_word(line, mark)) {
            found(UNFINISHED, format!("`{mark}`: finish it or leave it out"));
        }
        for folder in FOLDERS.iter().filter(|folder| has_path(line, folder)) {
            found(MACHINE, format!("`{folder}` is a path of one machine"));
        }
        for host in hosts(line).filter(|host| !host.is_empty() && !KNOWN_HOSTS.contains(host)) {
            found(HOSTS, format!("`{host}` is not among the known hosts"));
        }
        let lower = line.to_lowercase();
        for word in FOREIGN.iter().filter(|word| has_word(&lower, word)) {
            found(WORDS, format!("`{word}`: write about the project only"));
        }
    }
    findings
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back().is_some_and(is_word);
        let after = line[at + word.len()..].chars().next().is_some_and(is_word);
        // A mark that ends in punctuation may have any character after it.
        !before && (!after || !word.ends_with(is_word))
    })
}

/// Returns whether the line contains the absolute path: its slash must not continue a longer path.
fn has_path(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| is_word(c) || ".-/}){>*~".contains(c))
    })
}

fn hosts(line: &str) -> impl Iterator<Item = &str> {
    let starts = ["https://", "http://"].into_iter();
    starts
        .flat_map(move |start| line.match_indices(start).map(move |(at, _)| at + start.len()))
        .map(move |at| {
            let rest = &line[at..];
            let end = rest.find(|c: char| !(c.is_alphanumeric() || ".-".contains(c)));
            &rest[..end.unwrap_or(rest.len())]
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(line: &str) -> Vec<&'static str> {
        check("x.rs", line).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn unfinished_work_is_found() {
        for mark in MARKS {
            assert_eq!(rules(&format!("    // {mark}: later")), [UNFINISHED], "{mark}");
        }
        assert_eq!(rules("#[should_panic]"), [""; 0]);
        assert_eq!(rules(concat!("fn to", "do() {} // \u{40}TO", "DOS")), [""; 0]);
    }

    #[test]
    fn machine_paths_are_found() {
        for folder in FOLDERS {
            assert_eq!(rules(&format!("cd {folder}x")), [MACHINE], "{folder}");
            assert_eq!(rules(&format!("dir = \"{folder}x\"")), [MACHINE], "{folder}");
            assert_eq!(rules(&format!("target{folder}x ..{folder}x")), [""; 0], "{folder}");
        }
    }

    #[test]
    fn unknown_hosts_are_found() {
        assert_eq!(rules(concat!("see https:/", "/registry.internal:8080/x")), [HOSTS]);
        assert_eq!(rules("see <https://doi.org/10.1> and http://localhost:80/"), [""; 0]);
    }

    #[test]
    fn foreign_words_are_found() {
        for word in FOREIGN {
            assert_eq!(rules(&format!("the {} wrote", word.to_uppercase())), [WORDS], "{word}");
            assert_eq!(rules(&format!("{word}x")), [""; 0], "{word}");
        }
    }
}
