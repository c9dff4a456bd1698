//! Commands of the prompt. Each prints one line with its time, or a table.

use super::cluster::Cluster;
use super::load;
use super::prompt::{HELP, PromptCommand};
use crate::ctl::placement::{explain_text, placement_text};
use crate::ctl::{self, rows};
use crate::table;
use crate::terminal::print;
use crate::text::printable;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::time::Instant;
use stele_client::ScanOptions;
use stele_client::messages::OperatorState;
use stele_types::size::counted;
use stele_types::{Error, KeyRange, PeerRole, Region, RegionId, Result, StoreId};

const SCAN_PAIRS_MAX: usize = 50;

/// Runs a command; returns false to quit.
pub(super) async fn execute(cluster: &mut Cluster, command: PromptCommand) -> Result<bool> {
    let started = Instant::now();
    let line = match command {
        PromptCommand::Put { key, value } => {
            cluster.client.put(key.clone(), value).await?;
            format!("OK  {}", place(cluster, key).await?)
        }
        PromptCommand::Get { key } => get(cluster, key).await?,
        PromptCommand::Del { key } => {
            cluster.client.delete(key.clone()).await?;
            format!("OK  {}", place(cluster, key).await?)
        }
        PromptCommand::Scan { start, end } => scan(cluster, KeyRange::new(start, end)).await?,
        PromptCommand::Kill { node } => kill(cluster, &node).await?,
        PromptCommand::Restart { node } => restart(cluster, &node).await?,
        PromptCommand::Pause { node } => pause(cluster, &node).await?,
        PromptCommand::Resume { node } => {
            let at = cluster.nodes().find(&node)?;
            cluster.nodes().resume(at)?;
            format!("{node} resumed · {}", cluster.fault_tolerance_text())
        }
        PromptCommand::Slow { node, factor } => slow(cluster, &node, factor)?,
        PromptCommand::Load { seconds } => load::run(cluster, seconds).await?,
        PromptCommand::Placement => {
            let response = cluster.control.placement().await?;
            let name = |store| format!("{} (store {store})", cluster.node_name(StoreId(store)));
            print(&placement_text(&response, name));
            return Ok(true);
        }
        PromptCommand::Explain { at } => {
            let response = match at.parse() {
                Ok(region) => cluster.control.explain(RegionId(region)).await?,
                Err(_) => cluster.control.explain_key(Bytes::from(at)).await?,
            };
            print(&explain_text(&response)?);
            return Ok(true);
        }
        PromptCommand::Transfer { region, to } => transfer(cluster, RegionId(region), &to).await?,
        PromptCommand::Split { at, keys } => split(cluster, at, keys).await?,
        PromptCommand::Regions => {
            let rows = rows::regions(cluster.refresh_regions().await?);
            print(&table::text(&rows, "no regions"));
            return Ok(true);
        }
        PromptCommand::Status => {
            let table = cluster.table().await;
            print(&table);
            cluster.fault_tolerance_text()
        }
        PromptCommand::Help => {
            print(HELP);
            return Ok(true);
        }
        PromptCommand::Quit => return Ok(false),
    };
    print(&format!("{line}  {}\n", time(started)));
    Ok(true)
}

/// Formats `0.9 ms` or `1.2 s`.
pub(super) fn time(since: Instant) -> String {
    let ms = since.elapsed().as_secs_f64() * 1e3;
    if ms < 1e3 { format!("{ms:.1} ms") } else { format!("{:.1} s", ms / 1e3) }
}

/// Formats `region 2 on n1`, from the client's cache of regions.
async fn place(cluster: &Cluster, key: String) -> Result<String> {
    let (region, store) = cluster.client.locate(key).await?;
    Ok(format!("region {region} on {}", cluster.node_name(store)))
}

async fn get(cluster: &Cluster, key: String) -> Result<String> {
    let value = cluster.client.get(key.clone()).await?;
    let value = value.map_or("(key not found)".to_owned(), |value| printable(&value));
    Ok(format!("{value}  {}", place(cluster, key).await?))
}

async fn scan(cluster: &Cluster, range: KeyRange) -> Result<String> {
    let options = ScanOptions { limit: Some(SCAN_PAIRS_MAX + 1), ..ScanOptions::default() };
    let pairs = cluster.client.scan(range, options).collect().await?;
    let is_cut = pairs.len() > SCAN_PAIRS_MAX;
    let shown = pairs.len().min(SCAN_PAIRS_MAX);
    for pair in pairs.iter().take(shown) {
        print(&format!("{}\t{}\n", printable(&pair.key), printable(&pair.value)));
    }
    let more = if is_cut { " and more" } else { "" };
    Ok(format!("{}{more}", counted(shown as u64, "pair")))
}

async fn kill(cluster: &mut Cluster, name: &str) -> Result<String> {
    let at = cluster.nodes().find(name)?;
    // If no node responds, the regions seen last are used.
    let _ = cluster.refresh_regions().await;
    let led = cluster.regions_led_by(at);
    cluster.nodes().kill(at)?;
    Ok(format!("{name} down{}", after_loss(cluster, &led).await?))
}

fn slow(cluster: &Cluster, name: &str, factor: u32) -> Result<String> {
    let at = cluster.nodes().find(name)?;
    cluster.nodes().slow(at, factor)?;
    Ok(match factor {
        1 => format!("the devices of {name} are as fast as they are"),
        factor => format!(
            "each operation of the devices of {name} takes {factor} times as long · `load 10` \
             lets it be measured, `placement` shows it"
        ),
    })
}

async fn pause(cluster: &mut Cluster, name: &str) -> Result<String> {
    let at = cluster.nodes().find(name)?;
    let _ = cluster.refresh_regions().await;
    let led = cluster.regions_led_by(at);
    cluster.nodes().pause(at)?;
    Ok(format!("{name} paused{}", after_loss(cluster, &led).await?))
}

async fn after_loss(cluster: &mut Cluster, led: &[RegionId]) -> Result<String> {
    let tolerance = cluster.fault_tolerance();
    if tolerance.is_none() {
        return Ok(format!(" · {}", describe(None, true)));
    }
    let started = Instant::now();
    cluster.wait_for_leaders(led).await?;
    let more = describe(tolerance, true);
    let moved = match led.len() {
        0 => "no leader moved".to_owned(),
        count => format!("{} moved in {}", counted(count as u64, "leader"), time(started)),
    };
    Ok(format!(" · {moved} · {more}"))
}

async fn restart(cluster: &mut Cluster, name: &str) -> Result<String> {
    let at = cluster.nodes().find(name)?;
    cluster.nodes().start(at)?;
    let started = Instant::now();
    if cluster.fault_tolerance().is_none() {
        return Ok(format!("{name} up · {}", describe(None, true)));
    }
    cluster.wait_for_catch_up(at).await?;
    let caught_up = time(started);
    Ok(format!("{name} up · caught up in {caught_up} · {}", cluster.fault_tolerance_text()))
}

async fn transfer(cluster: &mut Cluster, region: RegionId, to: &str) -> Result<String> {
    let row = cluster.control.region(region).await?;
    let store = match to.parse() {
        Ok(store) => StoreId(store),
        Err(_) => {
            let at = cluster.nodes().find(to)?;
            let stores = cluster.stores_of(at);
            let held = stores.into_iter().find(|store| row.region.peer_on(*store).is_some());
            held.ok_or_else(|| Error::Refused(format!("{to} has no replica of region {region}")))?
        }
    };
    let operator = cluster.control.transfer_leader(region, store).await?;
    ended(cluster, operator).await?;
    Ok(format!("region {region} is led by {}", cluster.node_name(store)))
}

async fn split(cluster: &mut Cluster, at: String, keys: Vec<String>) -> Result<String> {
    let mut keys: Vec<Bytes> = keys.into_iter().map(Bytes::from).collect();
    let region = match at.parse() {
        Ok(number) => RegionId(number),
        Err(_) => {
            let key = Bytes::from(at);
            keys.insert(0, key.clone());
            cluster.control.region_of(key).await?.region.id
        }
    };
    let before = cluster.refresh_regions().await?.len();
    let operator = cluster.control.split(region, keys).await?;
    ended(cluster, operator).await?;
    let now = cluster.refresh_regions().await?.len();
    Ok(format!("region {region} split · {} new · {now} regions", now.saturating_sub(before)))
}

async fn ended(cluster: &Cluster, operator: u64) -> Result<()> {
    let ended = ctl::Change::new(&cluster.control, operator).ended().await?;
    match OperatorState::try_from(ended.state).unwrap_or_default() {
        OperatorState::Done => Ok(()),
        _ => Err(Error::Refused(format!("{}: {}", ended.what, ended.detail))),
    }
}

/// Returns how many nodes may fail at once in the present state, for any choice of nodes; `None` if
/// a region has no majority. `node_of` maps each running store to its node.
pub(super) fn nodes_that_may_fail<'a>(
    regions: impl IntoIterator<Item = &'a Region>,
    node_of: &BTreeMap<StoreId, usize>,
) -> Option<u64> {
    let mut least: Option<u64> = None;
    for region in regions {
        let of_region = both_configurations(region)
            .map(|stores| tolerated(&stores, node_of))
            .into_iter()
            .try_fold(u64::MAX, |least, failures| failures.map(|failures| least.min(failures)))?;
        least = Some(least.map_or(of_region, |least| least.min(of_region)));
    }
    Some(least.unwrap_or(0))
}

/// Returns the voters of the old and the new configuration: a joint change needs a majority of
/// each.
fn both_configurations(region: &Region) -> [Vec<StoreId>; 2] {
    let voting = |roles: [PeerRole; 2]| {
        let voters = region.peers.iter().filter(|peer| roles.contains(&peer.role));
        voters.map(|peer| peer.store).collect()
    };
    [
        voting([PeerRole::Voter, PeerRole::DemotingVoter]),
        voting([PeerRole::Voter, PeerRole::IncomingVoter]),
    ]
}

fn tolerated(voters: &[StoreId], node_of: &BTreeMap<StoreId, usize>) -> Option<u64> {
    let quorum = voters.len() / 2 + 1;
    let mut on_node: BTreeMap<usize, usize> = BTreeMap::new();
    for store in voters {
        if let Some(node) = node_of.get(store) {
            *on_node.entry(*node).or_default() += 1;
        }
    }
    // In the worst case the nodes with the most replicas fail first.
    let mut counts: Vec<usize> = on_node.into_values().collect();
    counts.sort_unstable();
    let mut left: usize = counts.iter().sum();
    if left < quorum {
        return None;
    }
    let mut failures = 0;
    while let Some(most) = counts.pop() {
        if left - most < quorum {
            break;
        }
        left -= most;
        failures += 1;
    }
    Some(failures)
}

/// Formats `tolerates 1 node failure`; after a loss `tolerates 0 more node failures`.
pub(super) fn describe(failures: Option<u64>, after_loss: bool) -> String {
    let more = if after_loss { "more " } else { "" };
    match failures {
        None => "no majority: writes wait until a node is restarted".to_owned(),
        Some(1) => format!("tolerates 1 {more}node failure"),
        Some(count) => format!("tolerates {count} {more}node failures"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_types::{Peer, PeerId};

    fn region(peers: &[(u64, PeerRole)]) -> Region {
        let peer = |&(store, role): &(u64, PeerRole)| Peer {
            id: PeerId(store),
            store: StoreId(store),
            role,
        };
        Region { peers: peers.iter().map(peer).collect(), ..Region::default() }
    }

    fn voters(stores: &[u64]) -> Region {
        region(&stores.iter().map(|store| (*store, PeerRole::Voter)).collect::<Vec<_>>())
    }

    fn on(stores: &[(u64, usize)]) -> BTreeMap<StoreId, usize> {
        stores.iter().map(|(store, node)| (StoreId(*store), *node)).collect()
    }

    #[test]
    fn a_majority_must_be_left_wherever_replicas_are() {
        let three = on(&[(1, 1), (2, 2), (3, 3)]);
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &three), Some(1));
        assert_eq!(nodes_that_may_fail(&[voters(&[1])], &three), Some(0));
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &on(&[(1, 1), (2, 2)])), Some(0));
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &on(&[(1, 1)])), None);
        let five = on(&[(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3, 4, 5])], &five), Some(2));
        assert_eq!(nodes_that_may_fail(&[], &five), Some(0));
    }

    #[test]
    fn two_replicas_on_one_node_fail_together() {
        let shared = on(&[(1, 1), (2, 1), (3, 2)]);
        assert_eq!(nodes_that_may_fail(&[voters(&[1, 2, 3])], &shared), Some(0));
    }

    #[test]
    fn the_weakest_region_and_both_configurations_count() {
        let three = on(&[(1, 1), (2, 2), (3, 3), (4, 4)]);
        let weak = [voters(&[1, 2, 3]), voters(&[1, 2])];
        assert_eq!(nodes_that_may_fail(&weak, &three), Some(0));
        use PeerRole::{DemotingVoter, IncomingVoter, Voter};
        let joint = region(&[(1, Voter), (2, Voter), (3, DemotingVoter), (4, IncomingVoter)]);
        assert_eq!(nodes_that_may_fail([&joint], &three), Some(1));
        assert_eq!(nodes_that_may_fail([&joint], &on(&[(1, 1), (3, 3)])), None);
    }
}
