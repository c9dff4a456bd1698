//! `stele ctl placement` and `stele ctl explain`: measured speeds, weights, and the reasons of
//! placement.

use super::rows::{
    self, bytes, labels, operator, operator_state, operators, region_line, state_name,
};
use crate::Outcome;
use crate::args::Explain;
use crate::table::{self, Cell, formatted, number, words, words_as};
use crate::terminal::{Output, print};
use serde_json::json;
use std::time::{Duration, Instant};
use stele_client::messages::{
    ExplainResponse, OperatorInfo, OperatorState, PlacementResponse, RegionHeat, StorePlacement,
    StoreRole, StoreState, StoreVerdict,
};
use stele_client::{Control, RegionRow};
use stele_types::size::{counted, format_bytes};
use stele_types::{Error, RegionId, Result};

/// Classes below the fastest store at which a store does not lead (two classes are a factor 2).
const SLOW_CLASSES: u32 = 2;

pub(crate) async fn placement(control: &Control, json: bool) -> Result<Outcome> {
    let response = control.placement().await?;
    if json {
        let head = json!({
            "mode": response.mode,
            "speed_op_bytes": response.speed_op_bytes,
            "domain_label": response.domain_label,
        });
        objects(&[head], &[stores(&response), operators(&response.moves)])?;
    } else {
        print(&placement_text(&response, |store| format!("store {store}")));
    }
    Ok(Outcome::Done)
}

pub(crate) async fn explain(control: &Control, wanted: &Explain, json: bool) -> Result<Outcome> {
    let response = match (wanted.region, &wanted.key) {
        (Some(region), _) => control.explain(RegionId(region)).await?,
        (None, Some(key)) => {
            control.explain_key(crate::text::parse(key, wanted.hex)?.into()).await?
        }
        (None, None) => return Err(Error::invalid("name a region, or a key with --key")),
    };
    if json {
        let row = region(&response)?;
        let heat = response.heat.unwrap_or_default();
        let head = json!({
            "region": row.region.id.0,
            "mode": response.mode,
            "leader": row.leader_store.map(|store| store.0),
            "writes_per_s": heat.writes,
            "written_bytes_per_s": heat.written_bytes,
            "reads_per_s": heat.reads,
            "read_bytes_per_s": heat.read_bytes,
        });
        let planned: Vec<Vec<Cell>> = response.operator.iter().map(rows::operator).collect();
        objects(&[head], &[verdicts(&response.stores), planned])?;
    } else {
        print(&explain_text(&response)?);
    }
    Ok(Outcome::Done)
}

fn objects(heads: &[serde_json::Value], tables: &[Vec<Vec<Cell>>]) -> Result<()> {
    let mut out = Output::new();
    for head in heads {
        out.line(&head.to_string())?;
    }
    for row in tables.iter().flatten() {
        out.json(table::object(row))?;
    }
    out.finish()
}

/// Formats the stores, a line for each one that is slow, and the moves. `name` names a store.
pub(crate) fn placement_text(response: &PlacementResponse, name: impl Fn(u64) -> String) -> String {
    let domains = match response.domain_label.as_str() {
        "" => "node",
        label => label,
    };
    let mut out = format!(
        "mode {} · ops/s: synced writes of {} · replicas differ in: {domains}\n",
        response.mode,
        format_bytes(response.speed_op_bytes)
    );
    out.push_str(&table::text(&stores(response), "no stores"));
    for line in slow_stores(response, name) {
        out.push_str(&line);
        out.push('\n');
    }
    match response.moves.is_empty() {
        true => out.push_str("no moves\n"),
        false => out.push_str(&moves(&response.moves)),
    }
    out
}

fn stores(response: &PlacementResponse) -> Vec<Vec<Cell>> {
    let fastest = fastest(response).map_or(0, |store| store.class);
    response.stores.iter().map(|store| store_row(store, fastest)).collect()
}

fn store_row(store: &StorePlacement, fastest: u32) -> Vec<Cell> {
    vec![
        number("store", store.store_id),
        words("address", store.address.as_str()),
        words("state", state(store)),
        number("class", store.class.into()),
        number("slower", fastest.saturating_sub(store.class).into()),
        speed(store),
        words_as("speed", speed_source(store), store.measured && !store.unreachable),
        number("data class", store.data_class.into()),
        formatted("weight %", percent(store.weight_ppm / 1000), store.weight_ppm as f64 / 1e4),
        permille("wanted %", store.wanted_permille),
        permille("held %", store.held_permille),
        fill(store),
        bytes("live estimate", store.live_bytes),
        number("replicas", store.replicas),
        number("leaders", store.leaders),
        number("load/s", store.load_per_second),
        bytes("moving", store.moving_bytes),
        labels(&store.labels),
    ]
}

/// Returns the state in words that do not contradict each other: a store that is not reached is not
/// up, whatever its place in the cluster.
fn state(store: &StorePlacement) -> String {
    let is_up = StoreState::try_from(store.state) == Ok(StoreState::Up);
    let mut words = Vec::new();
    if !is_up || !store.unreachable {
        words.push(state_name(store.state));
    }
    if store.unreachable {
        words.push("unreachable");
    } else if is_up && !store.serving {
        words.push("takes nothing");
    }
    if store.nearly_full {
        words.push("nearly full");
    }
    words.join(", ")
}

/// Makes the cell of the last known speed; unknown for a store that does nothing.
fn speed(store: &StorePlacement) -> Cell {
    let is_known = store.speed_per_second > 0 && !store.unreachable;
    table::maybe("ops/s", is_known.then_some(store.speed_per_second))
}

fn fill(store: &StorePlacement) -> Cell {
    let known = store.fill_permille.filter(|_| !store.unreachable);
    let text = known.map_or("-".to_owned(), |permille| percent(permille.into()));
    formatted("fill %", text, known.map(|permille| f64::from(permille) / 10.0))
}

fn permille(name: &'static str, permille: u32) -> Cell {
    formatted(name, percent(permille.into()), f64::from(permille) / 10.0)
}

fn percent(permille: u64) -> String {
    format!("{}.{}", permille / 10, permille % 10)
}

fn fastest(response: &PlacementResponse) -> Option<&StorePlacement> {
    let known = response.stores.iter().filter(|store| store.serving && store.speed_per_second > 0);
    known.max_by_key(|store| (store.class, store.speed_per_second))
}

fn speed_source(store: &StorePlacement) -> &'static str {
    match (store.unreachable || store.speed_per_second == 0, store.measured) {
        (true, _) => "unknown",
        (false, true) => "measured",
        (false, false) => "estimate",
    }
}

fn slow_stores(response: &PlacementResponse, name: impl Fn(u64) -> String) -> Vec<String> {
    let Some(fastest) = fastest(response) else { return Vec::new() };
    let reached = response.stores.iter().filter(|store| !store.unreachable);
    let slow = reached.filter(|store| store.class.saturating_add(SLOW_CLASSES) <= fastest.class);
    slow.map(|store| slow_store(store, fastest, &name)).collect()
}

/// Formats what a slow store counts as, and what it does at the moment.
///
/// Invariant: a line that compares speeds names the speeds by which placement decides. What was
/// measured since may be faster for a minute, and is named as such.
fn slow_store(
    store: &StorePlacement,
    fastest: &StorePlacement,
    name: impl Fn(u64) -> String,
) -> String {
    let (slow, fast) = (per_second(store.class), per_second(fastest.class));
    let mut text = format!(
        "{} counts as {} times slower than {}: about {} a second against {fast}; it leads {}",
        name(store.store_id),
        fast / slow.max(1),
        name(fastest.store_id),
        counted(slow, "synced write"),
        match store.leaders {
            0 => "nothing".to_owned(),
            count => counted(count, "region"),
        },
    );
    let now = store.speed_per_second;
    match (store.measured, now >= per_second(store.class + SLOW_CLASSES)) {
        (true, true) => text.push_str(&format!(
            "; its last writes were faster, {now} a second, which counts after a minute"
        )),
        (true, false) => {}
        (false, _) => text.push_str("; it writes nothing at the moment"),
    }
    text
}

fn per_second(class: u32) -> u64 {
    2_f64.powf(f64::from(class.min(126)) / 2.0) as u64
}

fn moves(moves: &[OperatorInfo]) -> String {
    table::text(&operators(moves), "no moves")
}

fn region(response: &ExplainResponse) -> Result<RegionRow> {
    RegionRow::from_info(response.region.clone().unwrap_or_default())
}

pub(crate) fn explain_text(response: &ExplainResponse) -> Result<String> {
    let row = region(response)?;
    let heat = heat_text(&response.heat.unwrap_or_default());
    let mut out = format!("{}\nmode {} · {heat}\n", region_line(&row), response.mode);
    out.push_str(&table::text(&verdicts(&response.stores), "no stores"));
    match &response.operator {
        Some(operator) => out.push_str(&moves(std::slice::from_ref(operator))),
        None => out.push_str("no operator is under way or planned\n"),
    }
    Ok(out)
}

fn heat_text(heat: &RegionHeat) -> String {
    let rate = |count: u64, bytes: u64| format!("{count}/s ({}/s)", format_bytes(bytes));
    format!(
        "writes {} · reads {} · half-life of a minute",
        rate(heat.writes, heat.written_bytes),
        rate(heat.reads, heat.read_bytes)
    )
}

fn verdicts(verdicts: &[StoreVerdict]) -> Vec<Vec<Cell>> {
    verdicts.iter().map(verdict).collect()
}

fn verdict(verdict: &StoreVerdict) -> Vec<Cell> {
    let store = verdict.store.clone().unwrap_or_default();
    let role = match StoreRole::try_from(verdict.role).unwrap_or_default() {
        StoreRole::Leader => "leader",
        StoreRole::Replica => "replica",
        StoreRole::Candidate => "candidate",
        StoreRole::Unspecified => "unknown",
    };
    vec![
        number("store", store.store_id),
        words("address", store.address.as_str()),
        words("role", role),
        number("class", store.class.into()),
        speed(&store),
        permille("wanted %", store.wanted_permille),
        permille("held %", store.held_permille),
        number("load/s", store.load_per_second),
        words("rule", verdict.rule.as_str()),
        words("reason", verdict.reason.as_str()),
    ]
}

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Time after which the operator is no longer followed; it continues.
const FOLLOW_LIMIT: Duration = Duration::from_secs(600);

pub(crate) struct Change<'a> {
    control: &'a Control,
    operator: u64,
}

impl<'a> Change<'a> {
    pub(crate) fn new(control: &'a Control, operator: u64) -> Self {
        Self { control, operator }
    }

    pub(crate) async fn wait(self, json: bool) -> Result<Outcome> {
        let started = Instant::now();
        let ended = self.ended().await?;
        if json {
            table::print(&[operator(&ended)], true, "")?;
        } else {
            let seconds = started.elapsed().as_secs_f64();
            let state = operator_state(ended.state);
            let OperatorInfo { region_id, what, .. } = &ended;
            print(&format!("region {region_id}: {what}: {state} ({seconds:.1} s)\n"));
        }
        if ended.state == OperatorState::Done as i32 {
            return Ok(Outcome::Done);
        }
        Err(Error::Refused(format!("{}: {}", ended.what, ended.detail)))
    }

    pub(crate) async fn ended(&self) -> Result<OperatorInfo> {
        let started = Instant::now();
        loop {
            let info = self.control.operator(self.operator).await?;
            match info {
                Some(info) if info.state == OperatorState::Running as i32 => {
                    if started.elapsed() > FOLLOW_LIMIT {
                        return Ok(info);
                    }
                }
                Some(info) => return Ok(info),
                // The leader that knew the operator was replaced.
                None => {
                    return Ok(OperatorInfo {
                        id: self.operator,
                        what: format!("operator {}", self.operator),
                        state: OperatorState::Unspecified as i32,
                        detail: "the placement group has a new leader, which does not know the operator; see `stele ctl regions`".to_owned(),
                        ..OperatorInfo::default()
                    });
                }
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(id: u64, class: u32, per_second: u64) -> StorePlacement {
        StorePlacement {
            store_id: id,
            state: StoreState::Up as i32,
            class,
            speed_per_second: per_second,
            measured: true,
            serving: true,
            fill_permille: Some(125),
            ..StorePlacement::default()
        }
    }

    fn lines(stores: &[StorePlacement]) -> Vec<String> {
        let response =
            PlacementResponse { stores: stores.to_vec(), ..PlacementResponse::default() };
        slow_stores(&response, |id| format!("store {id}"))
    }

    #[test]
    fn a_slow_store_is_named_with_the_speeds_by_which_it_is_judged() {
        let fast = store(1, 20, 1100);
        let text = lines(&[fast.clone(), StorePlacement { leaders: 1, ..store(2, 14, 130) }]);
        assert_eq!(
            text,
            ["store 2 counts as 8 times slower than store 1: about 128 synced writes a second \
              against 1024; it leads 1 region"]
        );
        // A write that hung made the class; the writes after it are fast again.
        let text = lines(&[fast.clone(), store(2, 0, 4266)]);
        assert_eq!(
            text,
            ["store 2 counts as 1024 times slower than store 1: about 1 synced write a second \
              against 1024; it leads nothing; its last writes were faster, 4266 a second, which \
              counts after a minute"]
        );
        let idle = StorePlacement { measured: false, ..store(2, 0, 4266) };
        let [text] = &lines(&[fast.clone(), idle])[..] else { panic!("one line") };
        assert!(text.ends_with("it leads nothing; it writes nothing at the moment"), "{text}");
        assert!(!text.contains("4266"), "an estimate is not measured: {text}");
        let dead = StorePlacement { unreachable: true, serving: false, ..store(2, 0, 4266) };
        assert!(lines(&[fast.clone(), dead, store(3, 19, 800)]).is_empty());
    }

    #[test]
    fn what_a_store_that_is_not_reached_reported_last_is_not_shown_as_its_state() {
        let up = store(1, 20, 1100);
        let row = |store: &StorePlacement| table::text(&[store_row(store, 20)], "");
        let text = row(&up);
        assert!(text.contains(" up ") && text.contains(" 12.5 "), "{text}");
        let dead = StorePlacement { unreachable: true, serving: false, ..up.clone() };
        let text = row(&dead);
        assert!(text.contains(" unreachable ") && text.contains(" unknown "), "{text}");
        for stale in [" up", "12.5", "1100"] {
            assert!(!text.contains(stale), "{stale}: {text}");
        }
        let state = |change: StorePlacement| super::state(&change);
        let draining = StoreState::Draining as i32;
        assert_eq!(state(StorePlacement { state: draining, ..dead }), "draining, unreachable");
        let leaving = StorePlacement { state: draining, serving: false, ..up.clone() };
        assert_eq!(state(leaving), "draining");
        let full = StorePlacement { serving: false, nearly_full: true, ..up };
        assert_eq!(state(full), "up, takes nothing, nearly full");
    }
}
