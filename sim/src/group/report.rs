//! Node's side of the placement group: reports, joins and answers.

use super::{Answer, Call, Report, StalePeer};
use crate::plan::{MS, SECOND};
use crate::world::{Happening, World};
use bytes::Bytes;
use stele_placement::{NewStore, NodeReport, RegionReport, SYSTEM_REGION, StoreReport, Traffic};
use stele_raftstore::{Admin, AdminCall, Header, Input, Read};
use stele_storage::{LogStore, StateMachine};
use stele_types::{Region, RegionKind, RegionPhase, StoreIdent, keyspace};

/// Interval of reports if an operator runs, or after a missing answer.
const SOON_NANOS: u64 = 100 * MS;
/// Leaderless time after which a peer is reported as stale.
const STALE_AFTER_S: u64 = 3;
/// Period, in reports, of checking region sizes.
const SIZES_EVERY: u64 = 4;

impl World {
    pub(crate) fn report(&mut self, id: u64, incarnation: u64) {
        let now = self.now;
        let Some(node) =
            self.nodes.get_mut(&id).filter(|it| it.up && it.incarnation == incarnation)
        else {
            return;
        };
        if node.member.report_at > now {
            return;
        }
        let was_unanswered = std::mem::replace(&mut node.member.is_unanswered, true);
        node.member.sequence += 1;
        if was_unanswered {
            // The node that answered last does not answer: try all nodes in turn.
            node.member.leader_hint = None;
            node.member.all_wanted = true;
        }
        let interval = match was_unanswered {
            true => SOON_NANOS * 2,
            false => self.plan.heartbeat_nanos,
        };
        node.member.report_at = u64::MAX;
        self.report_in(id, interval);
        let to = self.group_leader_of(id);
        if let Some(call) = self.join_call(id) {
            self.call(id, to, call);
        }
        let report = self.make_report(id);
        if report.sequence.is_multiple_of(SIZES_EVERY) {
            self.split_large(id);
        }
        if !report.stores.is_empty() {
            self.call(id, to, Call::Report(report));
        }
    }

    /// Sends a report immediately in half of the cases after a store became leader, before it has
    /// applied all committed entries.
    pub(crate) fn elected(&mut self, number: u64) {
        let Some(id) = self.slots.get(&number).map(|slot| slot.node) else { return };
        let waits = self.nodes.get(&id).is_none_or(|node| node.member.is_unanswered);
        if !waits && self.rngs.pace.coin() {
            self.report_in(id, 0);
        }
    }

    /// Schedules a report in `nanos`, unless one comes earlier.
    fn report_in(&mut self, id: u64, nanos: u64) {
        let at = self.now + nanos;
        let Some(node) = self.nodes.get_mut(&id).filter(|it| it.member.report_at > at) else {
            return;
        };
        node.member.report_at = at;
        let incarnation = node.incarnation;
        self.after(nanos, Happening::Report { node: id, incarnation });
    }

    /// Returns the node that leads the placement group, as this node knows.
    fn group_leader_of(&mut self, id: u64) -> u64 {
        for number in self.slots_of(id) {
            let reader =
                self.slots.get(&number).and_then(|slot| slot.readers()?.get(SYSTEM_REGION));
            let leader = reader.and_then(|reader| reader.leader());
            let home = leader.and_then(|leader| self.homes.get(&leader.store));
            if let Some(slot) = home.and_then(|home| self.slots.get(home)) {
                return slot.node;
            }
        }
        let nodes = self.plan.nodes;
        let Some(node) = self.nodes.get(&id) else { return id };
        node.member.leader_hint.unwrap_or(1 + node.member.sequence % nodes)
    }

    fn call(&mut self, from: u64, to: u64, call: Call) {
        let is_lost = self.net.is_group_cut || self.nemesis.is_report_lost(from, self.now);
        let Some(node) = self.nodes.get(&from).filter(|_| !is_lost) else { return };
        let (incarnation, bytes) = (node.incarnation, 512);
        let ways = match from == to {
            true => vec![(1_000, false)],
            false => self.net.deliveries(&mut self.rngs.net, (from, to), self.now, bytes),
        };
        // A second copy has no further effect; some copies arrive after the sender's timeout.
        let is_slow = self.net.is_slow();
        for (delay, _) in ways.into_iter().filter(|(_, is_damaged)| !is_damaged) {
            let late = is_slow && self.rngs.net.below(4) == 0;
            let delay = delay + if late { self.rngs.net.below(3_000) * MS } else { 0 };
            let call = Box::new(call.clone());
            self.after(delay, Happening::Call { node: to, from, incarnation, call });
        }
    }

    fn join_call(&mut self, id: u64) -> Option<Call> {
        let address = self.nodes.get(&id)?.address();
        let new = |number: &u64| {
            let slot = self.slots.get(number)?;
            (slot.running.is_some() && slot.id.is_none()).then_some(slot)
        };
        let slots = self.slots_of(id);
        let slots: Vec<_> = slots.iter().filter_map(new).collect();
        if slots.is_empty() {
            return None;
        }
        let stores = slots
            .iter()
            .map(|slot| NewStore {
                token: Bytes::copy_from_slice(&slot.token.0.to_be_bytes()),
                capacity_bytes: self.plan.capacity_bytes,
                ..NewStore::default()
            })
            .collect();
        Some(Call::Join { address, slots: slots.iter().map(|slot| slot.number).collect(), stores })
    }

    fn make_report(&mut self, id: u64) -> Report {
        let (mut stores, mut regions, mut stale_peers) = (Vec::new(), Vec::new(), Vec::new());
        let mut orphaned_ranges = Vec::new();
        for number in self.slots_of(id) {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let Some(store) = slot.id else { continue };
            let engine = slot.engine().cloned();
            let stats = engine.as_ref().map(|engine| engine.stats()).unwrap_or_default();
            stores.push(StoreReport {
                id: store,
                capacity_bytes: self.plan.capacity_bytes,
                free_bytes: stats.device_free_bytes,
                used_bytes: stats.disk_bytes,
                is_full: engine.as_ref().is_some_and(|engine| engine.admit(1).is_err()),
                has_failed: slot.failed.is_some(),
                ..StoreReport::default()
            });
            let Some(core) = slot.core() else { continue };
            orphaned_ranges.push((store, core.orphaned_ranges()));
            for report in core.regions() {
                if report.leaderless_seconds >= STALE_AFTER_S {
                    let (region, epoch) = (report.region.id, report.region.epoch);
                    stale_peers.push(StalePeer { store, region, peer: report.peer.id, epoch });
                }
                if report.is_leading {
                    let size = engine.as_ref().map_or(0, |engine| size_of(engine, &report.region));
                    regions.push(region_report(report, size));
                }
            }
        }
        let Some(node) = self.nodes.get_mut(&id) else { unreachable!("every node is in the map") };
        let (address, started_at) = (node.address(), node.incarnation);
        Report {
            node: NodeReport { address, version: "simulated".into(), started_at },
            sequence: node.member.sequence,
            stores,
            regions,
            is_full: true,
            refusals: std::mem::take(&mut node.member.refusals),
            stale_peers,
            orphaned_ranges,
        }
    }

    pub(crate) fn answered(&mut self, id: u64, incarnation: u64, answer: Answer) {
        let Some(node) =
            self.nodes.get_mut(&id).filter(|it| it.up && it.incarnation == incarnation)
        else {
            return;
        };
        node.member.is_unanswered = false;
        match answer {
            Answer::Joined { ids } => ids.into_iter().for_each(|(slot, id)| self.joined(slot, id)),
            Answer::ReportReply {
                leader,
                orders,
                removed,
                owners,
                all_wanted,
                soon,
                term,
                leases,
            } => {
                // A deposed leader that still answers does not turn leases on again.
                let is_current = term >= node.member.settings_term;
                node.member.settings_term = node.member.settings_term.max(term);
                node.member.leader_hint = Some(leader);
                node.member.all_wanted = all_wanted;
                if is_current {
                    self.set_leases(id, leases);
                }
                if soon {
                    self.report_in(id, SOON_NANOS);
                }
                removed.into_iter().for_each(|peer| self.destroy(peer));
                for (store, owners) in owners {
                    if let Some(slot) = self.homes.get(&store).copied() {
                        self.push(slot, Input::Owners(owners));
                    }
                }
                orders.into_iter().for_each(|order| self.carry_out_order(id, order));
            }
        }
    }

    /// Turns leases on or off on a node's stores that have the other value.
    fn set_leases(&mut self, id: u64, leases: bool) {
        for number in self.slots_of(id) {
            let running = self.slots.get_mut(&number).and_then(|slot| slot.running.as_mut());
            let Some(running) = running.filter(|it| it.store_loop.is_some() && it.leases != leases)
            else {
                continue;
            };
            running.leases = leases;
            self.push(number, Input::Leases(leases));
        }
    }

    fn joined(&mut self, number: u64, store: stele_types::StoreId) {
        let Some(slot) = self.slots.get(&number).filter(|slot| slot.id.is_none()) else { return };
        let Some(engine) = slot.engine().cloned() else { return };
        let ident = StoreIdent { cluster: crate::plan::CLUSTER, store };
        let written = stele_raftstore::RaftStore::write_ident(&*engine, &ident);
        if let Err(error) = written.and_then(|()| self.start_core(number)) {
            let node = self.slots.get(&number).map_or(0, |slot| slot.node);
            self.trace.note(self.now, node, number, || format!("does not join: {error}"));
        }
    }

    fn destroy(&mut self, peer: StalePeer) {
        let Some(slot) = self.homes.get(&peer.store).copied() else { return };
        self.trouble_near(slot, 3);
        let header = Header { region: peer.region, ..Header::default() };
        let call = Admin::Destroy(peer.peer);
        self.request(slot, crate::world::Requester::Ignored, |id| {
            Input::Admin(AdminCall { id, header, call })
        });
    }

    /// Splits regions led here that are too large.
    fn split_large(&mut self, id: u64) {
        for number in self.slots_of(id) {
            let Some(slot) = self.slots.get(&number) else { continue };
            let (Some(engine), Some(readers)) = (slot.engine().cloned(), slot.readers().cloned())
            else {
                continue;
            };
            for region in readers.all() {
                let leads = readers.get(region.id).and_then(|reader| reader.leading_term());
                let is_whole = region.phase == RegionPhase::Normal && !region.is_joint();
                if leads.is_none() || region.kind != RegionKind::Data || !is_whole {
                    continue;
                }
                if size_of(&engine, &region) > self.plan.region_bytes_max {
                    self.split_in_half(number, &region, crate::world::Requester::Ignored);
                }
            }
        }
    }

    /// Splits a region at its middle, if it has one.
    pub(crate) fn split_in_half(
        &mut self,
        slot: u64,
        region: &Region,
        requester: crate::world::Requester,
    ) {
        let Some(engine) = self.engine(slot) else { return };
        let mut ranges = region.engine_ranges();
        ranges.sort_by_key(|range| engine.range_size(range).map_or(0, |size| size.bytes));
        let middle = ranges.last().and_then(|range| engine.split_key(range).ok().flatten());
        let key = middle.as_ref().and_then(keyspace::user_key);
        let key = key.filter(|key| *key > region.range.start);
        if let Some(key) = key {
            self.split_at(slot, region, key, requester);
        }
    }

    /// Splits a region at a key, if the placement group has ids.
    pub(crate) fn split_at(
        &mut self,
        slot: u64,
        region: &Region,
        key: Bytes,
        requester: crate::world::Requester,
    ) {
        let Some(mut ids) = self.take_ids(1 + region.peers.len() as u64) else { return };
        let Some(first) = ids.next() else { return };
        let new = stele_raftstore::NewRegion {
            region: stele_types::RegionId(first),
            peers: ids.map(stele_types::PeerId).collect(),
        };
        let header =
            Header { region: region.id, version: Some(region.epoch.version), ..Header::default() };
        let call = Admin::Split { keys: vec![key], new_ids: vec![new] };
        self.request(slot, requester, |id| Input::Admin(AdminCall { id, header, call }));
    }

    pub(crate) fn group_read(&mut self, slot: u64, requester: crate::world::Requester, term: u64) {
        let header = Header { region: SYSTEM_REGION, term, ..self.patient(slot) };
        self.request(slot, requester, |id| Input::Read(Read { id, header, replica: false }));
    }

    /// Returns a header with a deadline in five seconds.
    pub(crate) fn patient(&self, slot: u64) -> Header {
        let node = self.slots.get(&slot).and_then(|slot| self.nodes.get(&slot.node));
        let local = node.map_or(0, |node| node.local(self.now));
        Header { deadline_nanos: local + 5 * SECOND, ..Header::default() }
    }
}

/// Returns the estimated bytes of a region.
fn size_of(engine: &stele_engine::Store, region: &Region) -> u64 {
    let size = |range| engine.range_size(&range).map_or(0, |size| size.bytes);
    region.engine_ranges().into_iter().map(size).sum()
}

fn region_report(report: stele_raftstore::RegionReport, size_bytes: u64) -> RegionReport {
    RegionReport {
        leader: report.peer,
        term: report.term,
        down: report
            .down_peers
            .iter()
            .map(|(peer, seconds)| stele_placement::DownPeer { peer: peer.id, seconds: *seconds })
            .collect(),
        pending: report.pending_peers.iter().map(|peer| peer.id).collect(),
        size_bytes: size_bytes.max(1),
        keys: size_bytes / 100,
        traffic: Traffic {
            written_bytes: report.traffic.write_bytes,
            writes: report.traffic.write_ops,
            reads: report.traffic.read_ops,
            interval_millis: 1_000,
            ..Traffic::default()
        },
        region: report.region,
    }
}
