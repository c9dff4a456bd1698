//! A history: operations of clients and their results.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// One operation, in the format that `cluster-tests/porcupine` reads.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Record {
    /// Number of the client.
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
    /// Whether the outcome of the operation is unknown.
    #[serde(skip_serializing_if = "is_false")]
    pub ambiguous: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Writes a history, one JSON object per line.
pub fn write(path: &Path, records: &[Record]) -> Result<()> {
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    let mut out = BufWriter::new(file);
    for record in records {
        serde_json::to_writer(&mut out, record)?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    Ok(())
}
