//! Locations of keys, as PD returns them to clients. Followers forward to the leader.

use super::{PlacementService, wire};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use stele_placement::RegionInfo;
use stele_proto::stele::control::v1::ListRegionsRequest;
use stele_types::{KeyRange, RegionId, RegionKind};
use tonic::Status;

impl PlacementService {
    /// Returns the region that holds a key.
    pub async fn region_by_key(self: &Arc<Self>, key: &[u8]) -> Result<Option<RegionInfo>, Status> {
        if self.leads() {
            return self.read_state(|state| state.cluster.regions().by_key(key).cloned()).await;
        }
        let start_key = Bytes::copy_from_slice(key);
        let request = ListRegionsRequest { start_key, limit: 1, ..Default::default() };
        let (found, _) = self.ask_for_regions(request).await?;
        Ok(found.into_iter().find(|info| info.region.range.contains(key)))
    }

    /// Returns the region that ends where the one that holds `key` begins.
    pub async fn previous_region(
        self: &Arc<Self>,
        key: &[u8],
    ) -> Result<Option<RegionInfo>, Status> {
        if self.leads() {
            return self.read_state(|state| state.cluster.regions().before_key(key).cloned()).await;
        }
        let start_key = Bytes::copy_from_slice(key);
        let request = ListRegionsRequest { start_key, previous: true, ..Default::default() };
        let (found, _) = self.ask_for_regions(request).await?;
        Ok(found.into_iter().next())
    }

    /// Returns the region with this id, if it holds user data.
    pub async fn region_by_id(
        self: &Arc<Self>,
        id: RegionId,
    ) -> Result<Option<RegionInfo>, Status> {
        let is_data = |info: &RegionInfo| info.region.kind == RegionKind::Data;
        if self.leads() {
            let found = self.read_state(|state| state.cluster.regions().get(id).cloned()).await?;
            return Ok(found.filter(is_data));
        }
        let request = ListRegionsRequest { region_id: id.0, ..Default::default() };
        let (found, _) = self.ask_for_regions(request).await?;
        Ok(found.into_iter().find(is_data))
    }

    /// Returns the regions that hold keys of `range`, ascending; at most `limit`, or all for 0.
    pub async fn scan_regions(
        self: &Arc<Self>,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Vec<RegionInfo>, Status> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        if self.leads() {
            let scan = |state: &stele_placement::LeaderState| {
                state.cluster.regions().in_range(range).take(limit).cloned().collect()
            };
            return self.read_state(scan).await;
        }
        let mut out: Vec<RegionInfo> = Vec::new();
        let mut next = Some(range.start.clone());
        while let Some(start_key) = next.filter(|_| out.len() < limit) {
            let request = ListRegionsRequest {
                start_key,
                end_key: range.end.clone(),
                limit: u32::try_from(limit - out.len()).unwrap_or(0),
                ..Default::default()
            };
            let (found, continues_at) = self.ask_for_regions(request).await?;
            // Regions may have split between two pages: then the newer one is returned again.
            let is_known = |info: &RegionInfo| out.iter().any(|o| o.region.id == info.region.id);
            let fresh: Vec<RegionInfo> = found.into_iter().filter(|i| !is_known(i)).collect();
            out.extend(fresh);
            next = continues_at;
        }
        Ok(out)
    }

    /// Returns the regions that hold keys of any of the ranges, each once. `None` if `contain_all`
    /// is set and some key is in no region. Fails with `INVALID_ARGUMENT` on ranges that go
    /// backwards.
    pub async fn batch_scan_regions(
        self: &Arc<Self>,
        ranges: &[KeyRange],
        limit: usize,
        contain_all: bool,
    ) -> Result<Option<Vec<RegionInfo>>, Status> {
        if ranges.iter().any(|range| !range.end.is_empty() && range.start > range.end) {
            return Err(Status::invalid_argument("invalid key range, start key > end key"));
        }
        let mut out: Vec<RegionInfo> = Vec::new();
        let mut seen = BTreeSet::new();
        for range in ranges {
            let left = match limit {
                0 => 0,
                limit if out.len() >= limit => break,
                // The first may be known from the range before.
                limit => limit - out.len() + 1,
            };
            let found = self.scan_regions(range, left).await?;
            let is_cut = left > 0 && found.len() >= left;
            if contain_all && !is_gapless(range, &found, is_cut) {
                return Ok(None);
            }
            out.extend(found.into_iter().filter(|info| seen.insert(info.region.id)));
        }
        if limit > 0 {
            out.truncate(limit);
        }
        Ok(Some(out))
    }

    async fn ask_for_regions(
        self: &Arc<Self>,
        request: ListRegionsRequest,
    ) -> Result<(Vec<RegionInfo>, Option<Bytes>), Status> {
        let answer = self.list_regions(request).await?;
        let reports = answer.regions.iter().filter_map(|info| info.report.as_ref());
        Ok((reports.filter_map(wire::info_of).collect(), answer.next_key))
    }
}

/// Returns whether regions, ascending, hold every key of `range`; if `is_cut`, only up to the last
/// of them.
fn is_gapless(range: &KeyRange, regions: &[RegionInfo], is_cut: bool) -> bool {
    let mut covered = &range.start;
    for info in regions {
        if info.region.range.start > *covered {
            return false;
        }
        covered = &info.region.range.end;
        if covered.is_empty() {
            return true;
        }
    }
    is_cut || (!range.end.is_empty() && *covered >= range.end)
}
