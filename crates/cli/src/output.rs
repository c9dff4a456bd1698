//! Standard output, with errors that can be distinguished from those of the store.

use serde_json::{Map, Value};
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;
use stele_types::{Error, Result};

const NAME: &str = "standard output";

/// Buffered standard output.
pub(crate) struct Output {
    out: BufWriter<StdoutLock<'static>>,
}

impl Output {
    /// Locks standard output for this command.
    pub(crate) fn new() -> Self {
        Self { out: BufWriter::with_capacity(1 << 16, io::stdout().lock()) }
    }

    /// Writes bytes unchanged.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(failed)
    }

    pub(crate) fn line(&mut self, line: &str) -> Result<()> {
        self.bytes(line.as_bytes())?;
        self.bytes(b"\n")
    }

    /// Writes a JSON object as one line.
    pub(crate) fn json(&mut self, object: Map<String, Value>) -> Result<()> {
        self.line(&Value::Object(object).to_string())
    }

    /// Flushes the buffer to the system.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.out.flush().map_err(failed)
    }
}

/// Prints text and flushes. A failure is ignored: the reader has closed standard output.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn failed(source: io::Error) -> Error {
    Error::io("write", NAME, source)
}

/// Returns whether `error` means that the reader closed standard output.
pub(crate) fn is_closed_pipe(error: &Error) -> bool {
    matches!(error, Error::Io { path, source, .. }
        if path == Path::new(NAME) && source.kind() == io::ErrorKind::BrokenPipe)
}
