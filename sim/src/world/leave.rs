//! Orderly stop of a node: it hands its leaders over before its stores close, as a server does.

use super::{Happening, Requester, Stop, World};
use crate::nemesis::Undo;
use crate::plan::SECOND;
use std::collections::BTreeMap;
use stele_node::hand_over::{HandOver, Transfer};
use stele_node::report::steps;
use stele_replica::{Admin, RegionReport, Reply};
use stele_types::{RegionId, StoreId};

/// Time for the hand-over of all leaders.
const LIMIT_NANOS: u64 = 5 * SECOND;

pub(crate) struct Leaving {
    number: u64,
    state: HandOver,
    under_way: BTreeMap<RegionId, Transfer>,
    pause_nanos: u64,
    /// Whether it restarts with the other settings.
    is_upgraded: bool,
}

impl World {
    /// Lets a node hand its leaders over and stop; it starts again after `pause_nanos`, with the other
    /// settings if it `is_upgraded`.
    pub fn leave(&mut self, node: u64, pause_nanos: u64, is_upgraded: bool) {
        let is_up = self.nodes.get(&node).is_some_and(|node| node.up);
        if !is_up || self.leaving.contains_key(&node) {
            return;
        }
        let slots = self.slots_of(node);
        let stores = slots.iter().filter_map(|number| self.slots.get(number)?.id);
        let (state, under_way) = (HandOver::new(stores), BTreeMap::new());
        let number = self.number();
        let leaving = Leaving { number, state, under_way, pause_nanos, is_upgraded };
        self.leaving.insert(node, leaving);
        self.trace.note(self.now, node, 0, || "hands its leaders over".into());
        self.after(LIMIT_NANOS, Happening::Leave { node, number });
        self.hand_over(node);
    }

    /// Begins the next transfers; the node stops when there are none.
    fn hand_over(&mut self, node: u64) {
        let reports = self.reports_of(node);
        let Some(leaving) = self.leaving.get_mut(&node) else { return };
        let number = leaving.number;
        let transfers = leaving.state.next(&reports);
        for transfer in &transfers {
            leaving.under_way.insert(transfer.region.id, transfer.clone());
        }
        if transfers.is_empty() {
            return self.left(node, number);
        }
        for Transfer { from, region, to } in transfers {
            let Some(slot) = self.slot_on(node, from) else { continue };
            let requester = Requester::HandOver { node, number, region: region.id };
            self.request(slot, requester, steps::request(&region, Admin::TransferLeader(to.id)));
        }
    }

    /// Takes the reply to a transfer; `None` if its store stopped.
    pub(super) fn transfer_ended(
        &mut self,
        (node, number): (u64, u64),
        region: RegionId,
        reply: Option<Reply>,
    ) {
        let leaving = self.leaving.get_mut(&node).filter(|leaving| leaving.number == number);
        let Some(leaving) = leaving else { return };
        let Some(transfer) = leaving.under_way.remove(&region) else { return };
        match reply.map(steps::outcome) {
            Some(Ok(None)) => self.counts.handed_over += 1,
            _ => leaving.state.note_failed(&transfer),
        }
        if leaving.under_way.is_empty() {
            self.hand_over(node);
        }
    }

    /// Stops a node that has handed its leaders over, or had no more time.
    pub(super) fn left(&mut self, node: u64, number: u64) {
        if self.leaving.get(&node).is_none_or(|leaving| leaving.number != number) {
            return;
        }
        let Some(leaving) = self.leaving.remove(&node) else { return };
        let is_up = self.nodes.get(&node).is_some_and(|node| node.up);
        self.stop_node(node, Stop::Clean);
        if let Some(it) = self.nodes.get_mut(&node).filter(|_| leaving.is_upgraded) {
            it.is_upgraded = !it.is_upgraded;
        }
        // A fault that stopped it meanwhile starts it again.
        if is_up {
            self.after(leaving.pause_nanos, Happening::Undo(Undo::Start(node)));
        }
    }

    fn reports_of(&mut self, node: u64) -> Vec<(StoreId, RegionReport)> {
        let mut reports = Vec::new();
        for number in self.slots_of(node) {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let Some(store) = slot.id else { continue };
            let regions = slot.core().map(|core| core.regions()).unwrap_or_default();
            reports.extend(regions.into_iter().map(|report| (store, report)));
        }
        reports
    }
}
