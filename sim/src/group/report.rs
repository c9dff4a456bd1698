//! Node's side of the placement group: reports, joins and answers.

use super::{Call, PlacementAnswer};
use crate::hardware;
use crate::plan::{MS, SECOND};
use crate::world::{Happening, Requester, World};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use stele_node::report::split::{Limits, balanced_key, ids_wanted, size_of};
use stele_node::report::{Obstacle, StalePeer, steps};
use stele_placement::{FollowedFrom, NewStore, NodeReport, SYSTEM_REGION, StoreReport};
use stele_replica::{Admin, Header, Input, Read, Reply};
use stele_storage::{LogStore, StateMachine};
use stele_types::{DeviceSpeed, Level, Lineage, LogIndex, Region, RegionId, StoreId, StoreIdent};

/// Interval of reports if an operator runs, or after a missing answer.
const SOON_NANOS: u64 = 100 * MS;
/// Bytes of a write by which a store measures its device.
const MEASURED_BYTES: u64 = 4 << 10;
/// Period, in reports, of checking region sizes.
const SIZES_EVERY: u64 = 4;
/// Reports in a row without an answer after which the operator looks for a node's cluster.
const UNANSWERED_MAX: u64 = 100;

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
        let was_unanswered = node.member.unanswered > 0;
        node.member.unanswered += 1;
        if was_unanswered {
            // The node that answered last does not answer: try all nodes in turn.
            node.member.leader_hint = None;
            node.member.reporter.failed();
        }
        let interval = match was_unanswered {
            true => SOON_NANOS * 2,
            false => self.plan.heartbeat_nanos,
        };
        node.member.report_at = u64::MAX;
        self.report_in(id, interval);
        let to = self.group_leader_of(id);
        if let Some((call, to)) = self.join_call(id).zip(to) {
            self.call(id, to, call);
        }
        if self.nodes.get(&id).is_some_and(|node| {
            let reporter = &node.member.reporter;
            reporter.has_unmeasured() || reporter.sequence().is_multiple_of(SIZES_EVERY)
        }) {
            self.split_large(id);
        }
        if let Some((call, to)) = self.report_call(id).zip(to) {
            self.call(id, to, call);
        }
    }

    /// Sends a report immediately in half of the cases after a store became leader, before it has
    /// applied all committed entries.
    pub(crate) fn elected(&mut self, number: u64) {
        let Some(id) = self.slots.get(&number).map(|slot| slot.node) else { return };
        let waits = self.nodes.get(&id).is_none_or(|node| node.member.unanswered > 0);
        if !waits && self.rngs.pace.coin() {
            self.report_in(id, 0);
        }
    }

    /// Schedules a report in `nanos`, unless one comes earlier.
    pub(super) fn report_in(&mut self, id: u64, nanos: u64) {
        let at = self.now + nanos;
        let Some(node) = self.nodes.get_mut(&id).filter(|it| it.member.report_at > at) else {
            return;
        };
        node.member.report_at = at;
        let incarnation = node.incarnation;
        self.after(nanos, Happening::Report { node: id, incarnation });
    }

    /// Returns the node that this one asks as leader of the placement group: the one that it knows, or one
    /// of the others after the other. One that has not joined asks also those that the operator names in
    /// `join`, and so does one that knows no other, or of which all others answer at new addresses: the
    /// operator starts it again with a present address.
    fn group_leader_of(&self, id: u64) -> Option<u64> {
        if let Some(leader) = self.known_group_leader(id) {
            return self.node_at(&leader);
        }
        let (node, table) = (self.nodes.get(&id)?, self.table(id)?);
        let is_other = |address: &String| *address != node.address();
        let seeds = || (1..=self.plan.nodes).filter_map(|seed| self.address_of(seed));
        let mut others: Vec<String> = table.addresses().into_iter().filter(is_other).collect();
        let finds_none = node.member.unanswered > UNANSWERED_MAX;
        if others.is_empty() || table.known().own.is_empty() || finds_none {
            others = seeds().filter(is_other).chain(others).collect();
        }
        let next = node.member.reporter.sequence().checked_rem(others.len() as u64)?;
        self.node_at(others.get(next as usize)?)
    }

    pub(super) fn known_group_leader(&self, id: u64) -> Option<String> {
        for number in self.slots_of(id) {
            let reader =
                self.slots.get(&number).and_then(|slot| slot.readers()?.get(SYSTEM_REGION));
            let leader = reader.and_then(|reader| reader.leader());
            if let Some(known) = leader.and_then(|leader| self.known_run(id, leader.store)) {
                return Some(known.address.clone());
            }
        }
        self.nodes.get(&id)?.member.leader_hint.clone()
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
        let labels = self.labels(id).unwrap_or_default();
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
                capacity_bytes: self.capacity_bytes(slot.number),
                labels: labels.clone(),
            })
            .collect();
        Some(Call::Join { address, slots: slots.iter().map(|slot| slot.number).collect(), stores })
    }

    /// Returns the next report, unless no store of the node joined.
    fn report_call(&mut self, id: u64) -> Option<Call> {
        let (mut stores, mut kept): (Vec<StoreReport>, _) = (Vec::new(), BTreeSet::new());
        for number in self.slots_of(id) {
            stores.extend(self.store_report(number));
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let Some(store) = slot.id else { continue };
            let Some(core) = slot.core() else { continue };
            let reporter = &mut self.nodes.get_mut(&id)?.member.reporter;
            reporter.collect(store, &core.changed_regions(reporter.collected(store)));
            kept.insert(store);
            // Replicas that refuse entries make the store full.
            let refuses_entries = reporter.refuses_entries(store);
            if let Some(report) = stores.last_mut().filter(|report| report.id == store) {
                report.is_full |= refuses_entries;
            }
        }
        self.slots_of(id).into_iter().for_each(|number| self.check_collected(number));
        let has_stores = !stores.is_empty();
        let lineages = stores.iter().filter_map(|store| self.lineage(id, store.id)).collect();
        let (labels, now) = (self.labels(id), self.now);
        let node = self.nodes.get_mut(&id)?;
        let (address, started_at) = (node.address(), node.incarnation);
        let version = "simulated".into();
        let region_bytes_max = self.plan.region_bytes_max;
        let boot_nonce = node.boot_nonce();
        let unix_s = node.now(now).unix_seconds();
        let this = NodeReport {
            address,
            version,
            started_at,
            boot_nonce,
            lineages,
            region_bytes_max,
            labels,
            unix_s,
            access_version: Some(0),
            level: Level::NEWEST,
            followed: node.member.followed.needed(node.local(now)),
            ..NodeReport::default()
        };
        let member = &mut node.member;
        member.reporter.keep_stores(&kept);
        member.reporter.note_sizes(member.splitter.take_changed());
        let report = member.reporter.report(this, stores, member.splitter.sizes());
        let members_version = node.table.known().version;
        let report = Box::new(report);
        has_stores.then_some(Call::Report { report, members_version })
    }

    fn lineage(&self, node: u64, store: StoreId) -> Option<(StoreId, Lineage)> {
        Some((store, self.run_of(self.slot_on(node, store)?).lineage))
    }

    /// Returns the report of a store that joined. In a run without faults of hardware it lacks the
    /// fields that reports of earlier versions lack.
    fn store_report(&mut self, number: u64) -> Option<StoreReport> {
        let (capacity_bytes, receiving) = (self.capacity_bytes(number), self.receiving(number));
        let (usable_bytes, run) = (self.usable_bytes(number), self.run_of(number));
        let slot = self.slots.get_mut(&number)?;
        let receiving = receiving.max(std::mem::take(&mut slot.receptions_begun));
        let engine = slot.engine().cloned();
        let stats = engine.as_ref().map(|engine| engine.stats()).unwrap_or_default();
        let mut report = StoreReport {
            id: slot.id?,
            capacity_bytes,
            free_bytes: stats.device_free_bytes,
            used_bytes: stats.disk_bytes,
            is_full: engine.as_ref().is_some_and(|engine| engine.space().is_full),
            has_failed: slot.failed.is_some(),
            slowdown_nanos_per_kib: slot.running.as_ref().map_or(0, |it| it.writers.own()),
            boot_count: run.boot.count,
            level: engine.as_ref().map(|engine| engine.level()).unwrap_or_default(),
            ..StoreReport::default()
        };
        if let Some(times) = slot.device.times() {
            (report.live_bytes, report.usable_bytes) = (stats.live_bytes_estimate, usable_bytes);
            report.append_age_ms = times.append_age_nanos(self.now) / MS;
            report.append_p99_nanos = times.write_p99_nanos(self.now);
            (report.device, report.receiving) = (times.speed(self.now), receiving);
            let is_nearly_full = report.live_bytes * 100 >= report.usable_bytes * 95;
            self.counts.nearly_full += u64::from(is_nearly_full);
        }
        Some(report)
    }

    pub(crate) fn labels(&self, id: u64) -> Option<Vec<(String, String)>> {
        let incarnation = self.nodes.get(&id)?.incarnation;
        hardware::labels(&self.plan, id, incarnation)
    }

    pub(crate) fn answered(&mut self, id: u64, incarnation: u64, answer: PlacementAnswer) {
        let Some(node) =
            self.nodes.get_mut(&id).filter(|it| it.up && it.incarnation == incarnation)
        else {
            return;
        };
        node.member.unanswered = 0;
        match answer {
            PlacementAnswer::NotLeader { leader } => {
                node.member.reporter.failed();
                node.member.leader_hint = Some(leader);
                self.report_in(id, SOON_NANOS * 2);
            }
            PlacementAnswer::Joined { ids, members, levels } => {
                ids.into_iter().for_each(|(slot, id)| self.joined(slot, id, levels.recorded));
                self.update_members(id, &members);
            }
            PlacementAnswer::Report { leader, answer, members, levels } => {
                node.member.leader_hint = Some(leader);
                members.into_iter().for_each(|members| self.update_members(id, &members));
                let Some(node) = self.nodes.get_mut(&id) else { return };
                let (is_busy, unix_s) = (answer.is_busy, answer.unix_s);
                let followed = answer.followed.clone();
                let (measured, slowdowns) = (answer.measured.clone(), answer.slowdowns.clone());
                let (steps, removed) = node.member.reporter.answered(answer);
                self.set_leases(id);
                self.update_level(id, levels);
                self.learn_slowdowns(id, &slowdowns);
                followed.into_iter().for_each(|needed| self.keep_for_readers(id, &needed));
                self.learn_cluster_time(id, unix_s);
                measured.into_iter().for_each(|store| self.measure_device(id, store));
                if is_busy {
                    self.report_in(id, SOON_NANOS);
                }
                removed.iter().for_each(|peer| self.destroy(id, peer));
                steps.iter().for_each(|step| self.carry_out_step(id, step));
            }
        }
    }

    /// Makes the stores of a node keep what readers of logs need.
    fn keep_for_readers(&mut self, id: u64, needed: &FollowedFrom) {
        if !self.plan.follows {
            return;
        }
        for number in self.slots_of(id) {
            let Some(slot) = self.slots.get(&number) else { continue };
            let (Some(engine), Some(node)) = (slot.engine(), self.nodes.get_mut(&id)) else {
                continue;
            };
            let store = (number, slot.incarnation);
            if node.member.kept.get(&store) == Some(needed) {
                continue;
            }
            let above =
                needed.iter().map(|(region, next)| (*region, LogIndex(next.0.saturating_sub(1))));
            match engine.pin_history(&above.collect()) {
                Ok(_) => _ = node.member.kept.insert(store, needed.clone()),
                Err(error) => self.check_read_error(number, &error),
            }
        }
    }

    /// Writes what a store writes to measure its device, and notes the times of that.
    fn measure_device(&mut self, id: u64, store: StoreId) {
        let Some(number) = self.slot_on(id, store) else { return };
        self.counts.device_measurements += 1;
        let Some(slot) = self.slots.get(&number) else { return };
        // The writes to a device that hangs take longer than the run.
        let hangs = slot.stalled_until.max(slot.hangs_until) > self.now;
        let Some(engine) = slot.engine().filter(|_| !hangs).cloned() else { return };
        // Fails as a write of the store does, which then ends the store.
        if engine.measure_writes().is_err() {
            return;
        }
        let nanos = slot.device.write_nanos(MEASURED_BYTES);
        if let Some(times) = slot.device.times() {
            for _ in 0..DeviceSpeed::OPERATIONS_MIN {
                times.note_write(self.now.saturating_sub(nanos), self.now, MEASURED_BYTES);
            }
        }
    }

    fn learn_cluster_time(&mut self, id: u64, unix_s: u64) {
        self.latest_cluster_s = self.latest_cluster_s.max(unix_s);
        for number in self.slots_of(id) {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            if let Some(engine) = slot.engine() {
                engine.note_cluster_time(unix_s);
            }
            if slot.core().is_some() {
                self.push(number, Input::ClusterTime(unix_s));
            }
        }
    }

    /// Turns leases on or off on a node's stores that have not received the value.
    fn set_leases(&mut self, id: u64) {
        for number in self.slots_of(id) {
            let Some(slot) = self.slots.get_mut(&number) else { continue };
            let (incarnation, has_core) = (slot.incarnation, slot.core().is_some());
            let (Some(store), Some(node)) = (slot.id, self.nodes.get_mut(&id)) else { continue };
            let settings = &mut node.member.reporter.settings;
            if has_core && let Some(leases) = settings.take_leases_for(store, incarnation) {
                self.push(number, Input::Leases(leases));
            }
        }
    }

    fn joined(&mut self, number: u64, store: StoreId, level: Level) {
        let Some(slot) = self.slots.get(&number).filter(|slot| slot.id.is_none()) else { return };
        let Some(engine) = slot.engine().cloned() else { return };
        let tick = self.plan.recorded_tick();
        let ident = StoreIdent { tick, ..StoreIdent::new(crate::plan::CLUSTER, store) };
        // Invariant: a store of the cluster records its level before it has its identity.
        let recorded = engine.record_level(level);
        let written =
            recorded.and_then(|()| stele_replica::RaftStore::write_ident(&*engine, &ident));
        if let Err(error) = written.and_then(|()| self.start_core(number)) {
            let node = self.slots.get(&number).map_or(0, |slot| slot.node);
            self.trace.note(self.now, node, number, || format!("does not join: {error}"));
        }
        self.add_own(number);
    }

    fn destroy(&mut self, id: u64, peer: &StalePeer) {
        let Some(slot) = self.slot_on(id, peer.store) else { return };
        self.trouble_near(slot, 3);
        self.request(slot, Requester::Ignored, peer.destroy());
    }

    fn split_large(&mut self, id: u64) {
        let limits = Limits { bytes_max: self.plan.region_bytes_max, ops_max: 0 };
        let mut led = Vec::new();
        for number in self.slots_of(id) {
            let Some(slot) = self.slots.get(&number) else { continue };
            let (Some(engine), Some(readers)) = (slot.engine().cloned(), slot.readers().cloned())
            else {
                continue;
            };
            for region in readers.all() {
                if readers.get(region.id).and_then(|reader| reader.leading_term()).is_none() {
                    continue;
                }
                led.push(region.id);
                let applied = readers.get(region.id).map_or(LogIndex(0), |reader| reader.applied());
                let now = self.split_time(id);
                let Some(node) = self.nodes.get_mut(&id) else { continue };
                let splitter = &mut node.member.splitter;
                let size = match splitter.size_without_measuring(&region, applied, now) {
                    Some(size) => size,
                    None => {
                        let Ok(size) = size_of(&*engine, &region.engine_ranges()) else { continue };
                        splitter.note_measuring(&region, applied, now);
                        size
                    }
                };
                if node.member.splitter.measured(&region, size, limits, now).is_none() {
                    continue;
                }
                let call = balanced_key(&*engine, &region, &size, limits)
                    .and_then(|key| self.split_call(&region, vec![key]));
                let version = region.epoch.version;
                match call {
                    Ok(call) => {
                        let by = Requester::Split { node: id, region: region.id, version };
                        self.request(number, by, steps::request(&region, call));
                    }
                    Err(_) => self.not_split(id, region.id, version),
                }
            }
        }
        if let Some(node) = self.nodes.get_mut(&id) {
            node.member.splitter.retain(|region| led.contains(&region));
        }
    }

    fn split_time(&self, id: u64) -> Duration {
        Duration::from_nanos(self.nodes.get(&id).map_or(0, |node| node.local(self.now)))
    }

    fn not_split(&mut self, id: u64, region: RegionId, version: u64) {
        let now = self.split_time(id);
        if let Some(node) = self.nodes.get_mut(&id) {
            node.member.splitter.refused(region, version, now);
        }
    }

    pub(crate) fn split_replied(&mut self, id: u64, region: RegionId, version: u64, reply: Reply) {
        if steps::outcome(reply).is_err() {
            self.not_split(id, region, version);
        }
    }

    /// Returns the split of a region at `keys`, if the placement group has ids.
    pub(super) fn split_call(
        &mut self,
        region: &Region,
        keys: Vec<Bytes>,
    ) -> Result<Admin, Obstacle> {
        let ids = self.take_ids(ids_wanted(region, keys.len())?);
        let first = ids.map(|ids| ids.start).ok_or_else(|| Obstacle::now("no ids are reserved"))?;
        Ok(steps::split_request(first, region, keys))
    }

    /// Splits a region at a key, if the placement group has ids.
    pub(crate) fn split_at(&mut self, slot: u64, region: &Region, key: Bytes) {
        let Some(first) = self.take_ids(1 + region.peers.len() as u64).map(|ids| ids.start) else {
            return;
        };
        let call = steps::split_request(first, region, vec![key]);
        self.request(slot, Requester::Ignored, steps::request(region, call));
    }

    pub(crate) fn group_read(&mut self, slot: u64, requester: Requester, term: u64) {
        let header = Header { region: SYSTEM_REGION, term, ..self.patient(slot) };
        self.request(slot, requester, Read { header, replica: false });
    }

    /// Returns a header with a deadline in five seconds.
    pub(crate) fn patient(&self, slot: u64) -> Header {
        let node = self.slots.get(&slot).and_then(|slot| self.nodes.get(&slot.node));
        let local = node.map_or(0, |node| node.local(self.now));
        Header { deadline_nanos: local + 5 * SECOND, ..Header::default() }
    }
}
