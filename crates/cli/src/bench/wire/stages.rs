//! Processor time of a process by what its threads are for.

use crate::bench::process_io::{Task, Ticks, seconds};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use stele_server::threads::Thread;
use stele_types::Result;

/// The stages of a Stele node.
pub const STAGES: [&str; 4] = ["network", "store", "maintenance", OTHER];
/// Threads of no stage, the one that starts the process among them, and those that ended between two
/// looks.
const OTHER: &str = "other";

/// Which stage a thread of a Stele node belongs to.
fn stage(name: &str) -> &'static str {
    let kind = Thread::ALL.into_iter().find(|kind| name.starts_with(kind.prefix()));
    match kind {
        Some(Thread::Network) => "network",
        Some(Thread::Store) => "store",
        Some(Thread::Maintenance | Thread::EntryRecovery) => "maintenance",
        None => OTHER,
    }
}

/// Threads of other servers belong together if only numbers tell their names apart.
fn group(name: &str) -> &str {
    let group = name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '-' | '_' | '#'));
    if group.is_empty() { name } else { group }
}

/// A process and its threads at one moment.
#[derive(Debug)]
pub struct Look {
    pub process: Ticks,
    /// By number and start.
    threads: BTreeMap<(u32, u64), (String, Ticks)>,
}

/// What a process used between two looks.
#[derive(Debug, PartialEq, Eq)]
pub struct Shares {
    by: BTreeMap<String, Ticks>,
    pub threads_ended: usize,
}

impl Look {
    pub fn at(pid: u32) -> Result<Self> {
        let threads = Task::threads(pid)?.into_iter();
        let threads = threads.map(|(id, it)| ((id, it.started), (it.name, it.ticks))).collect();
        // After its threads: it has used no less than they.
        Ok(Self { process: Task::process(pid)?.ticks, threads })
    }

    /// What was used since `before`, by stage if it is Stele's, else by groups of names. What the process
    /// used and none of its living threads did is `other`: the ends of threads that are gone.
    pub fn since(&self, before: &Self, is_stele: bool) -> Shares {
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
        // The kernel splits user from system time for the process anew, not from those of its threads.
        let user = whole.user.saturating_sub(known.user).min(rest);
        let other = by.entry(OTHER.to_owned()).or_default();
        *other = other.plus(Ticks { user, system: rest - user });
        let threads_ended =
            before.threads.keys().filter(|id| !self.threads.contains_key(id)).count();
        Shares { by, threads_ended }
    }
}

impl Shares {
    /// Microseconds per operation.
    pub fn to_json(&self, operations: u64) -> Value {
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

    fn look(process: (u64, u64), threads: &[(u32, &str, u64, u64)]) -> Look {
        let ticks = |user, system| Ticks { user, system };
        let thread = |(id, name, user, system): &(u32, &str, u64, u64)| {
            ((*id, 7), ((*name).to_owned(), ticks(*user, *system)))
        };
        Look { process: ticks(process.0, process.1), threads: threads.iter().map(thread).collect() }
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
        let before = look((50, 20), &[(1, "stele", 1, 1), (2, "stele-store-1", 10, 5)]);
        let threads = [
            (1, "stele", 2, 1),
            (2, "stele-store-1", 30, 10),
            (3, "stele-store-2", 4, 1),
            (4, "stele-network", 7, 8),
        ];
        let used = look((90, 40), &threads).since(&before, true);
        let expected =
            [("maintenance", 0, 0), ("network", 7, 8), ("other", 1 + 8, 6), ("store", 24, 6)];
        assert_eq!(shares(&used), expected);
        assert_eq!(used.threads_ended, 0);
    }

    #[test]
    fn a_thread_that_ended_is_counted_and_its_time_is_other() {
        let before = look((20, 10), &[(1, "stele", 0, 0), (2, "stele-network", 9, 9)]);
        let mut now = look((25, 13), &[(1, "stele", 0, 0)]);
        let used = now.since(&before, true);
        assert_eq!(used.threads_ended, 1);
        assert_eq!(used.by[OTHER], Ticks { user: 5, system: 3 });
        // Its number is another thread's now, which began later.
        now.threads.insert((2, 8), ("stele-network".to_owned(), Ticks { user: 2, system: 0 }));
        let used = now.since(&before, true);
        assert_eq!((used.threads_ended, used.by["network"].user), (1, 2));
        assert_eq!(used.by[OTHER], Ticks { user: 3, system: 3 });
    }

    #[test]
    fn shares_are_never_negative_and_add_up_to_the_process() {
        // Its threads tell more user time than the process, and less in all.
        let used = look((10, 10), &[(1, "a", 12, 3)]).since(&look((0, 0), &[]), false);
        assert_eq!(shares(&used), [("a", 12, 3), ("other", 0, 5)]);
        let used = look((1, 1), &[(1, "a", 2, 2)]).since(&look((0, 0), &[]), false);
        assert_eq!(shares(&used), [("a", 2, 2), ("other", 0, 0)]);
    }

    #[test]
    fn threads_of_other_servers_are_grouped_by_name() {
        assert_eq!(group("io_thd_12"), "io_thd");
        assert_eq!(group("redis-server"), "redis-server");
        assert_eq!(group("12"), "12");
    }
}
