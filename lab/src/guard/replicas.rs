//! Puts through the loops of three stores with their engines: queue, consensus, log and apply.
//! Messages are encoded and decoded as between nodes, and an append ends before its store's next turn.

use super::{Batch, Source, open_store, user_key};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use std::sync::Arc;
use stele_engine::{HistoryReader, Store};
use stele_replica::{
    Admin, AdminCall, Append, CarryOut, Done, Event, Header, Input, Item, Lookup, Now, Options,
    PeerMessage, Queue, RaftStore, Reply, Request, SendSnapshot, StoreLoop, Write, wire,
};
use stele_server::transport::message_bytes;
use stele_simulated_disk::SimVfs;
use stele_storage::{EngineView, LogStore, StateMachine};
use stele_types::{
    ClusterId, KeyRange, Peer, PeerId, PeerRole, Region, RegionEpoch, RegionId, StoreId, StoreIdent,
};

const STORES: u64 = 3;
const CLUSTER: ClusterId = ClusterId(7);
/// Region 1 belongs to placement.
const FIRST_REGION: u64 = 2;
/// Records of a region: later puts replace earlier ones.
const RECORDS: u64 = 1000;
/// Virtual time of a round. A tick is due after 50 of them.
const ROUND_NANOS: u64 = 1_000_000;
const QUEUE_BYTES_MAX: u64 = 256 << 20;
/// Turns of all stores in which a round must end.
const TURNS_MAX: usize = 1000;
const ELECTION_TICKS_MAX: u64 = 100;

/// `per_region` puts a round in each of `regions` regions, led by one store.
pub(super) struct ReplicatedPuts {
    group: Group,
    source: Source,
    regions: u64,
    per_region: u64,
    /// Further puts of a round, which do not count as operations.
    uncounted: u64,
    waiting: Vec<Write>,
    submitted: u64,
}

impl ReplicatedPuts {
    pub(super) fn new(regions: u64, per_region: u64) -> Result<Self> {
        let mut group =
            Group::new(&(0..regions).map(|at| region(at, regions)).collect::<Vec<_>>())?;
        group.elect(&(0..regions).map(id_of).collect::<Vec<_>>())?;
        let (source, waiting) = (Source::new(), Vec::new());
        Ok(Self { group, source, regions, per_region, uncounted: 0, waiting, submitted: 0 })
    }

    /// Returns rounds of 64 puts while each store keeps the log of their region for a stream that takes nothing.
    pub(super) fn followed() -> Result<Self> {
        let mut puts = Self::new(1, 64)?;
        puts.group.follow(id_of(0))?;
        Ok(puts)
    }

    /// Returns rounds of 64 puts that do the work of 68.
    pub(super) fn dearer() -> Result<Self> {
        Ok(Self { uncounted: 4, ..Self::new(1, 64)? })
    }
}

impl Batch for ReplicatedPuts {
    fn prepare(&mut self) -> Result<()> {
        self.group.forget_events();
        for at in 0..self.regions {
            let header = Header { region: id_of(at), version: Some(1), ..Header::default() };
            for _ in 0..self.per_region + self.uncounted {
                let command = self.source.put(at, RECORDS)?;
                self.waiting.push(Write { header, command, only_deletes: false });
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<u64> {
        let puts = self.waiting.len() as u64;
        self.group.round(self.waiting.drain(..).map(Request::from))?;
        self.submitted += puts;
        Ok(puts - self.regions * self.uncounted)
    }

    fn check(&mut self) -> Result<()> {
        ensure!(
            self.group.written == self.submitted,
            "{} of {} puts were written",
            self.group.written,
            self.submitted
        );
        // A heartbeat brings the last commit to the followers.
        self.group.ticks(4)?;
        self.group.check_applied((0..self.regions).map(id_of))
    }
}

fn id_of(at: u64) -> RegionId {
    RegionId(FIRST_REGION + at)
}

fn region(at: u64, regions: u64) -> Region {
    let start = if at == 0 { Bytes::new() } else { user_key(at, 0).into() };
    let end = if at + 1 == regions { Bytes::new() } else { user_key(at + 1, 0).into() };
    let id = id_of(at);
    let voter = |store| Peer {
        id: PeerId(id.0 * 10 + store),
        store: StoreId(store),
        role: PeerRole::Voter,
    };
    Region {
        id,
        range: KeyRange::new(start, end),
        epoch: RegionEpoch { conf_version: 1, version: 1 },
        peers: (1..=STORES).map(voter).collect(),
        ..Region::default()
    }
}

struct Member {
    disk: SimVfs,
    engine: Arc<Store>,
    store_loop: StoreLoop<Store, ()>,
    queue: Queue<Store, ()>,
    items: Vec<Item<Store, ()>>,
    /// Of a stream.
    _reader: Option<HistoryReader>,
}

pub(super) struct Group {
    /// Store 1, which leads, and the followers.
    members: Vec<Member>,
    now_nanos: u64,
    written: u64,
}

impl Group {
    /// Returns three stores, of which the first leads one region with all keys.
    pub(super) fn of_one_region() -> Result<Self> {
        let mut group = Self::new(&[region(0, 1)])?;
        group.elect(&[id_of(0)])?;
        Ok(group)
    }

    /// Submits requests to the region, which begins a round, and runs all stores until they are idle. Returns how
    /// many requests were executed since the group exists.
    pub(super) fn round(&mut self, requests: impl Iterator<Item = Request>) -> Result<u64> {
        requests.into_iter().try_for_each(|request| self.submit(request))?;
        self.now_nanos += ROUND_NANOS;
        self.settle()?;
        Ok(self.written)
    }

    /// Fails unless all stores have applied what the region has.
    pub(super) fn check_one_region(&mut self) -> Result<()> {
        // A heartbeat brings the last commit to the followers.
        self.ticks(4)?;
        self.check_applied([id_of(0)].into_iter())
    }

    /// Returns the header of a request to the region.
    pub(super) fn header() -> Header {
        Header { region: id_of(0), version: Some(1), ..Header::default() }
    }

    fn new(regions: &[Region]) -> Result<Self> {
        let now_nanos = 1_000_000_000;
        let open = |store| {
            let id = StoreId(store);
            let (disk, engine) = open_store(id)?;
            RaftStore::bootstrap(&engine, &StoreIdent::new(CLUSTER, id), regions)?;
            let engine = Arc::new(engine);
            let options = Options::new(id, CLUSTER, 1, store);
            let core = RaftStore::open(engine.clone(), options, now(now_nanos))?;
            let (store_loop, queue) = (StoreLoop::new(core), Queue::new(QUEUE_BYTES_MAX));
            Ok(Member { disk, engine, store_loop, queue, items: Vec::new(), _reader: None })
        };
        let members = (1..=STORES).map(open).collect::<Result<Vec<_>>>()?;
        Ok(Self { members, now_nanos, written: 0 })
    }

    /// Lets store 1 lead the regions: it campaigns until the others no longer withhold their votes.
    fn elect(&mut self, regions: &[RegionId]) -> Result<()> {
        for _ in 0..ELECTION_TICKS_MAX {
            let waiting = self.without_leader(regions);
            if waiting.is_empty() {
                return Ok(());
            }
            for region in waiting {
                let header = Header { region, ..Header::default() };
                self.submit(AdminCall { header, call: Admin::Campaign }.into())?;
            }
            self.ticks(1)?;
        }
        bail!("store 1 does not lead {:?}", self.without_leader(regions))
    }

    fn follow(&mut self, region: RegionId) -> Result<()> {
        for member in &mut self.members {
            let progress = member.engine.progress(region);
            let above = progress.with_context(|| format!("no log of region {region}"))?.applied;
            member.engine.pin_history(&[(region, above)].into())?;
            member._reader = Some(member.engine.history(region, above.next()));
        }
        Ok(())
    }

    /// Returns the regions that store 1 does not lead.
    fn without_leader(&self, regions: &[RegionId]) -> Vec<RegionId> {
        let leads = |region: &RegionId| {
            let gate = self.members.first().map(|first| first.store_loop.readers());
            let reader = gate.and_then(|gate| gate.get(*region));
            reader.is_some_and(|reader| reader.leading_term().is_some())
        };
        regions.iter().copied().filter(|region| !leads(region)).collect()
    }

    fn submit(&self, request: Request) -> Result<()> {
        let Some(leader) = self.members.first() else { bail!("a group without stores") };
        ensure!(leader.queue.submit(request, (), None).is_ok(), "the queue refused a request");
        Ok(())
    }

    fn ticks(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.now_nanos += Options::new(StoreId(1), CLUSTER, 1, 1).tick_nanos;
            self.settle()?;
        }
        Ok(())
    }

    /// Runs turns until no store has an item.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..TURNS_MAX {
            let mut is_idle = true;
            for at in 0..self.members.len() {
                is_idle &= !self.turn(at)?;
            }
            if is_idle {
                return Ok(());
            }
        }
        bail!("the stores stay busy")
    }

    /// Runs a turn of a store that has items or is due. Returns whether it had.
    fn turn(&mut self, at: usize) -> Result<bool> {
        let time = now(self.now_nanos);
        let Some(member) = self.members.get_mut(at) else { return Ok(false) };
        member.queue.take(&mut member.items);
        let is_due =
            member.store_loop.next_turn_nanos().is_some_and(|due| due <= time.monotonic_nanos);
        if member.items.is_empty() && !is_due {
            return Ok(false);
        }
        let turn = match member.store_loop.turn(&mut member.items, time) {
            Ok(turn) => turn,
            Err(ended) => return Err(ended.error.into()),
        };
        let mut owner = Owner::default();
        turn.carry_out(&mut owner);
        let Owner { messages, append, written, lookups, unexpected } = owner;
        for lookup in lookups {
            let result = member.engine.view().and_then(|view| view.get(&lookup.key));
            member.queue.push(Item::Input(Input::Found { lookup, result }));
        }
        if let Some(unexpected) = unexpected {
            bail!("a store {unexpected}");
        }
        if let Some(Append { ticket, batch }) = append {
            let result = member.engine.append(&batch);
            member.queue.push(Item::Input(Input::Appended { ticket, result }));
        }
        self.written += written;
        messages.iter().try_for_each(|message| self.pass(message))?;
        Ok(true)
    }

    /// Passes a message to its store as it travels between nodes.
    fn pass(&self, message: &PeerMessage) -> Result<()> {
        let (mut frame, mut payloads) = (Vec::new(), Vec::new());
        wire::encode(message, &mut frame, &mut payloads);
        payloads.iter().for_each(|payload| frame.extend_from_slice(payload));
        let message = wire::decode(frame.into())?;
        let to = self.members.iter().find(|member| member.engine.id() == message.to_store);
        let Some(to) = to else { bail!("a message to an absent store") };
        let bytes = message_bytes(&message);
        to.queue.push_messages([(message, bytes)]);
        Ok(())
    }

    pub(super) fn forget_events(&self) {
        self.members.iter().for_each(|member| member.disk.clear_events());
    }

    /// Fails unless all stores have applied the same entries of each region.
    fn check_applied(&self, mut regions: impl Iterator<Item = RegionId>) -> Result<()> {
        regions.try_for_each(|region| {
            let progress = self.members.iter().map(|member| member.engine.progress(region));
            let progress: Vec<_> = progress.map(|it| it.unwrap_or_default()).collect();
            let Some(first) = progress.first() else { bail!("a group without stores") };
            let is_same = |it: &stele_storage::Progress| {
                it.applied == first.persisted.0 && it.persisted == first.persisted
            };
            ensure!(progress.iter().all(is_same), "region {region} is not applied: {progress:?}");
            Ok(())
        })
    }
}

fn now(nanos: u64) -> Now {
    Now { monotonic_nanos: nanos, unix_millis: 1_000_000_000 }
}

#[derive(Default)]
struct Owner {
    messages: Vec<PeerMessage>,
    append: Option<Append>,
    written: u64,
    lookups: Vec<Lookup>,
    unexpected: Option<&'static str>,
}

impl CarryOut<Store, ()> for Owner {
    fn send(&mut self, messages: Vec<PeerMessage>) {
        self.messages = messages;
    }

    fn append(&mut self, append: Append) {
        self.append = Some(append);
    }

    fn reply(&mut self, replies: Vec<((), Reply)>) {
        let is_written = |(_, reply): &&((), Reply)| {
            matches!(reply, Reply::Done(Done::Written { .. } | Done::Modified { .. }))
        };
        self.written += replies.iter().filter(is_written).count() as u64;
    }

    fn send_snapshot(&mut self, _: SendSnapshot<Store>) {
        self.unexpected = Some("sends a snapshot");
    }

    fn look_up(&mut self, lookup: Lookup) {
        self.lookups.push(lookup);
    }

    fn handle(&mut self, _: Vec<Event>) {}

    fn want_checkpoint(&mut self) {
        self.unexpected = Some("wants a checkpoint");
    }
}
