//! Calls banned below the edges: time, files, threads, randomness and async runtimes are passed in,
//! so that a simulated disk and clock control all of them.

use super::Finding;
use super::source::Source;
use proc_macro2::{Delimiter, TokenStream, TokenTree};

const RULE: &str = "banned calls";

/// A path of identifiers that must not appear outside the named places.
struct Ban {
    /// Consecutive identifiers joined by `::`.
    path: &'static [&'static str],
    /// Whether the path must start with it; otherwise other identifiers may precede it.
    anchored: bool,
    /// Beginning of the paths of files in which it is banned.
    within: &'static str,
    /// Beginnings of the paths of files in which it is allowed.
    allowed: &'static [&'static str],
    reason: &'static str,
}

const CLI: &str = "crates/cli/";
const SERVER: &str = "crates/server/";
const CLIENT: &str = "crates/client/";
const LOAD: &str = "crates/load/";
const BACKUP: &str = "crates/backup/";
const TLS: &str = "crates/tls/";
const EVENTFD: &str = "crates/eventfd/";
/// Writes generated code; it is no part of the product.
const PROTO_BUILD: &str = "crates/proto/build.rs";
const VFS_REAL: &str = "crates/vfs/src/real/";
const CLOCK: &str = "crates/vfs/src/real/clock.rs";
const FRONT: &str = "crates/engine/src/db/";
const RAFT: &str = "crates/replica/src/peer/raft_group.rs";
const PEER: &str = "crates/replica/src/peer/";
const RAFT_LOG: &str = "crates/replica/src/log/";
/// Conversion of changes of members into the library's form.
const RAFT_DATA: &str = "crates/replica/src/admin/";

const FILES: &str = "files go through the vfs";
const TIME: &str = "time is passed in (`Clock`)";
const CHANCE: &str = "seeds are passed in";
const THREADS: &str = "threads belong to the embedded front";
const ASYNC: &str = "async runtimes are for the edges";
const LIBRARY: &str = "the raft library is reached through `RaftGroup`";
const REPLICA: &str =
    "a replica does not know the store that owns it: what they share is in `context`";

const BANS: [Ban; 20] = [
    ban(&["tokio"], true, &[CLI, SERVER, CLIENT, LOAD, BACKUP], ASYNC),
    ban(&["async_std"], true, &[], ASYNC),
    ban(
        &["std", "fs"],
        true,
        &[VFS_REAL, CLI, SERVER, CLIENT, LOAD, BACKUP, TLS, PROTO_BUILD],
        FILES,
    ),
    ban(
        &["std", "os", "unix", "fs"],
        true,
        &[VFS_REAL, CLI, SERVER, CLIENT, LOAD, BACKUP, TLS],
        FILES,
    ),
    ban(&["rustix"], true, &["crates/vfs/", EVENTFD, CLI, SERVER, CLIENT, LOAD, BACKUP], FILES),
    ban(&["SystemTime"], false, &[CLOCK, CLI, SERVER, CLIENT, LOAD, BACKUP], TIME),
    ban(&["UNIX_EPOCH"], false, &[CLOCK, CLI, SERVER, CLIENT, LOAD, BACKUP], TIME),
    ban(&["Instant", "now"], false, &[CLI, SERVER, CLIENT, LOAD, BACKUP], TIME),
    ban(&["clock_gettime"], false, &[CLOCK, CLI, SERVER, CLIENT, LOAD, BACKUP], TIME),
    ban(&["rand"], true, &[CLI, SERVER, CLIENT, LOAD, BACKUP], CHANCE),
    ban(&["fastrand"], true, &[CLI, SERVER, CLIENT, LOAD, BACKUP], CHANCE),
    ban(&["getrandom"], true, &[CLI, SERVER, CLIENT, LOAD, BACKUP], CHANCE),
    ban(&["RandomState"], false, &[CLI, SERVER, CLIENT, LOAD, BACKUP], CHANCE),
    ban(&["thread", "spawn"], false, &[FRONT, CLI, SERVER, CLIENT, LOAD, BACKUP], THREADS),
    ban(&["thread", "scope"], false, &[FRONT, CLI, SERVER, CLIENT, LOAD, BACKUP], THREADS),
    ban(&["thread", "Builder"], false, &[FRONT, CLI, SERVER, CLIENT, LOAD, BACKUP], THREADS),
    ban(&["thread", "sleep"], false, &[FRONT, CLOCK, CLI, SERVER, CLIENT, LOAD, BACKUP], THREADS),
    ban(&["thread", "park"], false, &[FRONT, CLI, SERVER, CLIENT, LOAD, BACKUP], THREADS),
    ban(&["raft"], true, &[RAFT, RAFT_LOG, RAFT_DATA], LIBRARY),
    Ban { within: PEER, ..ban(&["crate", "store"], true, &[], REPLICA) },
];

const fn ban(
    path: &'static [&'static str],
    anchored: bool,
    allowed: &'static [&'static str],
    reason: &'static str,
) -> Ban {
    Ban { path, anchored, within: "", allowed, reason }
}

/// Finds banned paths in the product part of a product crate's file.
pub(super) fn check(source: &Source) -> Vec<Finding> {
    let Some(tokens) =
        source.tokens().filter(|_| source.is_product_or_testing() && !source.is_test)
    else {
        return Vec::new();
    };
    let mut chains = Vec::new();
    collect(tokens, &[], &mut chains);
    let tests = source.test_lines();
    let tested = |line| tests.iter().any(|&(from, to)| (from..=to).contains(&line));
    let mut findings: Vec<Finding> = Vec::new();
    for Chain { names, line } in chains.iter().filter(|chain| !tested(chain.line)) {
        for ban in &BANS {
            let is_banned = source.path.starts_with(ban.within)
                && !ban.allowed.iter().any(|place| source.path.starts_with(place));
            if is_banned && holds(names, ban) {
                let detail = format!("`{}`: {}", ban.path.join("::"), ban.reason);
                findings.push(Finding::at(RULE, &source.path, *line, detail));
            }
        }
    }
    findings.dedup();
    findings
}

fn holds(names: &[String], ban: &Ban) -> bool {
    let same = |part: &[String]| part.iter().zip(ban.path).all(|(name, banned)| name == banned);
    let mut windows = names.windows(ban.path.len());
    if !ban.anchored {
        return windows.any(same);
    }
    // A single name may be a variable; a crate's name has a path after it.
    names.len() > 1 && windows.next().is_some_and(same)
}

/// Identifiers joined by `::`, with the line of the last.
struct Chain {
    names: Vec<String>,
    line: usize,
}

/// Collects every chain, including those in macros. In `a::{b, c::d}` the chains are `a::b` and
/// `a::c::d`.
fn collect(tokens: TokenStream, prefix: &[String], out: &mut Vec<Chain>) {
    let mut names = prefix.to_vec();
    let mut line = 0;
    let mut colons = 0;
    // Whether the last token of the chain was an identifier: two in a row are two chains.
    let mut complete = !prefix.is_empty();
    for token in tokens {
        match token {
            TokenTree::Ident(ident) => {
                if complete && colons < 2 && names.len() > prefix.len() {
                    flush(&mut names, prefix, line, out);
                }
                names.push(ident.to_string());
                line = ident.span().start().line;
                (colons, complete) = (0, true);
            }
            TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
            TokenTree::Group(group) => {
                let joined = colons >= 2 && group.delimiter() == Delimiter::Brace;
                let inner = if joined { names.clone() } else { Vec::new() };
                flush(&mut names, prefix, line, out);
                collect(group.stream(), &inner, out);
                colons = 0;
            }
            _ => {
                flush(&mut names, prefix, line, out);
                colons = 0;
            }
        }
    }
    flush(&mut names, prefix, line, out);
}

fn flush(names: &mut Vec<String>, prefix: &[String], line: usize, out: &mut Vec<Chain>) {
    if names.len() > prefix.len() {
        out.push(Chain { names: names.clone(), line });
    }
    names.truncate(0);
    names.extend_from_slice(prefix);
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&sample(path, text))
            .into_iter()
            .map(|f| format!("{} {}", f.place, f.detail))
            .collect()
    }

    fn fires(text: &str) -> bool {
        !found("crates/log/src/x.rs", text).is_empty()
    }

    #[test]
    fn each_banned_call_fires() {
        for text in [
            "use tokio::sync::Mutex;",
            "fn f() { std::fs::read(p); }",
            "use std::{fs, io};",
            "use std::{io, fs::File};",
            "use std::{os::{unix::fs::FileExt}};",
            "use rustix::fs::fsync;",
            "fn f() -> SystemTime { g() }",
            "fn f() { std::time::Instant::now(); }",
            "fn f() { println!(\"{:?}\", Instant::now()); }",
            "use rand::Rng;",
            "fn f() { fastrand::u64(..) }",
            "fn f() { let x: std::collections::hash_map::RandomState; }",
            "fn f() { std::thread::spawn(g); }",
            "use std::thread; fn f() { thread::scope(|s| s.spawn(g)); }",
            "use std::thread::{self, Builder};",
            "fn f() { std::thread::sleep(d); }",
            "use raft::eraftpb::Entry;",
            "fn f(node: &raft::RawNode<S>) {}",
        ] {
            assert!(fires(text), "{text}");
        }
    }

    #[test]
    fn lookalikes_pass() {
        for text in [
            "use std::io; mod fs {} use crate::fs::File;",
            "fn f(i: Instant) { i.now() }",
            "fn spawn() { spawn(); self.thread.spawn; }",
            "fn f(raft: RaftMessage) { raft.kind; Body::Raft(raft) }",
            "fn f(rand: u64) { let std = rand; x(std, fs) }",
            "// std::fs::read\nfn f() {}",
            "#[cfg(test)] mod tests { use std::fs; fn f() { Instant::now(); } }",
        ] {
            assert!(!fires(text), "{text}");
        }
    }

    #[test]
    fn a_finding_names_file_line_and_reason() {
        let text = "fn f() {}\nfn g() {\n    std::fs::read(p);\n}\n";
        let all = found("crates/gc/src/pick.rs", text);
        assert_eq!(all, ["crates/gc/src/pick.rs:3 `std::fs`: files go through the vfs"]);
    }

    #[test]
    fn the_places_that_own_a_resource_may_use_it() {
        let files = "fn f() { std::fs::read(p); }";
        let threads = "fn f() { std::thread::spawn(g); }";
        let clock = "fn f() { clock_gettime(id); }";
        let library = "use raft::RawNode;";
        assert!(found("crates/vfs/src/real/file.rs", files).is_empty());
        assert!(found("crates/cli/src/import.rs", files).is_empty());
        assert!(found("crates/engine/src/db/worker.rs", threads).is_empty());
        assert!(found("crates/vfs/src/real/clock.rs", clock).is_empty());
        assert!(found("crates/log/tests/recovery.rs", files).is_empty());
        assert!(found("crates/replica/src/peer/raft_group.rs", library).is_empty());
        assert!(found("crates/replica/src/log/mod.rs", library).is_empty());
        assert!(!found("crates/replica/src/peer/merge.rs", library).is_empty());
        assert!(!found("crates/replica/src/store/poll.rs", library).is_empty());
        let store = "use crate::store::Context;";
        assert!(!found("crates/replica/src/peer/merge.rs", store).is_empty());
        assert!(found("crates/engine/src/db/mod.rs", store).is_empty());
        assert!(!found("testing/simulated-disk/src/disk.rs", files).is_empty());
        assert!(!found("crates/engine/src/store/mod.rs", threads).is_empty());
        assert!(!found("crates/vfs/src/real/file.rs", clock).is_empty());
        // It leaves out time in suspend.
        let instant = "fn f() { Instant::now(); }";
        assert!(!found("crates/vfs/src/real/clock.rs", instant).is_empty());
    }
}
