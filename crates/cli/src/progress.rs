//! Progress of a long command: a bar on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

const REDRAW: Duration = Duration::from_millis(200);

/// A bar on standard error.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Shows a bar up to `total` bytes, or a spinner if `total` is unknown.
    pub(crate) fn bytes(total: Option<u64>, what: &str) -> Self {
        let (bar, template) = match total {
            Some(total) => (
                ProgressBar::new(total),
                "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
            ),
            None => (ProgressBar::new_spinner(), "{msg} {spinner} {bytes} {bytes_per_sec}"),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what.to_owned());
        bar.enable_steady_tick(REDRAW);
        Self { bar }
    }

    /// Adds bytes that are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Prints a line to standard error without disturbing the bar.
    pub(crate) fn warn(&self, line: &str) {
        self.bar.suspend(|| eprintln!("stele: {line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
