//! Checks that lists of changed regions leave nothing out.

use crate::world::World;
use stele_replica::RegionReport;
use stele_types::LogIndex;

impl World {
    /// Compares what a node collected of a store with the reports of all its regions now.
    pub(crate) fn check_collected(&mut self, number: u64) {
        let Some(slot) = self.slots.get_mut(&number) else { return };
        let (node, Some(store)) = (slot.node, slot.id) else { return };
        let Some(core) = slot.core() else { return };
        let reported = |report: RegionReport| RegionReport { truncated: LogIndex(0), ..report };
        let all: Vec<_> = core.regions().into_iter().map(reported).collect();
        let Some(member) = self.nodes.get(&node).map(|node| &node.member) else { return };
        let collected: Vec<_> = member.collected(store).cloned().map(reported).collect();
        if collected != all {
            let text = match all.iter().zip(&collected).find(|(now, known)| now != known) {
                Some((now, known)) => format!("{known:?}, and it is {now:?}"),
                None => format!("{} regions of {}", collected.len(), all.len()),
            };
            self.fail(format!("node {node} collected of store {number}: {text}"));
        }
    }
}
