//! A history: operations of clients and their results.

use crate::client::AnswerKind;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Operation {
    pub process: usize,
    /// "put", "get", "delete", "cas" or "scan".
    pub op: &'static str,
    /// Group of the key; the keys of one group are checked together.
    pub group: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub reverse: bool,
    pub limit: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub succeeded: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<(String, String)>,
    /// Nanoseconds since the harness started.
    pub call_ns: u64,
    pub return_ns: u64,
    /// Last answer of the server.
    pub answer: AnswerKind,
    #[serde(skip_serializing_if = "is_false")]
    pub ambiguous: bool,
    /// Whether the operation certainly had no effect. The checker ignores it, so that a read of its
    /// effect is a violation.
    #[serde(skip_serializing_if = "is_false")]
    pub refused: bool,
}

impl Operation {
    pub(crate) fn set_answer(&mut self, answer: AnswerKind) {
        self.answer = answer;
        self.ambiguous = answer.is_unknown();
        self.refused = answer.is_refusal();
    }

    /// Returns whether the operation took effect.
    pub(crate) fn is_done(&self) -> bool {
        self.answer == AnswerKind::Done
    }

    pub(crate) fn observed(&self) -> impl Iterator<Item = &str> {
        let pairs = self.pairs.iter().map(|(_, value)| value.as_str());
        self.found.as_deref().into_iter().chain(pairs)
    }
}

fn is_false(flag: &bool) -> bool {
    !flag
}

pub(super) fn write(path: &Path, records: &[Operation]) -> Result<()> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let mut out = BufWriter::new(file);
    for record in records {
        serde_json::to_writer(&mut out, record)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}
