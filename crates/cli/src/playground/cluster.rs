//! The playground's nodes as a cluster.

use super::actions::{describe, nodes_that_may_fail};
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

/// Copies of a region, if the cluster has as many nodes.
const COPIES: usize = 3;
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time limit of one call. Short, because a person waits.
const CALL_WITHIN: Duration = Duration::from_secs(10);
/// Time limits until every region has its copies, and until regions have leaders again.
const REPLICATED_WITHIN: Duration = Duration::from_secs(120);
const LEADER_WITHIN: Duration = Duration::from_secs(30);
/// Several times the interval in which a working node reports.
const REPORTED_WITHIN: Duration = Duration::from_secs(10);

pub(super) struct Cluster {
    nodes: Arc<Mutex<Nodes>>,
    pub client: Client,
    pub control: Control,
    node_of: BTreeMap<StoreId, usize>,
    regions: Vec<RegionRow>,
    /// Time at which a full disk was first seen.
    full_since: Option<Instant>,
}

impl Cluster {
    pub(super) async fn connect(nodes: Arc<Mutex<Nodes>>) -> Result<Self> {
        let addresses: Vec<String> =
            nodes.lock().list().iter().map(|node| node.address.clone()).collect();
        // One person writes here, so a repeated put overwrites no other client's.
        let options =
            Options { timeout: CALL_WITHIN, repeat_undetermined: true, ..Options::default() };
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
        // A store is known once it has reported.
        while cluster.node_of.len() < addresses.len() {
            cluster.nodes().check_running()?;
            let infos = cluster.refresh_stores().await?;
            cluster.check_disks(&infos).await?;
            if started.elapsed() > REPLICATED_WITHIN {
                let logs = cluster.nodes().log_ends();
                return Err(Error::Unavailable(format!("not every node has joined{logs}")));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(cluster)
    }

    pub(super) fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock()
    }

    async fn refresh_stores(&mut self) -> Result<Vec<StoreInfo>> {
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

    pub(super) fn stores_of(&self, node: usize) -> Vec<StoreId> {
        let of_node = self.node_of.iter().filter(|(_, at)| **at == node);
        of_node.map(|(store, _)| *store).collect()
    }

    /// Returns the name of a store's node, such as `n2`.
    pub(super) fn node_name(&self, store: StoreId) -> String {
        let nodes = self.nodes.lock();
        let node = self.node_of.get(&store).and_then(|at| nodes.list().get(*at));
        node.map_or(format!("store {store}"), |node| node.name.clone())
    }

    /// Waits until every region has all its copies; returns the number of regions and of copies.
    pub(super) async fn wait_for_copies(&mut self) -> Result<(usize, usize)> {
        let started = Instant::now();
        let copies = COPIES.min(self.nodes().list().len());
        loop {
            let regions = self.refresh_regions().await?;
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
                let text = format!("a region has fewer than {copies} copies{logs}");
                return Err(Error::Unavailable(text));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Fails with every disk that accepts no replica and the space it lacks: waiting would not
    /// help. A node that has not reported counts as one with space. The error is held back until
    /// all disks are full or the other nodes had time to report, so that it names them all.
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
                full.push(format!("{name}: {}", describe_shortage(stats.free, reserved)));
            }
        }
        Err(Error::Refused(format!(
            "no room for replicas\n    {}\n  free some space, choose a directory on a larger disk \
             (--keep DIR), or lower the reserved space (STELE_RESERVED_BYTES=64MiB)",
            full.join("\n    ")
        )))
    }

    /// Returns the bytes that a node reserves on its disks; `None` if it does not respond.
    async fn reserved_bytes(&self, address: &str) -> Option<u64> {
        let keys = ["reserved_bytes".to_owned()];
        let items = self.control.config(address, &keys).await.ok()?;
        parse_bytes(&items.first()?.value).ok()
    }

    pub(super) async fn refresh_regions(&mut self) -> Result<&[RegionRow]> {
        let mut rows = self.control.regions(&KeyRange::all(), true).await?;
        // A new leader of the placement group knows regions as last persisted, which may be older.
        for row in &mut rows {
            let before = self.regions.iter().find(|old| old.region.id == row.region.id);
            if let Some(before) = before.filter(|old| is_newer(old, row)) {
                row.region = before.region.clone();
            }
        }
        self.regions = rows;
        Ok(&self.regions)
    }

    pub(super) fn regions_led_by(&self, node: usize) -> Vec<RegionId> {
        let leads = |row: &&RegionRow| {
            row.leader_store.is_some_and(|store| self.node_of.get(&store) == Some(&node))
        };
        self.regions.iter().filter(leads).map(|row| row.region.id).collect()
    }

    fn running(&self) -> BTreeMap<StoreId, usize> {
        let mut nodes = self.nodes.lock();
        nodes.check_exits();
        let is_up = |at: &usize| nodes.list().get(*at).is_some_and(|node| node.state == State::Up);
        self.node_of.iter().filter(|(_, at)| is_up(at)).map(|(id, at)| (*id, *at)).collect()
    }

    /// Returns the number of nodes that may fail now, from the regions seen last; `None` without a
    /// majority.
    pub(super) fn fault_tolerance(&self) -> Option<u64> {
        nodes_that_may_fail(self.regions.iter().map(|row| &row.region), &self.running())
    }

    pub(super) fn fault_tolerance_text(&self) -> String {
        describe(self.fault_tolerance(), false)
    }

    /// Waits until each of these regions has a leader on a running node.
    pub(super) async fn wait_for_leaders(&self, regions: &[RegionId]) -> Result<()> {
        let started = Instant::now();
        let running = self.running();
        for id in regions {
            while !self.is_led(*id, &running).await {
                if started.elapsed() > LEADER_WITHIN {
                    return Err(Error::Unavailable(format!("region {id} has no new leader")));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    /// Waits until the replicas on a node have applied what is committed at the call.
    pub(super) async fn wait_for_catch_up(&mut self, node: usize) -> Result<()> {
        let started = Instant::now();
        let running = self.running();
        let stores = self.stores_of(node);
        for row in &self.regions {
            let id = row.region.id;
            let mut committed = None;
            for store in stores.iter().filter(|store| row.region.peer_on(**store).is_some()) {
                loop {
                    if committed.is_none() {
                        committed = self.committed(row, &running).await;
                    }
                    let replica = self.control.replica(id, *store).await.ok().flatten();
                    let applied = replica.map(|replica| replica.applied_index);
                    if committed.is_some() && applied >= committed {
                        break;
                    }
                    if started.elapsed() > LEADER_WITHIN {
                        let text = format!("region {id} has not caught up; see `status`");
                        return Err(Error::Unavailable(text));
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
        }
        Ok(())
    }

    async fn committed(&self, row: &RegionRow, running: &BTreeMap<StoreId, usize>) -> Option<u64> {
        for peer in row.region.peers.iter().filter(|peer| running.contains_key(&peer.store)) {
            let replica = self.control.replica(row.region.id, peer.store).await;
            if let Ok(Some(replica)) = replica
                && replica.role == RaftRole::Leader as i32
            {
                return Some(replica.committed_index);
            }
        }
        None
    }

    async fn is_led(&self, id: RegionId, running: &BTreeMap<StoreId, usize>) -> bool {
        let Some(row) = self.regions.iter().find(|row| row.region.id == id) else { return false };
        self.committed(row, running).await.is_some()
    }

    /// Formats the table of nodes and stores. If the placement group does not respond, the table
    /// shows only processes.
    pub(super) async fn table(&mut self) -> String {
        let infos = self.refresh_stores().await.unwrap_or_default();
        // If the regions cannot be read, the table shows those seen last.
        let _ = self.refresh_regions().await;
        self.nodes().check_exits();
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

fn describe_shortage(free: u64, reserved: Option<u64>) -> String {
    let free_text = format_bytes(free);
    match reserved {
        Some(reserved) if reserved > free => format!(
            "its disk is full: {free_text} free, {} reserved for garbage collection; {} more needed",
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
