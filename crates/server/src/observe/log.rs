//! Writer of log lines that cannot fail. A log on a full disk must not stop the node: without this
//! writer, a failed line is reported by a macro that panics if standard error fails, too.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Log lines of this process that were not written.
static LINES_LOST: AtomicU64 = AtomicU64::new(0);

/// Returns how many log lines of this process were not written since its start.
pub fn log_lines_lost() -> u64 {
    LINES_LOST.load(Relaxed)
}

/// Writer of log lines. Counts the lines that `W` does not take, and reports success.
///
/// Invariant: no write fails, and no lost line is uncounted.
#[derive(Debug)]
pub struct LogWriter<W>(pub W);

impl<W: Write> Write for LogWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // bug server.log_failure_returned: return self.0.write_all(line).map(|()| line.len());
        if self.0.write_all(line).is_err() {
            LINES_LOST.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Lines are counted when they are written.
        let _ = self.0.flush();
        Ok(())
    }
}
