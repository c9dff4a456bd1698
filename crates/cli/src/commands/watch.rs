//! `stele watch`: prints writes as they come, and a token from which another watch continues.

use crate::Outcome;
use crate::args::{Encoding, Watch as Args};
use crate::export::put_field;
use crate::runtime;
use crate::terminal::Output;
use crate::text::parse;
use serde_json::{Map, Value};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;
use stele_client::{OldValue, Watch, WatchEvent, WatchFrom, WatchOptions};
use stele_types::{Error, KeyRange, Result};

/// Least time between two lines that say that writes are resolved.
const RESOLVED_INTERVAL: Duration = Duration::from_secs(1);
/// Most lines of a batch.
const BATCH_LINES_MAX: usize = 1000;

pub(crate) fn watch(args: &Args) -> Result<Outcome> {
    let range = KeyRange::prefix(&parse(&args.prefix, args.hex)?);
    let from = from(&args.from)?;
    runtime::small()?.block_on(async {
        let client = runtime::connect(&args.cluster, &args.tls).await?;
        let options = WatchOptions {
            resolved_interval: args.resolved.then_some(RESOLVED_INTERVAL),
            old_values: args.old_values,
            ..WatchOptions::default()
        };
        let watch = client.watch_with(range, from, options).await?;
        let mut lines = Lines::new(args, watch)?;
        let ended = lines.print().await;
        // What was printed is known also after an error.
        eprintln!("{}", lines.token);
        ended.map(|()| Outcome::Done)
    })
}

fn from(text: &str) -> Result<WatchFrom> {
    let token = match text.strip_prefix('@') {
        None if text == "now" => return Ok(WatchFrom::Now),
        None => text.parse(),
        Some(path) => {
            let read = fs::read_to_string(path).map_err(|error| Error::io("read", path, error))?;
            read.parse()
        }
    };
    token.map(WatchFrom::Token)
}

struct Lines<'a> {
    args: &'a Args,
    watch: Watch,
    out: Output,
    /// Lines that may not have left the process.
    pending: usize,
    /// Token of the lines that have.
    token: String,
}

impl<'a> Lines<'a> {
    fn new(args: &'a Args, watch: Watch) -> Result<Self> {
        let mut lines = Self { args, watch, out: Output::new(), pending: 0, token: String::new() };
        lines.end_batch()?;
        Ok(lines)
    }

    /// Prints events until a signal. Ends with an error of the watch or of standard output.
    async fn print(&mut self) -> Result<()> {
        let interrupted = tokio::signal::ctrl_c();
        tokio::pin!(interrupted);
        loop {
            let event = tokio::select! {
                biased;
                _ = &mut interrupted => return self.end_batch(),
                event = self.watch.next() => event,
                // Nothing more is there now.
                () = std::future::ready(()), if self.pending > 0 => {
                    self.end_batch()?;
                    continue;
                }
            };
            match event {
                Some(Ok(event)) => {
                    self.out.json(object(event, self.args.hex))?;
                    self.pending += 1;
                }
                Some(Err(error)) => {
                    self.end_batch()?;
                    return Err(error);
                }
                None => return self.end_batch(),
            }
            if self.pending >= BATCH_LINES_MAX {
                self.end_batch()?;
            }
        }
    }

    /// Invariant: a token is written and printed only after the lines before it have left the process.
    /// Test: `watch_prints_lines_and_a_token_from_which_another_continues`.
    fn end_batch(&mut self) -> Result<()> {
        self.out.flush()?;
        self.pending = 0;
        self.token = self.watch.token()?.to_string();
        match &self.args.save_token {
            Some(path) => replace(path, &self.token),
            None => Ok(()),
        }
    }
}

/// Replaces the content of a file: a reader finds the former text or the new one.
fn replace(path: &Path, text: &str) -> Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let failed = |error| Error::io("write", path, error);
    let mut file = tempfile::NamedTempFile::new_in(dir).map_err(failed)?;
    writeln!(file, "{text}").map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map(|_| ()).map_err(|error| failed(error.error))
}

fn object(event: WatchEvent, hex: bool) -> Map<String, Value> {
    let encoding = if hex { Encoding::Hex } else { Encoding::Text };
    let mut object = Map::new();
    let name = match &event {
        WatchEvent::Put { .. } => "put",
        WatchEvent::Delete { .. } => "delete",
        WatchEvent::DeletedRange { .. } => "delete_range",
        WatchEvent::Resolved => "resolved",
    };
    object.insert("event".into(), name.into());
    match event {
        WatchEvent::Put { key, value, expires_at_s, old } => {
            put_field(&mut object, "key", &key, encoding);
            put_field(&mut object, "value", &value, encoding);
            if expires_at_s != 0 {
                object.insert("expires_at_s".into(), expires_at_s.into());
            }
            put_old(&mut object, &old, encoding);
        }
        WatchEvent::Delete { key, old } => {
            put_field(&mut object, "key", &key, encoding);
            put_old(&mut object, &old, encoding);
        }
        WatchEvent::DeletedRange { start, end } => {
            put_field(&mut object, "start", &start, encoding);
            if !end.is_empty() {
                put_field(&mut object, "end", &end, encoding);
            }
        }
        WatchEvent::Resolved => {}
    }
    object
}

/// Adds nothing for an unknown one.
fn put_old(object: &mut Map<String, Value>, old: &OldValue, encoding: Encoding) {
    match old {
        OldValue::Unknown => {}
        OldValue::Absent => {
            object.insert("old_value".into(), Value::Null);
        }
        OldValue::Present(value) => put_field(object, "old_value", value, encoding),
    }
}
