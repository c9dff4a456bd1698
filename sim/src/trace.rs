//! Record of a run: a hash that two runs of a seed share, and on request a file for Perfetto and
//! `chrome://tracing`.

use serde_json::json;
use std::fmt::Write;

/// One event of a trace.
struct TraceEvent {
    at_nanos: u64,
    duration_nanos: u64,
    /// Shown as a process; 0 for the whole cluster.
    node: u64,
    /// Shown as a thread; 0 for the node.
    slot: u64,
    name: String,
}

/// Trace of one run.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    /// Keep the events.
    keeps: bool,
    events: Vec<TraceEvent>,
    /// Latest events as text, for failures.
    tail: std::collections::VecDeque<String>,
    prints: bool,
}

const TAIL_LINES: usize = 60;

impl Trace {
    /// Creates a trace that optionally keeps its events and prints them.
    pub fn new(keeps: bool, prints: bool) -> Self {
        Self { keeps, prints, ..Self::default() }
    }

    /// Returns the hash of all events.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Mixes an event into the hash.
    pub fn mix(&mut self, what: u64) {
        let mixed = (self.hash ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }

    /// Records an event without duration.
    pub fn note(&mut self, at_nanos: u64, node: u64, slot: u64, text: impl FnOnce() -> String) {
        self.span(at_nanos, 0, node, slot, text);
    }

    /// Records an event with a duration.
    pub fn span(
        &mut self,
        at_nanos: u64,
        duration_nanos: u64,
        node: u64,
        slot: u64,
        text: impl FnOnce() -> String,
    ) {
        let name = text();
        self.mix(name.bytes().fold(at_nanos, |hash, byte| hash.rotate_left(5) ^ u64::from(byte)));
        let line = || format!("{:>10.3} ms n{node} s{slot} {name}", at_nanos as f64 / 1e6);
        if self.prints {
            println!("{}", line());
        }
        if self.tail.len() == TAIL_LINES {
            self.tail.pop_front();
        }
        self.tail.push_back(line());
        if self.keeps {
            self.events.push(TraceEvent { at_nanos, duration_nanos, node, slot, name });
        }
    }

    /// Returns the latest lines.
    pub fn tail(&self) -> String {
        self.tail.iter().fold(String::new(), |mut text, line| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {line}");
            text
        })
    }

    /// Returns the events in the format of `chrome://tracing`, which Perfetto reads.
    pub fn perfetto(&self) -> String {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let events: Vec<_> = self
            .events
            .iter()
            .map(|event| match event.duration_nanos {
                0 => json!({"name": event.name, "ph": "i", "s": "t", "ts": micros(event.at_nanos),
                            "pid": event.node, "tid": event.slot}),
                took => json!({"name": event.name, "ph": "X", "ts": micros(event.at_nanos),
                               "dur": micros(took), "pid": event.node, "tid": event.slot}),
            })
            .collect();
        json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
    }
}
