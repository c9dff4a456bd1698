//! The playground's nodes seen as a cluster.

use super::fault_tolerance::{nodes_that_may_fail, sentence};
use super::nodes::{Nodes, State};
use crate::table::{self, Cell, maybe, number, words};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stele_client::messages::{RaftRole, StoreInfo};
use stele_client::{Client, Control, Options, RegionRow};
use stele_types::size::{format_bytes, parse_bytes};
use stele_types::{Error, KeyRange, PeerRole, RegionId, Result, StoreId};

/// Copies of a region, if there are as many nodes.
const COPIES: usize = 3;
const ASK_EVERY: Duration = Duration::from_millis(20);
/// For one call of a command: a person waits.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// Until every region has its copies, and until regions are led again.
const REPLICATED_WITHIN: Duration = Duration::from_secs(120);
const LED_WITHIN: Duration = Duration::from_secs(30);
/// Several times as long as a node that works takes to report.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

/// Processes, and a client of theirs.
pub struct Cluster {
    nodes: Arc<Mutex<Nodes>>,
    /// For keys.
    pub client: Client,
    /// For everything else.
    pub control: Control,
    /// Which node runs a store.
    node_of: BTreeMap<StoreId, usize>,
    /// Regions as they were seen last.
    regions: Vec<RegionRow>,
    /// When a disk was first seen to be full.
    full_since: Option<Instant>,
}

impl Cluster {
    /// Connects to nodes that serve.
    pub async fn connect(nodes: Arc<Mutex<Nodes>>) -> Result<Self> {
        let addresses: Vec<String> =
            nodes.lock().list().iter().map(|node| node.address.clone()).collect();
        let options = Options { timeout: CALL_WITHIN, ..Options::default() };
        let client = Client::connect_with(&addresses, options).await?;
        let control = client.control();
        let mut cluster = Self {
            nodes,
            client,
            control,
            node_of: BTreeMap::new(),
            regions: Vec::new(),
            full_since: None,
        };
        let started = Instant::now();
        // Stores are known once they have reported.
        while cluster.node_of.len() < addresses.len() {
            cluster.nodes().check_running()?;
            let infos = cluster.learn_stores().await?;
            cluster.check_disks(&infos).await?;
            if started.elapsed() > REPLICATED_WITHIN {
                let logs = cluster.nodes().log_ends();
                return Err(Error::Unavailable(format!("not every node has joined{logs}")));
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
        Ok(cluster)
    }

    /// The processes.
    pub fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    async fn learn_stores(&mut self) -> Result<Vec<StoreInfo>> {
        let infos = self.control.stores(&[]).await?;
        let nodes = self.nodes.lock();
        for info in &infos {
            let at = nodes.list().iter().position(|node| node.address == info.address);
            let id = StoreId(info.stats.unwrap_or_default().id);
            self.node_of.extend(at.map(|at| (id, at)));
        }
        drop(nodes);
        Ok(infos)
    }

    /// Stores of a node.
    pub fn stores_of(&self, node: usize) -> Vec<StoreId> {
        let of_node = self.node_of.iter().filter(|(_, at)| **at == node);
        of_node.map(|(store, _)| *store).collect()
    }

    /// `n2` for a store of the second node.
    pub fn node_name(&self, store: StoreId) -> String {
        let nodes = self.nodes.lock();
        let node = self.node_of.get(&store).and_then(|at| nodes.list().get(*at));
        node.map_or(format!("store {store}"), |node| node.name.clone())
    }

    /// Waits until every region has all its copies; returns how many regions and copies.
    pub async fn replicated(&mut self) -> Result<(usize, usize)> {
        let started = Instant::now();
        let copies = COPIES.min(self.nodes().list().len());
        loop {
            let regions = self.see_regions().await?;
            let is_done = |row: &RegionRow| {
                let voters = row.region.peers.iter().filter(|peer| peer.role == PeerRole::Voter);
                voters.count() >= copies
                    && row.leader_store.is_some()
                    && row.pending_peers.is_empty()
                    && row.down_peers.is_empty()
                    && !row.region.is_joint()
            };
            if !regions.is_empty() && regions.iter().all(is_done) {
                return Ok((regions.len(), copies));
            }
            self.nodes().check_running()?;
            let infos = self.control.stores(&[]).await?;
            self.check_disks(&infos).await?;
            if started.elapsed() > REPLICATED_WITHIN {
                let logs = self.nodes().log_ends();
                let text = format!("some region has not {copies} copies yet{logs}");
                return Err(Error::Unavailable(text));
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    /// Fails with every disk that takes no replica, and what it lacks: waiting would not help. A node
    /// that joined and has not reported yet counts as one with room: until all are full, or the others
    /// had the time to say so, nothing is said, so that none is left out.
    async fn check_disks(&mut self, infos: &[StoreInfo]) -> Result<()> {
        let is_full =
            |info: &&StoreInfo| info.stats.is_some_and(|stats| stats.failed || stats.disk_full);
        let full = infos.iter().filter(is_full).count();
        if full == 0 {
            self.full_since = None;
            return Ok(());
        }
        let since = *self.full_since.get_or_insert_with(Instant::now);
        if full < self.nodes().list().len() && since.elapsed() < REPORTED_WITHIN {
            return Ok(());
        }
        let mut full = Vec::new();
        for info in infos {
            let stats = info.stats.unwrap_or_default();
            let name = self.node_name(StoreId(stats.id));
            if stats.failed {
                full.push(format!("{name}: store {} has failed", stats.id));
            } else if stats.disk_full {
                let reserved = self.reserved_bytes(&info.address).await;
                full.push(format!("{name}: {}", lack(stats.free, reserved)));
            }
        }
        Err(Error::Refused(format!(
            "no room for replicas\n    {}\n  free some space, choose a directory on a larger disk \
             (--keep DIR), or lower what is kept back (STELE_RESERVED_BYTES=64MiB)",
            full.join("\n    ")
        )))
    }

    /// What a node keeps back of its disks; `None` if it does not say.
    async fn reserved_bytes(&self, address: &str) -> Option<u64> {
        let keys = ["reserved_bytes".to_owned()];
        let items = self.control.config(address, &keys).await.ok()?;
        parse_bytes(&items.first()?.value).ok()
    }

    /// Regions as the placement group knows them now.
    pub async fn see_regions(&mut self) -> Result<&[RegionRow]> {
        let mut rows = self.control.regions(&KeyRange::all(), true).await?;
        // A placement group whose leader is new knows what it wrote down last, not what was newest.
        for row in &mut rows {
            let before = self.regions.iter().find(|old| old.region.id == row.region.id);
            if let Some(before) = before.filter(|old| is_newer(old, row)) {
                row.region = before.region.clone();
            }
        }
        self.regions = rows;
        Ok(&self.regions)
    }

    /// Regions as they were seen last, that stores of this node led.
    pub fn led_by(&self, node: usize) -> Vec<RegionId> {
        let leads = |row: &&RegionRow| {
            row.leader_store.is_some_and(|store| self.node_of.get(&store) == Some(&node))
        };
        self.regions.iter().filter(leads).map(|row| row.region.id).collect()
    }

    /// Stores whose nodes run, with their nodes.
    fn answering(&self) -> BTreeMap<StoreId, usize> {
        let mut nodes = self.nodes.lock();
        nodes.look();
        let is_up = |at: &usize| nodes.list().get(*at).is_some_and(|node| node.state == State::Up);
        self.node_of.iter().filter(|(_, at)| is_up(at)).map(|(id, at)| (*id, *at)).collect()
    }

    /// Nodes that may fail now, from the regions seen last.
    pub fn survives(&self) -> Option<u64> {
        nodes_that_may_fail(self.regions.iter().map(|row| &row.region), &self.answering())
    }

    /// The same in words.
    pub fn survives_sentence(&self) -> String {
        sentence(self.survives(), false)
    }

    /// Waits until each of these regions is led by a node that runs.
    pub async fn led_again(&self, regions: &[RegionId]) -> Result<()> {
        let started = Instant::now();
        let answering = self.answering();
        for id in regions {
            while !self.is_led(*id, &answering).await {
                if started.elapsed() > LED_WITHIN {
                    return Err(Error::Unavailable(format!("region {id} has no new leader")));
                }
                tokio::time::sleep(ASK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Waits until the replicas on a node have applied what is committed now.
    pub async fn caught_up(&mut self, node: usize) -> Result<()> {
        let started = Instant::now();
        let answering = self.answering();
        let stores = self.stores_of(node);
        for row in &self.regions {
            let id = row.region.id;
            let mut committed = None;
            for store in stores.iter().filter(|store| row.region.peer_on(**store).is_some()) {
                loop {
                    if committed.is_none() {
                        committed = self.committed(row, &answering).await;
                    }
                    let replica = self.control.replica(id, *store).await.ok().flatten();
                    let applied = replica.map(|replica| replica.applied_index);
                    if committed.is_some() && applied >= committed {
                        break;
                    }
                    if started.elapsed() > LED_WITHIN {
                        let text = format!("region {id} has not caught up; see `status`");
                        return Err(Error::Unavailable(text));
                    }
                    tokio::time::sleep(ASK_EVERY).await;
                }
            }
        }
        Ok(())
    }

    /// What the leader of a region says is committed.
    async fn committed(
        &self,
        row: &RegionRow,
        answering: &BTreeMap<StoreId, usize>,
    ) -> Option<u64> {
        for peer in row.region.peers.iter().filter(|peer| answering.contains_key(&peer.store)) {
            let replica = self.control.replica(row.region.id, peer.store).await;
            if let Ok(Some(replica)) = replica
                && replica.role == RaftRole::Leader as i32
            {
                return Some(replica.committed_index);
            }
        }
        None
    }

    async fn is_led(&self, id: RegionId, answering: &BTreeMap<StoreId, usize>) -> bool {
        let Some(row) = self.regions.iter().find(|row| row.region.id == id) else { return false };
        self.committed(row, answering).await.is_some()
    }

    /// The table of nodes and stores. Without an answer of the placement group only processes are
    /// shown.
    pub async fn table(&mut self) -> String {
        let infos = self.learn_stores().await.unwrap_or_default();
        // Older numbers stand where no new ones can be had.
        let _ = self.see_regions().await;
        self.nodes().look();
        let nodes = self.nodes();
        let mut rows = Vec::new();
        for (at, node) in nodes.list().iter().enumerate() {
            for store in self.stores_of(at) {
                let state = format!("{:?}", node.state).to_lowercase();
                let mut row = vec![
                    words("node", node.name.as_str()),
                    words("address", node.address.as_str()),
                    number("store", store.0),
                    words("process", state),
                ];
                row.extend(self.store_cells(store, &infos));
                rows.push(row);
            }
        }
        table::text(&rows, "no stores")
    }

    fn store_cells(&self, store: StoreId, infos: &[StoreInfo]) -> Vec<Cell> {
        let of_store = |info: &&StoreInfo| info.stats.is_some_and(|stats| stats.id == store.0);
        let stats = infos.iter().find(of_store).and_then(|info| info.stats);
        let known = !self.regions.is_empty();
        let replicas = self.regions.iter().filter(|row| row.region.peer_on(store).is_some());
        let led = self.regions.iter().filter(|row| row.leader_store == Some(store));
        vec![
            maybe("replicas", known.then(|| replicas.count() as u64)),
            maybe("leaders", known.then(|| led.count() as u64)),
            words("used", stats.map_or("-".to_owned(), |stats| format_bytes(stats.used))),
        ]
    }
}

/// How much a full disk lacks.
fn lack(free: u64, reserved: Option<u64>) -> String {
    let free_text = format_bytes(free);
    match reserved {
        Some(reserved) if reserved > free => format!(
            "its disk is full: {free_text} free, {} reserved for collection; {} more needed",
            format_bytes(reserved),
            format_bytes(reserved - free),
        ),
        _ => format!("its disk is full: {free_text} free"),
    }
}

fn is_newer(old: &RegionRow, new: &RegionRow) -> bool {
    let changes = |row: &RegionRow| (row.region.epoch.version, row.region.epoch.conf_version);
    changes(old) > changes(new)
}
