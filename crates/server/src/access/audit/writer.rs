//! The thread that writes the lines.

use super::file::AuditFile;
use super::repeats::{Ended, PAUSE};
use super::{Line, Refusal, State};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Instant;
use stele_types::{Error, Result};

/// What the thread receives.
#[derive(Debug)]
pub(super) enum Message {
    Line(String),
    /// Answered when all before it is written.
    Flush(SyncSender<()>),
}

/// Writer of the lines, with the losses that the file does not state yet.
#[derive(Debug)]
pub(super) struct LineWriter {
    file: AuditFile,
    /// Lost lines that a line states.
    stated: u64,
    /// Time of the last failure that was logged.
    logged: Option<Instant>,
}

impl LineWriter {
    pub(super) fn open(path: &Path) -> Result<Self> {
        Ok(Self { file: AuditFile::open(path)?, stated: 0, logged: None })
    }

    pub(super) fn start(mut self, received: Receiver<Message>, state: Arc<State>) -> Result<()> {
        let write = move || self.run(&received, &state);
        let started = thread::Builder::new().name("stele-audit".to_owned()).spawn(write);
        started.map(drop).map_err(|error| Error::io("start", "the thread of the audit log", error))
    }

    /// Writes until no caller is left.
    fn run(&mut self, received: &Receiver<Message>, state: &State) {
        let mut swept = Instant::now();
        loop {
            let message = received.recv_timeout(PAUSE);
            let is_last = matches!(message, Err(RecvTimeoutError::Disconnected));
            let is_flush = matches!(message, Ok(Message::Flush(_)));
            if let Ok(Message::Line(text)) = &message {
                self.write(text, state);
            }
            if is_last || is_flush || swept.elapsed() >= PAUSE {
                swept = Instant::now();
                let before = (!is_last && !is_flush).then_some(swept);
                let ended = state.refusals.lock().end(before);
                self.write_ended(&ended, state);
            }
            if let Ok(Message::Flush(done)) = message {
                // The caller may not wait any longer.
                let _ = done.try_send(());
            }
            if is_last {
                return;
            }
        }
    }

    fn write_ended(&mut self, ended: &Ended<Refusal>, state: &State) {
        for (refusal, count) in &ended.repeated {
            self.write(&refusal.line(*count).text(), state);
        }
        if ended.beyond > 0 {
            let reason = "more than 1,024 different refusals in 10 s: the others are only counted";
            let count = Some(ended.beyond);
            let (event, outcome) = ("refused", "refused");
            let line = Line { event, outcome, reason, count, ..Line::default() };
            self.write(&line.text(), state);
        }
    }

    /// Writes a line, and before it how many were lost since the last one.
    pub(super) fn write(&mut self, text: &str, state: &State) {
        let lost = state.lost.load(Relaxed);
        let missing = lost - self.stated;
        let stated = (missing > 0).then(|| {
            let reason = "lines could not be written";
            Line { event: "lost", reason, count: Some(missing), ..Line::default() }.text()
        });
        let text = format!("{}{text}", stated.unwrap_or_default());
        match self.file.append(&text) {
            Ok(()) if missing > 0 => {
                self.stated = lost;
                self.logged = None;
                tracing::warn!("audit log: {missing} lines were lost; it goes on");
            }
            Ok(()) => {}
            Err(error) => {
                state.lost.fetch_add(1, Relaxed);
                if self.logged.is_none_or(|at| at.elapsed() >= PAUSE) {
                    self.logged = Some(Instant::now());
                    tracing::error!(
                        "audit log: {error}; lines are lost until the file can be written"
                    );
                }
            }
        }
    }
}
