//! Hardware of a run: speed and size of each device, labels of each node. All of it follows from the
//! seed and the kinds of faults, apart from the other draws of a plan.

use crate::faults::{Fault, FaultSet};
use crate::plan::{Plan, fork, pick};
use stele_types::OpCost;

/// Cost of the fastest device's synced writes: 7,500 of 16 KiB a second.
const FASTEST_WRITE: OpCost = OpCost { fixed_nanos: 100_000, picos_per_byte: 2_000 };
const FASTEST_READ: OpCost = OpCost { fixed_nanos: 50_000, picos_per_byte: 1_000 };
/// Virtual seconds between two flips of all speeds.
pub const FLIP_SECONDS: u64 = 20;
/// Capacities of small devices: logs and garbage fill some of them during a run.
const SMALL_BYTES: [u64; 3] = [1 << 20, 2 << 20, 8 << 20];
/// Usable space of devices of which most is reserved: live data fills some of them during a run.
const USABLE_BYTES: [u64; 4] = [40 << 10, 100 << 10, 250 << 10, 600 << 10];

/// Cost of a device's operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Cost of a synced write.
    pub write: OpCost,
    /// Cost of a read.
    pub read: OpCost,
}

impl Profile {
    /// Returns the profile of a device that is slower by this factor.
    pub fn slower(self, times: u64) -> Self {
        let slow = |cost: OpCost| OpCost {
            fixed_nanos: cost.fixed_nanos * times,
            picos_per_byte: cost.picos_per_byte * times,
        };
        Self { write: slow(self.write), read: slow(self.read) }
    }
}

/// Returns the profile of a store's device after a number of flips; `None` in a run in which all
/// devices are alike and stores report no speed.
pub fn profile(plan: &Plan, number: u64, flips: u64) -> Option<Profile> {
    if !plan.faults.has_of_hardware() {
        return None;
    }
    let fastest = Profile { write: FASTEST_WRITE, read: FASTEST_READ };
    let mut of_run = fork(plan.seed, "devices");
    let mut of_store = fork(plan.seed, &format!("device of {number}"));
    let is_odd = (number + flips) % 2 == 1;
    let times = match plan.faults {
        faults if faults.has(Fault::SpeedFlip) => match is_odd {
            true => pick(&mut of_run, &[3, 10, 30]),
            false => 1,
        },
        faults if faults.has(Fault::UnequalDevices) => match of_run.below(4) {
            // Equal devices, fast or slow.
            0 => pick(&mut of_run, &[1, 5]),
            // One kind beside another.
            1 => [1, pick(&mut of_run, &[2, 10, 30])][usize::from(is_odd)],
            _ => pick(&mut of_store, &[1, 1, 2, 5, 10, 30]),
        },
        _ => 1,
    };
    Some(fastest.slower(times))
}

/// Size of a small device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Small {
    /// So many bytes in all.
    Capacity(u64),
    /// So many usable bytes of a large device.
    Usable(u64),
}

/// Returns the size of a store's device; `None` if it is large.
pub fn small(plan: &Plan, number: u64) -> Option<Small> {
    let mut of_store = fork(plan.seed, &format!("capacity of {number}"));
    match of_store.below(4) {
        _ if !plan.faults.has(Fault::SmallDevice) => None,
        0 => Some(Small::Capacity(pick(&mut of_store, &SMALL_BYTES))),
        1 | 2 => Some(Small::Usable(pick(&mut of_store, &USABLE_BYTES))),
        _ => None,
    }
}

/// Returns the labels of a node in an incarnation; `None` in a run in which nodes report none.
pub fn labels(plan: &Plan, node: u64, incarnation: u64) -> Option<Vec<(String, String)>> {
    if !plan.faults.has(Fault::Labels) {
        return None;
    }
    let mut of_run = fork(plan.seed, "labels");
    let replicas = plan.settings.iter().find(|(name, _)| *name == "replicas");
    let replicas = replicas.map_or(3, |(_, value)| *value);
    // Racks: none, enough for the replicas, or too few; in some runs within zones, which are too few.
    let racks = match of_run.below(4) {
        0 => return Some(Vec::new()),
        1 => 2,
        _ => replicas + of_run.below(2),
    };
    let zones = of_run.coin().then_some(2);
    let mut of_node = fork(plan.seed, &format!("labels of {node} in {incarnation}"));
    // Some nodes are in another rack after a restart, and some nodes have no label.
    let place = match of_node.below(8) {
        0 | 1 => of_node.draw(),
        2 => return Some(Vec::new()),
        _ => node,
    };
    let label = |name: &str, count: u64| (name.to_owned(), format!("{name}{}", place % count));
    let zone = zones.map(|count| label("zone", count));
    Some(zone.into_iter().chain([label("rack", racks)]).collect())
}

/// Number of values of the setting `placement_mode`.
pub const MODES: u64 = 4;

/// Draws settings of the placement group for a run with faults of hardware.
pub fn settings(seed: u64, faults: FaultSet) -> Vec<(&'static str, u64)> {
    let mut prng = fork(seed, "placement settings");
    let mut settings = vec![("slow_data_after_seconds", pick(&mut prng, &[10, 20, 600]))];
    if faults.has(Fault::ModeChange) {
        settings.push(("placement_mode", prng.below(MODES)));
    }
    settings
}

/// Returns the least duration of a run with these faults, in seconds.
pub fn seconds_min(seed: u64, faults: FaultSet) -> u64 {
    let mut prng = fork(seed, "duration");
    match faults {
        _ if faults.has(Fault::SpeedFlip) => 2 * FLIP_SECONDS + prng.below(FLIP_SECONDS),
        _ if faults.has(Fault::SlowDevice) => 15 + prng.below(15),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Mode;
    use std::collections::BTreeSet;

    fn plan_with(seed: u64, faults: &[Fault]) -> Plan {
        let mut plan = Plan { faults: FaultSet::default(), ..Plan::draw(seed, Mode::Safety) };
        faults.iter().for_each(|fault| plan.faults.insert(*fault));
        plan
    }

    #[test]
    fn devices_keep_their_speed_until_a_flip_and_differ_by_up_to_thirty_times() {
        let nanos = |plan: &Plan, number, flips| {
            profile(plan, number, flips).unwrap().write.nanos(16 << 10)
        };
        let mut ratios = BTreeSet::new();
        for seed in 0..50 {
            let plan = plan_with(seed, &[Fault::UnequalDevices]);
            let speeds: Vec<u64> = (1..=6).map(|number| nanos(&plan, number, 0)).collect();
            ratios.insert(speeds.iter().max().unwrap() / speeds.iter().min().unwrap());
        }
        assert!(ratios.contains(&1) && ratios.contains(&30), "{ratios:?}");
        let plan = plan_with(7, &[Fault::SpeedFlip]);
        assert!(nanos(&plan, 1, 0) >= 3 * nanos(&plan, 2, 0));
        assert!(nanos(&plan, 2, 1) >= 3 * nanos(&plan, 1, 1));
        assert_eq!(profile(&plan_with(7, &[Fault::Loss]), 1, 0), None);
    }

    #[test]
    fn runs_have_no_labels_enough_racks_or_too_few() {
        let racks_of = |seed| {
            let plan = plan_with(seed, &[Fault::Labels]);
            let of_node = |node| labels(&plan, node, 1).unwrap();
            let racks = (1..=7).flat_map(of_node).filter(|(name, _)| name == "rack");
            racks.map(|(_, value)| value).collect::<BTreeSet<_>>().len()
        };
        let counts: BTreeSet<usize> = (0..50).map(racks_of).collect();
        assert!(counts.contains(&0) && counts.contains(&2) && counts.contains(&3), "{counts:?}");
        assert_eq!(labels(&plan_with(7, &[Fault::Loss]), 1, 1), None);
    }
}
