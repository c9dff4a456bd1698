//! Lines of the log about a node that waits.

use std::time::{Duration, Instant};

const LINE_INTERVAL: Duration = Duration::from_secs(30);

pub(super) struct WaitLog {
    began: Instant,
    last: Option<(Instant, String)>,
}

impl WaitLog {
    pub(super) fn since(now: Instant) -> Self {
        Self { began: now, last: None }
    }

    /// Returns the text of the next line; `None` if the same reason was logged less than 30 s ago.
    pub(super) fn line(&mut self, reason: &str, now: Instant) -> Option<String> {
        let is_due = self.last.as_ref().is_none_or(|(at, logged)| {
            logged != reason || now.saturating_duration_since(*at) >= LINE_INTERVAL
        });
        if !is_due {
            return None;
        }
        self.last = Some((now, reason.to_owned()));
        let seconds = now.saturating_duration_since(self.began).as_secs();
        Some(format!("waiting to join for {seconds} s: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_waits_to_join_says_so_every_30_s_and_when_the_reason_changes() {
        let began = Instant::now();
        let mut waiting = WaitLog::since(began);
        // The seconds at which a line is written.
        let mut lines = Vec::new();
        for tenth in 0..1000 {
            let reason = if tenth < 50 { "a:1: no leader" } else { "a:1: not reached" };
            let now = began + Duration::from_millis(tenth * 100);
            lines.extend(waiting.line(reason, now).map(|line| (tenth / 10, line)));
        }
        let seconds: Vec<u64> = lines.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 5, 35, 65, 95]);
        assert_eq!(lines[1].1, "waiting to join for 5 s: a:1: not reached");
    }
}
