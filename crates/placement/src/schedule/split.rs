//! Regions that grew too large. Leaders split by themselves; this is for those that did not.

use super::{View, by_size};
use crate::operator::{Kind, Operator, Step, plan};
use crate::region_info::RegionInfo;
use stele_types::RegionKind;

/// Most regions split at the same time.
const SPLITS_MAX: usize = 16;

/// Operators that tell leaders to split, the largest regions first.
pub fn pick(view: &View<'_>) -> Vec<Operator> {
    let large = view.cluster.config().split_above_bytes;
    let mut regions: Vec<&RegionInfo> = view
        .free_regions()
        .filter(|info| info.region.kind == RegionKind::Data && info.size_bytes > large)
        .collect();
    regions.sort_by_key(by_size);
    let running = usize::try_from(view.operators.count(&[Kind::Split])).unwrap_or(SPLITS_MAX);
    let in_the_middle = || Step::Split { keys: Vec::new(), new: Vec::new() };
    let split = |info: &&RegionInfo| {
        let reason = format!("{} MiB", info.size_bytes >> 20);
        plan::operator(info, Kind::Split, vec![in_the_middle()], reason)
    };
    regions.iter().take(SPLITS_MAX.saturating_sub(running)).filter_map(split).collect()
}
