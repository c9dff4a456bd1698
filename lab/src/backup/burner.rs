//! Processor time of a process over time, and a process that only uses as much at the same times.

use anyhow::{Context, Result, anyhow, bail};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use std::fmt;
use std::hint::black_box;
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

/// Internal command of the burner's process.
pub(crate) const COMMAND: &str = "burn";
/// Longest pause between two parts of the processor time that is due.
const PERIOD: Duration = Duration::from_millis(10);
/// Steps between two readings of the clock: some microseconds.
const STEPS: u64 = 2_000;

/// Processor time that a process had used at times after its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Point {
    at_ms: u64,
    used_ms: u64,
}

impl Profile {
    /// Adds a point, unless there is one of this millisecond.
    pub(super) fn push(&mut self, at: Duration, used_seconds: f64) {
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let used_ms = ((used_seconds * 1e3).round() as u64).max(self.last().used_ms);
        if at_ms > self.last().at_ms {
            self.points.push(Point { at_ms, used_ms });
        }
    }

    /// Returns the processor time at the last point, in seconds.
    pub(super) fn used_seconds(&self) -> f64 {
        self.last().used_ms as f64 / 1e3
    }

    fn last(&self) -> Point {
        self.points.last().copied().unwrap_or_default()
    }

    fn duration(&self) -> Duration {
        Duration::from_millis(self.last().at_ms)
    }

    /// Returns the processor time that is due at a time: between two points it grows evenly.
    fn due(&self, at: Duration) -> Duration {
        let at_ms = at.as_secs_f64() * 1e3;
        let next = self.points.partition_point(|point| (point.at_ms as f64) < at_ms);
        let before = next.checked_sub(1).and_then(|at| self.points.get(at)).copied();
        let before = before.unwrap_or_default();
        let due_ms = match self.points.get(next) {
            None => before.used_ms as f64,
            Some(after) => {
                let passed = (at_ms - before.at_ms as f64) / (after.at_ms - before.at_ms) as f64;
                before.used_ms as f64 + (after.used_ms - before.used_ms) as f64 * passed
            }
        };
        Duration::from_secs_f64(due_ms / 1e3)
    }

    /// Splits the time among threads, the first of which has as much as one thread can use. `stele-backup` works in
    /// one thread too, and only waits for the disk in others.
    fn threads(&self) -> Vec<Self> {
        let mut threads: Vec<Self> = Vec::new();
        let mut before = Point::default();
        for (number, point) in self.points.iter().enumerate() {
            let slice_ms = point.at_ms - before.at_ms;
            let mut used_ms = point.used_ms - before.used_ms;
            before = *point;
            for thread in 0.. {
                if thread == threads.len() {
                    if used_ms == 0 {
                        break;
                    }
                    let idle = self.points.iter().take(number);
                    let points = idle.map(|point| Point { used_ms: 0, ..*point }).collect();
                    threads.push(Self { points });
                }
                let Some(profile) = threads.get_mut(thread) else { break };
                let taken_ms = used_ms.min(slice_ms);
                used_ms -= taken_ms;
                let used_ms = profile.last().used_ms + taken_ms;
                profile.points.push(Point { at_ms: point.at_ms, used_ms });
            }
        }
        threads
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, Point { at_ms, used_ms }) in self.points.iter().enumerate() {
            let comma = if number == 0 { "" } else { "," };
            write!(f, "{comma}{at_ms}:{used_ms}")?;
        }
        Ok(())
    }
}

impl FromStr for Profile {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let point = |part: &str| -> Result<Point> {
            let (at_ms, used_ms) =
                part.split_once(':').with_context(|| format!("`{part}` is not MS:MS"))?;
            Ok(Point { at_ms: at_ms.parse()?, used_ms: used_ms.parse()? })
        };
        let points = text.split(',').map(point).collect::<Result<Vec<Point>>>()?;
        let mut before = Point::default();
        for point in &points {
            if point.at_ms <= before.at_ms || point.used_ms < before.used_ms {
                bail!("{text}: the times are not in order");
            }
            before = *point;
        }
        Ok(Self { points })
    }
}

/// Uses the processor time of the profile that the arguments name, and prints how much it was.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let [profile] = arguments else {
        bail!("`{COMMAND}` takes MS:MS,…: times after the start, and the processor time until then")
    };
    let burnt = burn(&profile.parse()?)?;
    println!("{}", json!({"processor_seconds": burnt.as_secs_f64()}));
    Ok(())
}

fn burn(profile: &Profile) -> Result<Duration> {
    let (begun, duration) = (Instant::now(), profile.duration());
    let threads = profile.threads();
    thread::scope(|scope| {
        let threads: Vec<_> =
            threads.iter().map(|it| scope.spawn(move || burn_in_thread(it, begun))).collect();
        // Without a thread the process lasts as long too.
        thread::sleep(duration.saturating_sub(begun.elapsed()));
        let mut burnt = Duration::ZERO;
        for thread in threads {
            burnt += thread.join().map_err(|_| anyhow!("a thread of the burner panicked"))?;
        }
        Ok(burnt)
    })
}

/// Uses what is due until the end of the profile. Returns what the thread has used, which is less if it had to wait
/// for a processor.
fn burn_in_thread(profile: &Profile, begun: Instant) -> Duration {
    let duration = profile.duration();
    loop {
        let at = begun.elapsed();
        let due = profile.due(at);
        while used_by_thread() < due && begun.elapsed() < duration {
            for step in 0..STEPS {
                black_box(step);
            }
        }
        if at >= duration {
            return used_by_thread();
        }
        thread::sleep(PERIOD.min(duration.saturating_sub(begun.elapsed())));
    }
}

fn used_by_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(text: &str) -> Profile {
        text.parse().unwrap()
    }

    #[test]
    fn a_profile_is_read_as_it_was_written_and_disorder_is_refused() {
        let mut written = Profile::default();
        written.push(Duration::from_millis(100), 0.03);
        written.push(Duration::from_millis(205), 0.19);
        written.push(Duration::from_millis(205), 0.2);
        assert_eq!(written.to_string(), "100:30,205:190");
        assert_eq!(profile("100:30,205:190"), written);
        assert_eq!(written.used_seconds(), 0.19);
        assert_eq!(Profile::default().used_seconds(), 0.0);
        for text in ["", "100", "100:x", "100:5,100:6", "100:5,200:4", "0:0"] {
            text.parse::<Profile>().unwrap_err();
        }
    }

    #[test]
    fn between_two_points_the_time_grows_evenly() {
        let profile = profile("100:40,200:40,300:140");
        let due_ms = |at_ms| profile.due(Duration::from_millis(at_ms)).as_millis();
        let due: Vec<u128> = [0, 50, 100, 150, 250, 300, 900].map(due_ms).into();
        assert_eq!(due, [0, 20, 40, 40, 90, 140, 140]);
        assert_eq!(Profile::default().due(PERIOD), Duration::ZERO);
    }

    #[test]
    fn only_what_one_thread_cannot_use_is_for_another() {
        let threads = profile("100:90,200:250,300:260").threads();
        let texts: Vec<String> = threads.iter().map(Profile::to_string).collect();
        assert_eq!(texts, ["100:90,200:190,300:200", "100:0,200:60,300:60"]);
        assert_eq!(profile("100:0").threads(), []);
    }

    #[test]
    fn a_burner_uses_what_it_is_to_use_and_ends_with_the_profile() {
        let begun = Instant::now();
        let burnt = burn(&profile("200:10,400:60")).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(400));
        // Less if the test had to wait for a processor.
        assert!(burnt > Duration::from_millis(5), "{burnt:?}");
        assert!(burnt < Duration::from_millis(70), "{burnt:?}");
    }
}
