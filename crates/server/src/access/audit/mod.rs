//! Audit log: one line of JSON for each refusal, each administrative call that changes something, and each identity
//! that connects for the first time. A thread writes them; nothing that a node serves waits for it.

mod call;
mod file;
mod repeats;
mod writer;

pub use call::AdminCall;

use super::Principal;
use crate::config::Config;
use parking_lot::Mutex;
use repeats::Repeats;
use serde_json::Value;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};
use stele_tls::Identity;
use stele_types::Result;
use tracing_subscriber::fmt::format::Writer as Text;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use writer::{LineWriter, Message};

/// Lines that wait for the thread; further ones are lost.
const QUEUE_MAX: usize = 1024;
/// Identities that are remembered as seen.
const SEEN_MAX: usize = 4096;
/// Bytes of a text in a line.
const TEXT_BYTES_MAX: usize = 512;
/// Time for the lines of a node that stops.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// Audit log of a node, or none. Clones write to the same file.
#[derive(Clone, Debug, Default)]
pub struct Audit(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    lines: SyncSender<Message>,
    state: Arc<State>,
}

/// What the thread shares with the callers.
#[derive(Debug, Default)]
struct State {
    lost: AtomicU64,
    refusals: Mutex<Repeats<Refusal>>,
    /// Caller of each identity that connected since the start.
    seen: Mutex<HashSet<Caller>>,
}

/// A caller as lines name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Caller {
    kind: &'static str,
    name: String,
}

/// A refusal; equal ones of a few seconds are one line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Refusal {
    event: &'static str,
    caller: Caller,
    host: Option<IpAddr>,
    call: String,
    reason: String,
}

/// One line. Fields that are empty or absent are left out.
#[derive(Debug, Default)]
struct Line<'a> {
    event: &'static str,
    caller: Option<&'a Caller>,
    peer: String,
    on_behalf_of: &'a str,
    call: &'a str,
    arguments: &'a str,
    outcome: &'static str,
    reason: &'a str,
    count: Option<u64>,
}

impl Audit {
    /// Opens the file that the configuration names, and starts the thread. Fails with `Refused` if the file
    /// cannot be used: later failures lose lines, which are counted.
    pub fn open(config: &Config) -> Result<Self> {
        match config.audit_log.as_str() {
            "" => Ok(Self::default()),
            path => Self::start(LineWriter::open(Path::new(path))?),
        }
    }

    fn start(writer: LineWriter) -> Result<Self> {
        let (lines, received) = sync_channel(QUEUE_MAX);
        let state = Arc::new(State::default());
        writer.start(received, state.clone())?;
        Ok(Self(Some(Arc::new(Shared { lines, state }))))
    }

    /// Returns the lines that were lost since the start; `None` without an audit log.
    pub fn lost(&self) -> Option<u64> {
        self.0.as_ref().map(|shared| shared.state.lost.load(Relaxed))
    }

    /// Waits until all lines are written, for at most 1 s.
    pub fn flush(&self) {
        let Some(shared) = &self.0 else { return };
        let (done, wait) = sync_channel(1);
        if shared.lines.try_send(Message::Flush(done)).is_ok() {
            // After an end of the time, the lines that are left are lost with the process.
            let _ = wait.recv_timeout(FLUSH_MAX);
        }
    }

    /// Records that a caller may not make a call.
    pub(super) fn refused(
        &self,
        caller: &Principal,
        peer: Option<SocketAddr>,
        (call, reason): (&str, &str),
    ) {
        self.refusal(("refused", Caller::of(caller)), peer, (call, reason));
    }

    /// Records that a node of the cluster claimed what is not its own.
    pub(super) fn node_refused(&self, node: &str, cause: &str) {
        let caller = Caller { kind: "node", name: node.to_owned() };
        self.refusal(("refused", caller), None, ("messages of a node", cause));
    }

    /// Records a handshake that failed.
    pub(super) fn handshake_failed(&self, peer: &str, reason: &str) {
        let caller = Caller { kind: "unknown", name: String::new() };
        self.refusal(("handshake_failed", caller), peer.parse().ok(), ("", reason));
    }

    /// Records an identity that connects for the first time since the start.
    pub(super) fn connected(&self, caller: &Principal, peer: &str) {
        let (Some(shared), Principal::Known(_)) = (&self.0, caller) else { return };
        let caller = Caller::of(caller);
        let mut seen = shared.state.seen.lock();
        if seen.len() >= SEEN_MAX || !seen.insert(caller.clone()) {
            return;
        }
        let reason = match seen.len() {
            SEEN_MAX => "4,096 identities were seen: further ones are not recorded",
            _ => "",
        };
        drop(seen);
        let peer = peer.to_owned();
        let line =
            Line { event: "first_seen", caller: Some(&caller), peer, reason, ..Line::default() };
        shared.push(&line);
    }

    fn refusal(
        &self,
        (event, caller): (&'static str, Caller),
        peer: Option<SocketAddr>,
        (call, reason): (&str, &str),
    ) {
        let Some(shared) = &self.0 else { return };
        let host = peer.map(|peer| peer.ip());
        let (call, reason) = (cut(call).to_owned(), cut(reason).to_owned());
        let refusal = Refusal { event, caller, host, call, reason };
        if shared.state.refusals.lock().note(&refusal, Instant::now()) {
            shared.push(&Line { peer: address(peer), ..refusal.line(1) });
        }
    }
}

impl Shared {
    /// Invariant: a line that is not written is counted, and neither a full queue nor a failing file stops or
    /// delays a caller.
    /// Tests: `lines_that_cannot_be_written_are_counted_and_the_log_says_so_when_it_goes_on`,
    /// `a_full_queue_delays_nothing_and_is_counted`.
    fn push(&self, line: &Line<'_>) {
        if self.lines.try_send(Message::Line(line.text())).is_err() {
            // bug server.audit_loss_uncounted: `1` is `0`
            self.state.lost.fetch_add(1, Relaxed);
        }
    }
}

impl Caller {
    fn of(caller: &Principal) -> Self {
        let (kind, name) = match caller {
            Principal::Plain => ("plain", String::new()),
            Principal::Anonymous => ("anonymous", String::new()),
            Principal::Known(Identity::Client(name)) => ("client", name.to_string()),
            Principal::Known(Identity::Node { cluster, node }) => {
                ("node", format!("{cluster}/{node}"))
            }
            // Enough to find the token among the grants.
            Principal::Token(hash) => {
                ("token", hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect())
            }
        };
        Self { kind, name }
    }
}

impl Refusal {
    fn line(&self, count: u64) -> Line<'_> {
        Line {
            event: self.event,
            caller: Some(&self.caller),
            peer: self.host.map(|host| host.to_string()).unwrap_or_default(),
            call: &self.call,
            outcome: "refused",
            reason: &self.reason,
            count: Some(count),
            ..Line::default()
        }
    }
}

impl Line<'_> {
    /// Returns the line with the time of now.
    fn text(&self) -> String {
        let mut time = String::new();
        // Writing to a string cannot fail.
        let _ = SystemTime.format_time(&mut Text::new(&mut time));
        let (kind, name) = self.caller.map_or(("", ""), |it| (it.kind, &it.name));
        let fields = [
            ("time", time.as_str()),
            ("event", self.event),
            ("caller", kind),
            ("name", name),
            ("peer", &self.peer),
            ("for", self.on_behalf_of),
            ("call", self.call),
            ("arguments", self.arguments),
            ("outcome", self.outcome),
            ("reason", self.reason),
        ];
        let fields = fields.iter().filter(|(_, text)| !text.is_empty());
        let fields = fields.map(|(key, text)| (*key, Value::from(*text)));
        let count = self.count.map(|count| ("count", Value::from(count)));
        let fields = fields.chain(count).map(|(key, value)| format!("\"{key}\":{value}"));
        format!("{{{}}}\n", fields.collect::<Vec<_>>().join(","))
    }
}

fn address(peer: Option<SocketAddr>) -> String {
    peer.map(|peer| peer.to_string()).unwrap_or_default()
}

/// Returns the beginning of a text that may come from outside.
fn cut(text: &str) -> &str {
    let mut ends = (0..=text.len().min(TEXT_BYTES_MAX)).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    text.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
