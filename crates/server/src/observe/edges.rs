//! Counts of the protocols at the edge of a node: Redis and HTTP.
//!
//! Labels are of bounded sets: names of commands that exist, first words of errors, routes and statuses.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stele_redis::table::CommandSpec;

/// First words of errors that are counted by themselves. The last one stands for all others.
const ERROR_WORDS: [&str; 14] = [
    "ERR",
    "WRONGTYPE",
    "TRYAGAIN",
    "UNDETERMINED",
    "CROSSSLOT",
    "OOM",
    "NOAUTH",
    "NOPERM",
    "WRONGPASS",
    "NOPROTO",
    "NOSCRIPT",
    "NOTBUSY",
    "EXECABORT",
    "other",
];

/// Counts since the start, and connections that are open now.
#[derive(Debug)]
pub struct EdgeCounts {
    redis_open: AtomicU64,
    /// Requests by the place of their command in the table of all.
    commands: Box<[AtomicU64]>,
    /// By the place of their first word in [`ERROR_WORDS`].
    errors: [AtomicU64; ERROR_WORDS.len()],
    /// By route and status.
    http: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

impl Default for EdgeCounts {
    fn default() -> Self {
        Self {
            redis_open: AtomicU64::new(0),
            commands: CommandSpec::all().iter().map(|_| AtomicU64::new(0)).collect(),
            errors: Default::default(),
            http: Mutex::default(),
        }
    }
}

/// Open connection of a client of Redis.
#[derive(Debug)]
pub(crate) struct OpenRedis<'a>(&'a EdgeCounts);

impl Drop for OpenRedis<'_> {
    fn drop(&mut self) {
        self.0.redis_open.fetch_sub(1, Relaxed);
    }
}

impl EdgeCounts {
    /// Counts a connection of a client of Redis until the result is dropped.
    pub(crate) fn open_redis(&self) -> OpenRedis<'_> {
        self.redis_open.fetch_add(1, Relaxed);
        OpenRedis(self)
    }

    /// Counts a request of a command.
    pub(crate) fn note_command(&self, spec: &CommandSpec) {
        if let Some(count) = self.commands.get(spec.place()) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts an error reply by its first word.
    pub(crate) fn note_error(&self, word: &[u8]) {
        let place = ERROR_WORDS.iter().position(|it| it.as_bytes() == word);
        if let Some(count) = self.errors.get(place.unwrap_or(ERROR_WORDS.len() - 1)) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// Counts an answer over HTTP. `route` is one of the table of routes.
    pub(crate) fn note_http(&self, route: &'static str, status: u16) {
        *self.http.lock().entry((route, status)).or_default() += 1;
    }

    /// Returns the number of open connections of clients of Redis.
    pub(crate) fn redis_open(&self) -> u64 {
        self.redis_open.load(Relaxed)
    }

    /// Returns the commands that were requested, with their counts.
    pub(crate) fn commands(&self) -> Vec<(&'static str, u64)> {
        let names = CommandSpec::all().iter().map(|spec| spec.name);
        nonzero(names.zip(&self.commands[..]))
    }

    /// Returns the first words of errors that were answered, with their counts.
    pub(crate) fn errors(&self) -> Vec<(&'static str, u64)> {
        nonzero(ERROR_WORDS.into_iter().zip(&self.errors))
    }

    /// Returns routes and statuses that were answered, with their counts.
    pub(super) fn http(&self) -> BTreeMap<(&'static str, u16), u64> {
        self.http.lock().clone()
    }
}

fn nonzero<'a>(
    counts: impl Iterator<Item = (&'static str, &'a AtomicU64)>,
) -> Vec<(&'static str, u64)> {
    let counts = counts.map(|(name, count)| (name, count.load(Relaxed)));
    counts.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_errors_are_counted_by_names_of_bounded_sets() {
        let counts = EdgeCounts::default();
        for name in ["get", "GET", "zz"] {
            if let Some(spec) = CommandSpec::find(name.as_bytes()) {
                counts.note_command(spec);
            }
        }
        for word in ["ERR", "WRONGTYPE", "ERR", "A-CLIENT-CHOSE-THIS", "other"] {
            counts.note_error(word.as_bytes());
        }
        assert_eq!(counts.commands(), [("get", 2)]);
        assert_eq!(counts.errors(), [("ERR", 2), ("WRONGTYPE", 1), ("other", 2)]);
    }

    #[test]
    fn every_command_has_a_count_of_its_own() {
        let counts = EdgeCounts::default();
        CommandSpec::all().iter().for_each(|spec| counts.note_command(spec));
        assert!(counts.commands().iter().all(|(_, count)| *count == 1));
        assert_eq!(counts.commands().len(), CommandSpec::all().len());
    }

    #[test]
    fn a_connection_is_counted_until_it_ends() {
        let counts = EdgeCounts::default();
        let open = [counts.open_redis(), counts.open_redis()];
        assert_eq!(counts.redis_open(), 2);
        drop(open);
        assert_eq!(counts.redis_open(), 0);
        counts.note_http("/v1/kv", 200);
        counts.note_http("/v1/kv", 200);
        assert_eq!(counts.http().get(&("/v1/kv", 200)), Some(&2));
    }
}
