//! Inputs: each is queued with its region or stepped into its Raft node, without disk access.

use super::RaftStore;
use crate::input::{
    Admin, AdminCall, Header, Input, MomentCall, Now, Read, Recovery, Request, RequestId, Write,
};
use crate::messages::{Body, PeerMessage};
use crate::output::{Done, Lookup, Refusal};
use crate::peer::{Replica, Waiting};
use crate::validate;
use stele_storage::{Pair, StorageEngine};
use stele_types::{ClusterTime, RegionId, Result, StoreId};

impl<E: StorageEngine> RaftStore<E> {
    /// Sets the time of the next inputs; without it they have that of the last poll. A store without
    /// work is polled once in a tick, and would withhold its vote up to a tick longer than its vote hold.
    pub fn begin_turn(&mut self, now: Now) {
        self.ctx.now = now;
    }

    /// Takes an input. Cheap: [`RaftStore::poll`] does the resulting work.
    pub fn step(&mut self, input: Input<E>) {
        match input {
            Input::Request { id, request } => self.request(id, request),
            Input::Found { lookup, result } => self.found(&lookup, result),
            Input::Message(message) => self.receive(message),
            Input::Appended { ticket, result } => self.appended = Some((ticket, result)),
            Input::SnapshotReceived { header, ingest } => {
                self.snapshot_received(header, ingest);
            }
            Input::SnapshotSent { region, to, ok } => {
                if let Some(replica) = self.replicas.get_mut(&region) {
                    replica.snapshot_sent(&self.ctx, to, ok);
                }
                self.schedule(region);
            }
            // Each poll checks for lost values.
            Input::Damaged => {}
            Input::Leases(on) => self.ctx.set_leases(on),
            Input::ClusterTime(unix_s) if unix_s > 0 => {
                self.ctx.cluster_time = ClusterTime::new(unix_s, self.ctx.now.monotonic_nanos);
            }
            Input::ClusterTime(_) => {}
            Input::StoreUnreachable(store) => self.store_unreachable(store),
            Input::StoreReachable(store) => self.store_reachable(store),
        }
    }

    fn request(&mut self, id: RequestId, request: Request) {
        match request {
            Request::Write(write) => self.write(id, write),
            Request::Modify(modify) => self.enqueue(Waiting::Modify(id, modify)),
            Request::Run(run) => self.enqueue(Waiting::Run(id, run)),
            Request::Read(read) => self.read(id, read),
            Request::Admin(call) => self.admin(id, call),
            Request::SnapshotOffered(header) => self.snapshot_offered(id, &header),
            Request::Moment(call) => self.moment(id, call),
        }
    }

    fn write(&mut self, id: RequestId, write: Write) {
        let (bytes, bytes_max) = (write.command.len() as u64, self.ctx.options.entry_bytes_max);
        if bytes > bytes_max {
            return self.ctx.reject(id, Refusal::TooLarge { bytes, bytes_max });
        }
        self.enqueue(Waiting::Write(id, write));
    }

    fn found(&mut self, lookup: &Lookup, result: Result<Option<Pair>>) {
        self.ctx.lookup_ended();
        if let Some(replica) = self.replicas.get_mut(&lookup.region) {
            replica.found(&mut self.ctx, lookup, result);
            self.schedule(lookup.region);
        }
    }

    fn admin(&mut self, id: RequestId, call: AdminCall) {
        let header = call.header;
        let at_once = matches!(
            call.call,
            Admin::Campaign | Admin::Wake | Admin::Destroy(_) | Admin::Recover(_)
        );
        if !at_once {
            return self.enqueue(Waiting::Admin(id, call));
        }
        if !self.find(id, &header) {
            return;
        }
        if let Admin::Recover(recovery) = &call.call {
            return self.recover(id, header.region, recovery);
        }
        let Some(replica) = self.replicas.get_mut(&header.region) else { return };
        replica.wake_for_client(&mut self.ctx);
        match call.call {
            Admin::Campaign => replica.campaign(),
            Admin::Destroy(gone) if !replica.is_leader() => replica.destroy_if(&mut self.ctx, gone),
            _ => {}
        }
        let region = (*replica.region).clone();
        self.ctx.done(id, Done::Admin { region });
        self.schedule(header.region);
    }

    fn recover(&mut self, id: RequestId, region: RegionId, recovery: &Recovery) {
        let Some(mut replica) = self.replicas.remove(&region) else { return };
        match replica.recover(&mut self.ctx, recovery) {
            Ok(region) => self.ctx.done(id, Done::Admin { region }),
            Err(rejection) => self.ctx.reject(id, rejection),
        }
        self.replicas.insert(region, replica);
        self.schedule(region);
    }

    fn enqueue(&mut self, request: Waiting) {
        let (id, header) = (request.id(), *request.header());
        if !self.find(id, &header) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(&header.region) else { return };
        replica.wake_for_client(&mut self.ctx);
        match replica.is_leader() {
            true => replica.enqueue(request),
            false => self.ctx.reject(id, Refusal::NotLeader { leader: replica.leader_hint() }),
        }
        self.schedule(header.region);
    }

    fn read(&mut self, id: RequestId, read: Read) {
        if !self.find(id, &read.header) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(&read.header.region) else { return };
        replica.wake_for_client(&mut self.ctx);
        replica.read(&mut self.ctx, id, read);
        self.schedule(read.header.region);
    }

    fn moment(&mut self, id: RequestId, call: MomentCall) {
        let region = call.header.region;
        if !self.find(id, &call.header) {
            return;
        }
        let Some(replica) = self.replicas.get_mut(&region) else { return };
        replica.wake_for_client(&mut self.ctx);
        replica.moment(&mut self.ctx, id, call);
        self.schedule(region);
    }

    /// Returns whether the replica named by a request is here; otherwise refuses the request.
    fn find(&mut self, id: RequestId, header: &Header) -> bool {
        let found = match self.replicas.get(&header.region) {
            Some(replica) => replica.check_peer(header),
            None => Err(Refusal::RegionNotFound),
        };
        match found {
            Ok(()) => true,
            Err(refusal) => {
                self.ctx.reject(id, refusal);
                false
            }
        }
    }

    pub(super) fn receive(&mut self, message: PeerMessage) {
        match &message.body {
            Body::EntryRecoveryRequest(lost) => return self.answer_entry_recovery(&message, lost),
            // A late reply: a running store has no lost entries.
            Body::EntryRecoveryReply(_) => return,
            Body::MergeQuery(query) => return self.answer_merge_query(&message, query),
            Body::MergeAnswer(answer) => return self.take_merge_answer(&message, answer),
            _ => {}
        }
        if let Err(reason) = validate::check_envelope(&message, self.ctx.options.store) {
            slog::debug!(self.ctx.logger, "refused a message"; "reason" => reason);
            return;
        }
        let region = message.region;
        match self.replicas.get_mut(&region) {
            Some(replica) if replica.peer.id == message.to.id => {
                replica.receive(&mut self.ctx, message);
                self.schedule(region);
            }
            Some(_) => self.receive_for_other(message),
            None => self.receive_for_absent(&message),
        }
    }

    /// Handles a message for another peer than the one here: an older one, which was removed, or a
    /// newer one, which has replaced the one here.
    fn receive_for_other(&mut self, message: PeerMessage) {
        match message.body {
            Body::Raft(_) => self.stale.push(message),
            // The sender asks whether it is a member, and knows the peer that was here before.
            Body::WakeUp => {
                let Some(replica) = self.replicas.get(&message.region) else { return };
                let is_later = message.epoch.conf_version < replica.region.epoch.conf_version;
                if is_later && replica.region.peer(message.from.id).is_none() {
                    replica.send(&mut self.ctx, message.from, Body::Gone);
                }
            }
            _ => {}
        }
    }

    fn store_unreachable(&mut self, store: StoreId) {
        let now = self.ctx.now.monotonic_nanos;
        self.ctx.unreachable.entry(store).or_insert(now);
        let here: Vec<RegionId> = self.replicas.keys().copied().collect();
        for region in here {
            let Some(replica) = self.replicas.get_mut(&region) else { continue };
            let concerned = replica.region.peer_on(store).is_some()
                || replica.remote_leader_store() == Some(store);
            if concerned {
                replica.store_unreachable(&mut self.ctx, store);
                self.schedule(region);
            }
        }
    }

    /// Wakes the replicas with a leader on that store: a hibernating one may have missed its
    /// removal.
    fn store_reachable(&mut self, store: StoreId) {
        self.ctx.unreachable.remove(&store);
        let follows_it = |(id, replica): (&RegionId, &Replica<E>)| {
            (replica.remote_leader_store() == Some(store)).then_some(*id)
        };
        let regions: Vec<RegionId> = self.replicas.iter().filter_map(follows_it).collect();
        for region in regions {
            if let Some(replica) = self.replicas.get_mut(&region) {
                replica.wake(&mut self.ctx);
            }
            self.schedule(region);
        }
    }
}
