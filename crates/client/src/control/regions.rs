//! Administrative view of regions.

use super::Control;
use bytes::Bytes;
use stele_proto::stele::control::v1 as messages;
use stele_types::{Error, KeyRange, PeerId, Region, RegionId, Result, StoreId};

/// A region with its leader's last report.
#[derive(Clone, Debug)]
pub struct RegionRow {
    /// Region, with its keys, peers and epoch.
    pub region: Region,
    /// Store of its leader; `None` if unknown.
    pub leader_store: Option<StoreId>,
    /// Peers that do not respond to the leader.
    pub down_peers: Vec<PeerId>,
    /// Peers that lack part of the log or a snapshot.
    pub pending_peers: Vec<PeerId>,
    /// Estimated bytes of keys and values.
    pub approximate_bytes: u64,
    /// Estimated number of keys.
    pub approximate_keys: u64,
    /// Milliseconds since the report; `None` without one.
    pub report_age_ms: Option<u64>,
    /// Whether the region hibernates because it is idle.
    pub is_hibernating: bool,
    /// ID of the operator that changes the region.
    pub operator: Option<u64>,
}

impl Control {
    /// Returns the regions that overlap a range of user keys, ascending; with `system` also the
    /// region of the placement group.
    pub async fn regions(&self, range: &KeyRange, system: bool) -> Result<Vec<RegionRow>> {
        let mut rows = Vec::new();
        let mut start = range.start.clone();
        loop {
            let request = messages::ListRegionsRequest {
                start_key: start.clone(),
                end_key: range.end.clone(),
                system: system && rows.is_empty(),
                ..Default::default()
            };
            let response = self.call_leader(request).await?;
            for info in response.regions {
                rows.push(RegionRow::from_info(info)?);
            }
            match response.next_key.filter(|next| *next > start) {
                Some(next) => start = next,
                None => return Ok(rows),
            }
        }
    }

    /// Returns one region. Fails with `Refused` if there is none.
    pub async fn region(&self, id: RegionId) -> Result<RegionRow> {
        let request = messages::ListRegionsRequest {
            region_id: id.0,
            limit: 1,
            system: true,
            ..Default::default()
        };
        let mut found = self.call_leader(request).await?.regions.into_iter();
        let missing = || Error::Refused(format!("there is no region {id}"));
        RegionRow::from_info(found.next().ok_or_else(missing)?)
    }

    /// Returns the region that holds a user key.
    pub async fn region_of(&self, key: Bytes) -> Result<RegionRow> {
        let rows = self.regions(&KeyRange::of_key(key), false).await?;
        let missing = || Error::Unavailable("no region holds the key yet".to_owned());
        rows.into_iter().next().ok_or_else(missing)
    }

    /// Returns the state that each replica of a region reports. Replicas on nodes that do not
    /// respond are omitted.
    pub async fn region_detail(&self, region: &Region) -> Result<Vec<messages::ReplicaDetail>> {
        let mut details = Vec::new();
        for peer in &region.peers {
            if let Ok(detail) = self.replica(region.id, peer.store).await {
                details.extend(detail);
            }
        }
        Ok(details)
    }

    /// Returns the state that a store's replica of a region reports; `None` if the store has none.
    /// Fails with `Unavailable` if its node does not respond.
    pub async fn replica(
        &self,
        region: RegionId,
        store: StoreId,
    ) -> Result<Option<messages::ReplicaDetail>> {
        let request =
            messages::RegionDetailRequest { region_id: region.0, store_id: store.0, header: None };
        let address = self.store_address(store).await?;
        Ok(self.call_node(&address, request).await?.replicas.into_iter().next())
    }

    /// Makes a store's replica the region's after the loss of a majority, as `request` states.
    /// Returns the region with the members that are left. Fails with `Unavailable` if the node does not
    /// respond, or does not know yet that the stores are lost.
    pub async fn recover_replica(
        &self,
        request: messages::RecoverReplicaRequest,
    ) -> Result<Region> {
        let address = self.store_address(StoreId(request.store_id)).await?;
        Region::decode(&self.call_node(&address, request).await?.region)
    }
}

impl RegionRow {
    /// Decodes a region of a response. Fails with `Corrupt` if its descriptor cannot be decoded.
    pub fn from_info(info: messages::RegionInfo) -> Result<Self> {
        let report = info.report.unwrap_or_default();
        let ids = |ids: Vec<u64>| ids.into_iter().map(PeerId).collect();
        Ok(Self {
            region: Region::decode(&report.region)?,
            leader_store: (report.leader_store != 0).then_some(StoreId(report.leader_store)),
            down_peers: ids(report.down_peers.iter().map(|peer| peer.peer_id).collect()),
            pending_peers: ids(report.pending_peers),
            approximate_bytes: report.approximate_bytes,
            approximate_keys: report.approximate_keys,
            report_age_ms: u64::try_from(info.report_age_ms).ok(),
            is_hibernating: report.hibernating,
            operator: (info.operator_id != 0).then_some(info.operator_id),
        })
    }
}
