//! The phase `kill`: numbered values are written one at a time while the harness kills a leader, and read at the
//! end.

use crate::{Names, Subject, fred_client, pools, redis_rs};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::{Duration, Instant};
use tokio::time::sleep;

const WRITE_INTERVAL: Duration = Duration::from_millis(10);

/// Time after the last write in which every name must become readable.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>>;

/// What the phase needs of a client.
pub(crate) trait Writer: Send {
    fn set(&mut self, name: String, value: String) -> Reply<'_, ()>;
    fn get(&mut self, name: String) -> Reply<'_, Option<String>>;
}

/// What was written.
#[derive(Default)]
struct Writes {
    acknowledged: Vec<bool>,
    errors: BTreeMap<String, u64>,
    pause_max: Duration,
}

/// Runs all clients at the same time.
pub(crate) async fn run(node: &str, duration: Duration, runs: &dyn Fn(&Subject) -> bool) {
    let writers: [(Subject, Reply<'_, Box<dyn Writer>>); 4] = [
        (redis_rs::SUBJECT, Box::pin(redis_rs::writer(node))),
        (fred_client::SUBJECT, Box::pin(fred_client::writer(node))),
        (pools::DEADPOOL, Box::pin(pools::deadpool_writer(node))),
        (pools::BB8, Box::pin(pools::bb8_writer(node))),
    ];
    let runs = writers.into_iter().filter(|(subject, _)| runs(subject));
    let runs = runs.map(|(subject, writer)| async move {
        match writer.await {
            Ok(writer) => one(subject, writer, duration).await,
            Err(error) => subject.print("leader killed", "failed", &error),
        }
    });
    futures::future::join_all(runs).await;
}

async fn one(subject: Subject, mut writer: Box<dyn Writer>, duration: Duration) {
    let names = Names::new(&format!("{}-killed", subject.name));
    let mut writes = Writes::default();
    writes.write(writer.as_mut(), &names, duration).await;
    let lost = writes.lost(writer.as_mut(), &names).await;
    let count = writes.acknowledged.iter().filter(|it| **it).count();
    let outcome = if lost == Ok(0) && count > 0 { "passed" } else { "failed" };
    let lost = lost.map_or_else(|error| error, |lost| lost.to_string());
    let text = format!(
        "errors: {}; longest pause {} ms; acknowledged {count} of {}; lost {lost}",
        writes.error_text(),
        writes.pause_max.as_millis(),
        writes.acknowledged.len(),
    );
    subject.print("leader killed", outcome, &text);
}

impl Writes {
    async fn write(&mut self, writer: &mut dyn Writer, names: &Names, duration: Duration) {
        let end = Instant::now() + duration;
        let mut last = Instant::now();
        let mut number = 0;
        while Instant::now() < end {
            let started = Instant::now();
            let written = writer.set(names.name(number), number.to_string()).await;
            self.acknowledged.push(written.is_ok());
            match written {
                Ok(()) => {
                    self.pause_max = self.pause_max.max(last.elapsed());
                    last = Instant::now();
                }
                Err(error) => *self.errors.entry(kind_of(&error)).or_default() += 1,
            }
            sleep(WRITE_INTERVAL.saturating_sub(started.elapsed())).await;
            number += 1;
        }
        self.pause_max = self.pause_max.max(last.elapsed());
    }

    /// Returns how many acknowledged values are absent or others.
    async fn lost(&self, writer: &mut dyn Writer, names: &Names) -> Result<u64, String> {
        let end = Instant::now() + READ_TIMEOUT;
        let mut lost = 0;
        for (number, acknowledged) in self.acknowledged.iter().enumerate() {
            let value = loop {
                match writer.get(names.name(number)).await {
                    Ok(value) => break value,
                    Err(error) if Instant::now() > end => return Err(format!("reading: {error}")),
                    Err(_) => sleep(Duration::from_millis(100)).await,
                }
            };
            let expected = number.to_string();
            let right = value.as_ref() == Some(&expected);
            lost += u64::from(!right && (value.is_some() || *acknowledged));
        }
        Ok(lost)
    }

    fn error_text(&self) -> String {
        let kinds = self.errors.iter().map(|(kind, count)| format!("{count} × {kind}"));
        let kinds: Vec<String> = kinds.collect();
        if kinds.is_empty() { "none".into() } else { kinds.join(" | ") }
    }
}

/// Returns the text without what differs between two errors of one kind.
fn kind_of(error: &str) -> String {
    let mut text = String::new();
    for letter in error.chars() {
        match letter {
            '0'..='9' if text.ends_with('N') => {}
            '0'..='9' => text.push('N'),
            '\n' => text.push(' '),
            _ => text.push(letter),
        }
    }
    text.chars().take(160).collect()
}
