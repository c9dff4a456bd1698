//! `stele ctl drain` and `remove-store`: progress of a store that is emptied, its remaining time,
//! and what it waits for.

use super::rows::state_name;
use crate::Outcome;
use crate::args::Remove;
use crate::table::{self, Cell, formatted, maybe, number, words};
use crate::terminal::{self, print};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use stele_client::Control;
use stele_client::messages::{StoreInfo, StoreProgress, StoreState};
use stele_types::size::{counted, format_bytes};
use stele_types::{Error, KeyRange, Result, StoreId};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Interval between lines when standard output is not a terminal.
const PRINT_EVERY: Duration = Duration::from_secs(5);

/// Regions that the question names; the others are counted.
const REGIONS_NAMED_MAX: usize = 10;

pub(super) async fn remove(control: &Control, wanted: &Remove, json: bool) -> Result<Outcome> {
    let store = StoreId(wanted.leave.store);
    let what = described(control, store).await?;
    if wanted.yes {
        eprintln!("stele: this will {what}");
    }
    if !terminal::given(&what, wanted.yes)? {
        eprintln!("stele: nothing was changed");
        return Ok(Outcome::Failed);
    }
    let begun = control.remove(store).await?;
    follow(control, begun, wanted.leave.wait, json).await
}

async fn described(control: &Control, store: StoreId) -> Result<String> {
    let infos = control.stores(&[store]).await?;
    let mut infos = infos.iter();
    let info = infos.find(|info| info.stats.is_some_and(|stats| stats.id == store.0));
    let info = info.ok_or_else(|| Error::Refused(format!("there is no store {store}")))?;
    let regions = control.regions(&KeyRange::all(), true).await?;
    let held = regions.iter().filter(|row| row.region.peer_on(store).is_some());
    let (mut ids, mut bytes, mut only_here) = (Vec::new(), 0_u64, 0_usize);
    for row in held {
        ids.push(row.region.id.0);
        bytes += row.approximate_bytes;
        only_here += usize::from(row.region.peers.len() == 1);
    }
    Ok(removal(info, &ids, bytes, only_here))
}

fn removal(info: &StoreInfo, regions: &[u64], bytes: u64, only_here: usize) -> String {
    let id = info.stats.unwrap_or_default().id;
    let state = super::rows::state(info);
    let mut text = format!(
        "remove store {id} ({state}) of the node {} permanently, and destroy its {}",
        info.address,
        counted(regions.len() as u64, "replica")
    );
    if !regions.is_empty() {
        let named: Vec<String> =
            regions.iter().take(REGIONS_NAMED_MAX).map(u64::to_string).collect();
        let more = regions.len().saturating_sub(named.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let word = if regions.len() == 1 { "region" } else { "regions" };
        text += &format!(" of {word} {}{more}, {}", named.join(", "), format_bytes(bytes));
        text += ", once they are moved to other stores";
    }
    if only_here > 0 {
        let have = if only_here == 1 { "has" } else { "have" };
        text += &format!("; {} {have} no other copy", counted(only_here as u64, "region"));
    }
    text
}

/// Prints the progress of the store; with `wait` until it is empty.
pub(super) async fn follow(
    control: &Control,
    begun: StoreProgress,
    wait: bool,
    json: bool,
) -> Result<Outcome> {
    let mut view = View::new(json);
    let mut progress = begun;
    loop {
        let is_over = !wait || is_over(&progress);
        view.show(&progress, is_over)?;
        if is_over {
            return Ok(Outcome::Done);
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        progress = control.progress(StoreId(progress.store_id)).await?;
    }
}

fn is_over(progress: &StoreProgress) -> bool {
    let is_empty = progress.regions_left == 0 && progress.leaders_left == 0;
    match StoreState::try_from(progress.state).unwrap_or_default() {
        StoreState::Removed | StoreState::Up => true,
        StoreState::Removing => false,
        _ => is_empty,
    }
}

struct View {
    json: bool,
    on_terminal: bool,
    printed: Option<Instant>,
    last: String,
}

impl View {
    fn new(json: bool) -> Self {
        let on_terminal = !json && std::io::stdout().is_terminal();
        Self { json, on_terminal, printed: None, last: String::new() }
    }

    fn show(&mut self, progress: &StoreProgress, is_last: bool) -> Result<()> {
        if self.json {
            return table::print(&[cells(progress)], true, "");
        }
        let line = line(progress);
        if self.on_terminal {
            let end = if is_last { "\n" } else { "" };
            print(&format!("\r\x1b[2K{line}{end}"));
            return Ok(());
        }
        let is_due = self.printed.is_none_or(|at| at.elapsed() >= PRINT_EVERY);
        if is_last || (is_due && line != self.last) {
            print(&format!("{line}\n"));
            self.printed = Some(Instant::now());
            self.last = line;
        }
        Ok(())
    }
}

fn cells(progress: &StoreProgress) -> Vec<Cell> {
    let waits_for = progress.waits_for.as_str();
    let region = (progress.waits_for_region != 0).then_some(progress.waits_for_region);
    vec![
        number("store", progress.store_id),
        words("state", state_name(progress.state)),
        number("leaders_left", progress.leaders_left),
        number("regions_left", progress.regions_left),
        number("regions_total", progress.regions_total),
        number("bytes_left", progress.bytes_left),
        number("bytes_total", progress.bytes_total),
        formatted("bytes_per_second", String::new(), progress.bytes_per_second),
        maybe("seconds_left", seconds_left(progress)),
        words("waits_for", waits_for),
        maybe("waits_for_region", region),
    ]
}

/// Returns the cluster's estimate, or else one from the transfer rate.
fn seconds_left(progress: &StoreProgress) -> Option<u64> {
    let guessed = progress.bytes_left.checked_div(progress.bytes_per_second);
    progress.seconds_left.or(guessed.filter(|_| progress.bytes_left > 0))
}

/// Formats `store 3 draining: 4 of 10 replicas left (0 leaders), 1.0 GiB of 4.0 GiB, 64 MiB/s, about
/// 16 s left`.
pub(super) fn line(progress: &StoreProgress) -> String {
    let store = progress.store_id;
    let state = state_name(progress.state);
    if is_over(progress) {
        return match StoreState::try_from(progress.state).unwrap_or_default() {
            StoreState::Removed => format!("store {store} is removed"),
            StoreState::Up => format!("store {store} is up"),
            _ => format!("store {store} is empty and stays a member; stop its node, or cancel"),
        };
    }
    let mut text = match progress.regions_left {
        0 => format!("store {store} {state}: no replica is left"),
        left => format!(
            "store {store} {state}: {left} of {} left ({}), {} of {}",
            counted(progress.regions_total, "replica"),
            counted(progress.leaders_left, "leader"),
            format_bytes(progress.bytes_left),
            format_bytes(progress.bytes_total),
        ),
    };
    // Without replicas nothing moves that takes time.
    if progress.regions_left > 0 {
        if progress.bytes_per_second > 0 {
            text.push_str(&format!(", {}/s", format_bytes(progress.bytes_per_second)));
        }
        match seconds_left(progress) {
            Some(0) => text.push_str(", less than a second left"),
            Some(seconds) => text.push_str(&format!(", about {seconds} s left")),
            None => {}
        }
    } else if progress.waits_for.is_empty() {
        text.push_str("; its removal is recorded next");
    }
    if !progress.waits_for.is_empty() {
        text.push_str(&format!("; waits for: {}", progress.waits_for));
        if progress.waits_for_region != 0 {
            text.push_str(&format!(" (region {})", progress.waits_for_region));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use stele_client::messages::StoreStats;

    #[test]
    fn the_line_says_how_far_how_fast_and_what_is_in_the_way() {
        let mut progress = StoreProgress {
            store_id: 3,
            state: StoreState::Draining as i32,
            leaders_left: 1,
            regions_left: 4,
            bytes_left: 1 << 30,
            regions_total: 10,
            bytes_total: 4 << 30,
            bytes_per_second: 64 << 20,
            ..StoreProgress::default()
        };
        let begin = "store 3 draining: 4 of 10 replicas left (1 leader), 1.0 GiB of 4.0 GiB, \
                     64.0 MiB/s";
        assert_eq!(line(&progress), format!("{begin}, about 16 s left"));
        progress.seconds_left = Some(20);
        progress.waits_for = "no store has room".to_owned();
        progress.waits_for_region = 7;
        let expected = format!("{begin}, about 20 s left; waits for: no store has room (region 7)");
        assert_eq!(line(&progress), expected);
        progress = StoreProgress { leaders_left: 0, regions_left: 0, ..progress };
        assert!(line(&progress).contains("is empty"));
        progress.state = StoreState::Removing as i32;
        assert!(
            !is_over(&progress),
            "the store counts as removed only when the cluster reports it"
        );
        progress = StoreProgress { waits_for: String::new(), ..progress };
        let expected = "store 3 removing: no replica is left; its removal is recorded next";
        assert_eq!(line(&progress), expected);
        progress.state = StoreState::Removed as i32;
        assert_eq!(line(&progress), "store 3 is removed");
    }

    #[test]
    fn the_question_before_a_removal_names_the_store_and_its_replicas() {
        let stats = StoreStats { id: 3, ..StoreStats::default() };
        let info = StoreInfo {
            stats: Some(stats),
            address: "h:1".to_owned(),
            state: StoreState::Up as i32,
            ..StoreInfo::default()
        };
        assert_eq!(
            removal(&info, &[1, 7], 3 << 30, 0),
            "remove store 3 (up) of the node h:1 permanently, and destroy its 2 replicas of regions \
             1, 7, 3.0 GiB, once they are moved to other stores"
        );
        let many: Vec<u64> = (1..=12).collect();
        let text = removal(&info, &many, 1 << 20, 1);
        assert!(text.contains("9, 10 and 2 more, 1.0 MiB"), "{text}");
        assert!(text.ends_with("; 1 region has no other copy"), "{text}");
        assert!(removal(&info, &[], 0, 0).ends_with("destroy its 0 replicas"));
    }
}
