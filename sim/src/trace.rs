//! What happened: as one number that two runs of a seed must share, and on request as a file that
//! Perfetto and `chrome://tracing` show.

use serde_json::json;
use std::fmt::Write;

/// One mark of a trace.
struct Mark {
    at_nanos: u64,
    duration_nanos: u64,
    /// Shown as a process; 0 is the world.
    node: u64,
    /// Shown as a thread; 0 is the node.
    slot: u64,
    name: String,
}

/// See the module.
#[derive(Default)]
pub struct Trace {
    hash: u64,
    /// Whether marks are kept.
    keeps: bool,
    marks: Vec<Mark>,
    /// The latest marks as text, for failures.
    tail: std::collections::VecDeque<String>,
    prints: bool,
}

/// Lines kept for a failure.
const TAIL_LINES: usize = 60;

impl Trace {
    /// A trace that keeps its marks for a file, or prints them.
    pub fn new(keeps: bool, prints: bool) -> Self {
        Self { keeps, prints, ..Self::default() }
    }

    /// The number of all that happened.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Something happened: mixed into the number.
    pub fn mix(&mut self, what: u64) {
        let mixed = (self.hash ^ what).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.hash = mixed ^ (mixed >> 29);
    }

    /// Something worth a line.
    pub fn note(&mut self, at_nanos: u64, node: u64, slot: u64, text: impl FnOnce() -> String) {
        self.span(at_nanos, 0, node, slot, text);
    }

    /// Something that took a while.
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
            self.marks.push(Mark { at_nanos, duration_nanos, node, slot, name });
        }
    }

    /// The latest lines.
    pub fn tail(&self) -> String {
        self.tail.iter().fold(String::new(), |mut text, line| {
            // Writing to a string does not fail.
            let _ = writeln!(text, "  {line}");
            text
        })
    }

    /// The marks in the format of `chrome://tracing`, which Perfetto reads.
    pub fn perfetto(&self) -> String {
        let micros = |nanos: u64| nanos as f64 / 1e3;
        let events: Vec<_> = self
            .marks
            .iter()
            .map(|mark| match mark.duration_nanos {
                0 => json!({"name": mark.name, "ph": "i", "s": "t", "ts": micros(mark.at_nanos),
                            "pid": mark.node, "tid": mark.slot}),
                took => json!({"name": mark.name, "ph": "X", "ts": micros(mark.at_nanos),
                               "dur": micros(took), "pid": mark.node, "tid": mark.slot}),
            })
            .collect();
        json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
    }
}
