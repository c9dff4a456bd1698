//! Processor time of a process by the purpose of its threads.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use stele_load::process_io::{Task, Ticks, seconds};
use stele_server::tasks::Thread;
use stele_types::Result;

pub(super) const STAGES: [&str; 4] = ["network", "store", "maintenance", OTHER];
/// Stage of all other threads, such as the main thread, and of threads that ended between two
/// samples.
const OTHER: &str = "other";

fn stage(name: &str) -> &'static str {
    let kind = Thread::ALL.into_iter().find(|kind| name.starts_with(kind.prefix()));
    match kind {
        Some(Thread::Network) => "network",
        Some(Thread::Store | Thread::Write | Thread::Lookup) => "store",
        Some(Thread::Maintenance | Thread::EntryRecovery) => "maintenance",
        None => OTHER,
    }
}

/// Returns the group of another server's thread: its name without a trailing number.
fn group(name: &str) -> &str {
    let group = name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '-' | '_' | '#'));
    if group.is_empty() { name } else { group }
}

#[derive(Debug)]
pub(super) struct Sample {
    pub process: Ticks,
    /// Name and time by thread ID and start time.
    threads: BTreeMap<(u32, u64), (String, Ticks)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shares {
    by: BTreeMap<String, Ticks>,
    pub threads_ended: usize,
}

impl Sample {
    pub(super) fn take(pid: u32) -> Result<Self> {
        let threads = Task::threads(pid)?.into_iter();
        let threads = threads.map(|(id, it)| ((id, it.started), (it.name, it.ticks))).collect();
        // The process is read after its threads, so that its time is at least their sum.
        Ok(Self { process: Task::process(pid)?.ticks, threads })
    }

    /// Returns the time used since `before`: by stage for Stele, by group of thread names for other
    /// servers. The time of the process that no present thread accounts for is `other`: it belongs
    /// to threads that ended.
    pub(super) fn since(&self, before: &Self, is_stele: bool) -> Shares {
        let named = STAGES.into_iter().filter(|name| is_stele || *name == OTHER);
        let mut by: BTreeMap<String, Ticks> =
            named.map(|name| (name.to_owned(), Ticks::default())).collect();
        let mut known = Ticks::default();
        for (id, (name, now)) in &self.threads {
            let then = before.threads.get(id).map(|(_, ticks)| *ticks).unwrap_or_default();
            let used = now.since(then);
            let name = if is_stele { stage(name) } else { group(name) };
            let share = by.entry(name.to_owned()).or_default();
            *share = share.plus(used);
            known = known.plus(used);
        }
        let whole = self.process.since(before.process);
        let rest = whole.all().saturating_sub(known.all());
        // The kernel splits the process's time into user and system time independently of its
        // threads'.
        let user = whole.user.saturating_sub(known.user).min(rest);
        let other = by.entry(OTHER.to_owned()).or_default();
        *other = other.plus(Ticks { user, system: rest - user });
        let threads_ended =
            before.threads.keys().filter(|id| !self.threads.contains_key(id)).count();
        Shares { by, threads_ended }
    }
}

impl Shares {
    /// Returns microseconds per operation.
    pub(super) fn to_json(&self, operations: u64) -> Value {
        let us = |ticks: u64| seconds(ticks) * 1e6 / operations.max(1) as f64;
        let one = |(name, used): (&String, &Ticks)| {
            (name.clone(), json!({"user": us(used.user), "system": us(used.system)}))
        };
        Value::Object(self.by.iter().map(one).collect::<Map<_, _>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(process: (u64, u64), threads: &[(u32, &str, u64, u64)]) -> Sample {
        let ticks = |user, system| Ticks { user, system };
        let thread = |(id, name, user, system): &(u32, &str, u64, u64)| {
            ((*id, 7), ((*name).to_owned(), ticks(*user, *system)))
        };
        Sample {
            process: ticks(process.0, process.1),
            threads: threads.iter().map(thread).collect(),
        }
    }

    fn shares(shares: &Shares) -> Vec<(&str, u64, u64)> {
        shares.by.iter().map(|(name, it)| (name.as_str(), it.user, it.system)).collect()
    }

    #[test]
    fn every_thread_of_a_node_has_a_stage() {
        for kind in Thread::ALL {
            let name = format!("{}1", kind.prefix());
            let kept = &name[..name.len().min(15)];
            assert!(stage(kept) != OTHER && STAGES.contains(&stage(kept)), "{kept}");
        }
        assert_eq!(stage("stele-store-1"), "store");
        assert_eq!(stage("stele-maintain-"), "maintenance");
        assert_eq!(stage("stele"), OTHER);
        assert_eq!(stage("tokio-rt-worker"), OTHER);
    }

    #[test]
    fn threads_are_summed_by_stage_and_the_rest_is_other() {
        let before = sample((50, 20), &[(1, "stele", 1, 1), (2, "stele-store-1", 10, 5)]);
        let threads = [
            (1, "stele", 2, 1),
            (2, "stele-store-1", 30, 10),
            (3, "stele-store-2", 4, 1),
            (4, "stele-network", 7, 8),
        ];
        let used = sample((90, 40), &threads).since(&before, true);
        let expected =
            [("maintenance", 0, 0), ("network", 7, 8), ("other", 1 + 8, 6), ("store", 24, 6)];
        assert_eq!(shares(&used), expected);
        assert_eq!(used.threads_ended, 0);
    }

    #[test]
    fn a_thread_that_ended_is_counted_and_its_time_is_other() {
        let before = sample((20, 10), &[(1, "stele", 0, 0), (2, "stele-network", 9, 9)]);
        let mut now = sample((25, 13), &[(1, "stele", 0, 0)]);
        let used = now.since(&before, true);
        assert_eq!(used.threads_ended, 1);
        assert_eq!(used.by[OTHER], Ticks { user: 5, system: 3 });
        // A later thread reuses the ID.
        now.threads.insert((2, 8), ("stele-network".to_owned(), Ticks { user: 2, system: 0 }));
        let used = now.since(&before, true);
        assert_eq!((used.threads_ended, used.by["network"].user), (1, 2));
        assert_eq!(used.by[OTHER], Ticks { user: 3, system: 3 });
    }

    #[test]
    fn shares_are_never_negative_and_add_up_to_the_process() {
        // The threads report more user time than the process, and less time in total.
        let used = sample((10, 10), &[(1, "a", 12, 3)]).since(&sample((0, 0), &[]), false);
        assert_eq!(shares(&used), [("a", 12, 3), ("other", 0, 5)]);
        let used = sample((1, 1), &[(1, "a", 2, 2)]).since(&sample((0, 0), &[]), false);
        assert_eq!(shares(&used), [("a", 2, 2), ("other", 0, 0)]);
    }

    #[test]
    fn threads_of_other_servers_are_grouped_by_name() {
        assert_eq!(group("io_thd_12"), "io_thd");
        assert_eq!(group("redis-server"), "redis-server");
        assert_eq!(group("12"), "12");
    }
}
